#!/usr/bin/env bash
# Writes constraints.txt anew: exact versions of everything, for every supported Python at once.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null; then
  echo "lock: this needs uv on PATH (pip install uv)" >&2
  exit 1
fi
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
# No index addresses and no annotations: the file is the same wherever it was made.
uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --extra dev --extra analytics \
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file "$pins" >/dev/null
{
  echo "# Exact versions of everything Tidegate runs on, is tested with, or can use as an extra, so that installs repeat."
  echo "# Python 3.11 and newer. Made by \`make lock\`; not edited by hand."
  cat "$pins"
} >constraints.txt
