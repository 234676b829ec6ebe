#!/usr/bin/env bash
# Writes the images of .env with their digests, so that what runs tomorrow is what was looked at today:
# rabbitmq:4-management becomes rabbitmq:4-management@sha256:…
#
#   scripts/pin-images.sh            pin what is not pinned yet; needs Docker, and the registry or images that were pulled
#   scripts/pin-images.sh --renew    look up the digests anew
#   scripts/pin-images.sh --check    only say which images are not pinned, and fail if there are any
#
# Images of our own (TIDEGATE_IMAGE, TIDEGATE_ANALYTICS_IMAGE) are left alone: they are built here.
# ENV_FILE=FILE names another file than .env.
set -euo pipefail
cd "$(dirname "$0")/.."
file=${ENV_FILE:-.env}
settings='RABBITMQ_IMAGE PROMETHEUS_IMAGE GRAFANA_IMAGE PYTHON_IMAGE'

case "${1:-}" in
  '' | --renew | --check) mode=${1:-} ;;
  *)
    echo "pin-images: $1 is unknown; there are --renew and --check" >&2
    exit 2
    ;;
esac

# digest_of IMAGE: from the registry, else from the image that was pulled. An image that was only ever built has none.
digest_of() {
  local found
  found=$(docker buildx imagetools inspect "$1" --format '{{.Manifest.Digest}}' 2>/dev/null) ||
    found=$(docker image inspect "$1" --format '{{range .RepoDigests}}{{println .}}{{end}}' 2>/dev/null |
      sed -n 's/.*@//p' | head -n 1) || true
  case "$found" in
    sha256:*) printf '%s\n' "$found" ;;
    *) return 1 ;;
  esac
}

open=0
for setting in $settings; do
  image=$(sed -n "s/^$setting=//p" "$file")
  [ -n "$image" ] || continue
  case "$image" in *@sha256:*) [ "$mode" = --renew ] || continue ;; esac
  if [ "$mode" = --check ]; then
    echo "pin-images: $setting=$image has no digest" >&2
    open=1
  elif digest=$(digest_of "${image%%@*}"); then
    sed -i "s|^$setting=.*|$setting=${image%%@*}@$digest|" "$file"
    echo "pin-images: $setting=${image%%@*}@$digest"
  else
    echo "pin-images: no digest was found for ${image%%@*}; is the registry reachable, or has it been pulled?" >&2
    open=1
  fi
done
exit $open
