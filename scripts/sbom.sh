#!/usr/bin/env bash
# Writes what the images hold, as lists in CycloneDX form (SBOM): every Python package with version, licence and origin.
#
#   scripts/sbom.sh            build/sbom-tidegate.json and build/sbom-tidegate-analytics.json
#
# They are made while an image is built, from its very environment. What the base image brings (Python itself, Debian's
# packages, Java) is not in them: it is named by the image's digest (scripts/pin-images.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

# list TARGET NAME
list() {
  local container
  docker build --quiet -f deploy/images/Dockerfile --build-arg PIP_INDEX_URL="${PIP_INDEX_URL:-}" \
    ${PYTHON_IMAGE:+--build-arg PYTHON_IMAGE="$PYTHON_IMAGE"} --target "$1" -t "$1:local" . >/dev/null
  container=$(docker create "$1:local" /nothing)
  docker cp "$container:/sbom.json" "build/$2.json" >/dev/null || { docker rm "$container" >/dev/null && return 1; }
  docker rm "$container" >/dev/null
  docker rmi "$1:local" >/dev/null
  echo "sbom: build/$2.json"
}

list sbom sbom-tidegate
list sbom-analytics sbom-tidegate-analytics
