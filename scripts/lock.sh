#!/usr/bin/env bash
# Writes the lock files anew: exact versions, for every supported Python at once, and the hashes of the files they come
# in. A file with another content is not installed, wherever it is fetched from.
#
#   constraints.txt                           everything: to run, to test, every extra, and what builds it
#   deploy/images/requirements.txt            what the image of brokers holds
#   deploy/images/requirements-analytics.txt  what the image of analytics holds
#   deploy/images/requirements-build.txt      what builds them
#   deploy/images/requirements-tools.txt      what lists their packages, and audits all of them
#
#   scripts/lock.sh            the newest versions that pyproject.toml allows
#   scripts/lock.sh --keep     the versions that are there; only what pyproject.toml asks for anew is chosen
#
# uv is installed into a directory of its own if it is not on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  '') upgrade=(--upgrade) ;;
  --keep) upgrade=() ;;
  *)
    echo "lock: $1 is unknown; there is --keep" >&2
    exit 2
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
uv=$(command -v uv) || {
  python3 -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'uv>=0.7,<1' || {
    echo "lock: this needs uv, and pip could not install it; what it said is above" >&2
    exit 1
  }
  uv=$work/venv/bin/uv
}

# compile FILE WHAT-IT-IS ARGUMENTS…   No index addresses and no annotations: the same wherever it is made.
compile() {
  local file=$1 title=$2 pins=$work/pins.txt
  shift 2
  # uv keeps the versions that it finds in its output.
  cp "$file" "$pins" 2>/dev/null || : >"$pins"
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links --output-file "$pins" "$@" >/dev/null
  {
    echo "# $title: exact versions, and the hashes of their files,"
    echo "# so that installs repeat. Python 3.11 and newer. Made by \`make lock\`; not edited by hand."
    cat "$pins"
  } >"$work/locked.txt"
  mv "$work/locked.txt" "$file"
}

compile constraints.txt "Everything Tidegate runs on, is tested with, can use as an extra, or is built with" \
  "${upgrade[@]}" pyproject.toml --extra dev --extra analytics --group build
images=deploy/images
compile $images/requirements.txt "What the image of brokers holds" -c constraints.txt --upgrade pyproject.toml
compile $images/requirements-analytics.txt "What the image of analytics holds" -c constraints.txt --upgrade \
  pyproject.toml --extra analytics
compile $images/requirements-build.txt "What builds the images" -c constraints.txt --upgrade --group build
compile $images/requirements-tools.txt "What lists and audits packages" "${upgrade[@]}" --group tools
