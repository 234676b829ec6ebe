#!/usr/bin/env bash
# Makes a clone ready to run: a virtual environment in .venv with the pinned packages, RabbitMQ, and Java for Spark.
#
# What is there already is left alone, so a second run takes a moment. What is missing is installed with apt where
# there is apt and root or sudo; where there is not, this says what is missing and what to do, and fails.
#
#   PYTHON=/path/to/python scripts/setup.sh     use that Python (3.11 or newer)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/.tidegate-setup
apt_log=
policy=

say() { printf 'setup: %s\n' "$*"; }

# fail WHAT REMEDY...
fail() {
  printf 'setup: %s\n' "$1" >&2
  shift
  printf '       %s\n' "$@" >&2
  exit 1
}

tidy_up() {
  if [ -n "$policy" ]; then as_root rm -f "$policy"; fi
  if [ -n "$apt_log" ]; then rm -f "$apt_log"; fi
}
trap tidy_up EXIT

# --- root -------------------------------------------------------------------------------------------------------

can_be_root() {
  if [ "$(id -u)" -eq 0 ]; then return 0; fi
  if ! command -v sudo >/dev/null; then return 1; fi
  # On a terminal sudo may ask for a password; anywhere else it has to work without.
  sudo -n true 2>/dev/null || [ -t 0 ]
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# --- apt --------------------------------------------------------------------------------------------------------

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@" >>"$apt_log" 2>&1
}

# apt_install PACKAGE WHAT-FOR
apt_install() {
  if ! command -v apt-get >/dev/null; then
    fail "$2 is missing, and there is no apt here to install it with." \
      "Install it with your system's package manager (on Debian the package is $1), then run this again."
  fi
  if ! can_be_root; then
    fail "$2 is missing, and installing it takes root." \
      "Run 'apt-get install $1' as root, or run this again as a user who may use sudo."
  fi
  say "installing $2 (apt-get install $1)"
  apt_log=$(mktemp)
  # The package lists may be missing or too old, so a failure is worth one more try with fresh ones.
  if ! apt_get install -y --no-install-recommends "$1"; then
    if ! { apt_get update && apt_get install -y --no-install-recommends "$1"; }; then
      tail -n 20 "$apt_log" >&2
      fail "apt-get could not install $1; the last lines of what it said are above." \
        "Repair that (network? disk? /etc/apt/sources.list?), then run this again."
    fi
  fi
  rm -f "$apt_log"
  apt_log=
}

# --- Python -----------------------------------------------------------------------------------------------------

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

fingerprint() { { cat pyproject.toml constraints.txt deploy/images/requirements-build.txt && pwd; } | sha256sum | cut -d ' ' -f 1; }

environment_works() { [ -x $venv/bin/python ] && new_enough $venv/bin/python && $venv/bin/python -m pip --version >/dev/null 2>&1; }

# Every file that is fetched is one whose hash is in a lock file. What builds comes first, because pip would fetch it
# without hashes; the project itself has none, and comes last without anything else.
install_packages() {
  local pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
  $pip --require-hashes -r deploy/images/requirements-build.txt &&
    $pip --require-hashes --no-build-isolation -r constraints.txt &&
    $pip --no-deps --no-build-isolation -e .
}

ensure_environment() {
  if [ -f $stamp ] && [ "$(cat $stamp)" = "$(fingerprint)" ] && new_enough $venv/bin/python; then return 0; fi
  if ! environment_works; then
    local python
    python=$(find_python) || fail "no Python 3.11 or newer was found." \
      "Install one (Debian 12 and Ubuntu 24.04 have it as python3)," \
      "or name it: PYTHON=/path/to/python make setup"
    # Debian splits this part off into a package of its own.
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
      apt_install python3-venv "Python's venv module"
      "$python" -c 'import ensurepip' 2>/dev/null || fail "$python still can't make virtual environments." \
        "Install the venv package for exactly that Python, or name another: PYTHON=/path/to/python make setup"
    fi
    say "creating $venv with $("$python" --version)"
    "$python" -m venv --clear $venv
  fi
  say "installing the Python packages pinned in constraints.txt (two minutes the first time)"
  if ! install_packages; then
    fail "pip could not install the Python packages; what it said is above." \
      "Without a way to a package index, set PIP_INDEX_URL or PIP_FIND_LINKS to one you can reach; then run this again." \
      "Where hashes do not match, that index has other files than the one they were locked with (make lock)."
  fi
  fingerprint >$stamp
}

# --- RabbitMQ ---------------------------------------------------------------------------------------------------

has_rabbitmq() {
  local place
  for place in /usr/lib/rabbitmq/bin /usr/local/lib/rabbitmq/bin /opt/rabbitmq/sbin /usr/local/sbin /opt/homebrew/sbin; do
    if [ -x "$place/rabbitmq-server" ]; then return 0; fi
  done
  command -v rabbitmq-server >/dev/null
}

ensure_rabbitmq() {
  if has_rabbitmq; then return 0; fi
  # Tidegate starts nodes of its own; the package must not start the system's service beside them. Debian asks
  # this file before it starts one, and 101 means no.
  if command -v apt-get >/dev/null && can_be_root && ! [ -e /usr/sbin/policy-rc.d ]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
    as_root chmod 755 $policy
  fi
  apt_install rabbitmq-server RabbitMQ
  # The package also enables its service for the next boot.
  if [ -d /run/systemd/system ]; then
    as_root systemctl disable --now --quiet rabbitmq-server ||
      say "could not switch off the service rabbitmq-server; Tidegate does not need it running"
  fi
  has_rabbitmq || fail "rabbitmq-server was installed but is in none of the usual places." \
    "Put the directory that holds rabbitmq-server on PATH, then run this again."
}

# --- Java, for Spark --------------------------------------------------------------------------------------------

# java_major JAVA: the first number of its version; nothing if it can't be run. Java 8 calls itself 1.8.
java_major() { "$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1; }

java_new_enough() {
  local major
  major=$(java_major "$1")
  [ -n "$major" ] && [ "$major" -ge 17 ]
}

# Debian 12 and Ubuntu have Java 17 by name; a newer Debian has only a newer one.
java_package() {
  local package
  for package in openjdk-17-jre-headless default-jre-headless; do
    if [ -n "$(apt-cache show --no-all-versions "$package" 2>/dev/null)" ]; then
      printf '%s\n' "$package"
      return 0
    fi
  done
  return 1
}

ensure_java() {
  # Spark takes JAVA_HOME before PATH, so an old one there can't be helped by installing another.
  if [ -n "${JAVA_HOME:-}" ]; then
    if java_new_enough "$JAVA_HOME/bin/java"; then return 0; fi
    fail "JAVA_HOME ($JAVA_HOME) is not Java 17 or newer, which Spark needs." \
      "Unset JAVA_HOME, or set it to a newer Java; then run this again."
  fi
  if command -v java >/dev/null && java_new_enough java; then return 0; fi
  local package=openjdk-17-jre-headless
  if command -v apt-get >/dev/null && can_be_root; then
    # Without package lists nothing is found, and the name could not be chosen.
    if ! java_package >/dev/null; then
      apt_log=$(mktemp)
      apt_get update || true
      rm -f "$apt_log"
      apt_log=
    fi
    package=$(java_package) || package=openjdk-17-jre-headless
  fi
  apt_install "$package" "Java 17 or newer"
  { command -v java >/dev/null && java_new_enough java; } || fail "java on PATH is still not Java 17 or newer." \
    "Set JAVA_HOME to one that is (see /usr/lib/jvm), then run this again."
}

ensure_environment
ensure_rabbitmq
ensure_java
say "ready"
