#!/bin/bash
# Holds the Makefile's targets to what README.md promises, without running them (make -n).
#
#   tests/makefile_test.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES

fail() {
  echo "makefile_test: $1" >&2
  exit 1
}

# Fails unless `make -n TARGET` would run a command that matches the pattern.
runs() {
  local commands
  commands=$(make --no-print-directory -n "$1") || fail "make -n $1 failed"
  grep -qE -- "$2" <<<"$commands" || fail "make $1 does not run: $2"
}

runs quickstart 'scripts/install_dependencies.sh build$'
runs quickstart 'cmake --build build/release --target ithaca'
runs quickstart 'scripts/fetch_quickstart_text.sh build/quickstart/jargon.txt.gz'
runs quickstart-text 'scripts/fetch_quickstart_text.sh build/quickstart/jargon.txt.gz'
runs quickstart 'build/release/bin/ithaca train examples/quickstart/quickstart.yaml'
runs quickstart 'build/release/bin/ithaca inspect runs/quickstart/export'
runs test 'scripts/install_dependencies.sh build test'
runs test 'ctest .*-LE .*slow.* --no-tests=error'
runs test-slow 'ctest .*-L slow .*--no-tests=error'
runs deps 'scripts/install_dependencies.sh build test'
runs bench 'ITHACA_BUILD_BENCHMARKS=ON'
runs docs 'ithaca options --markdown'
runs doxygen 'scripts/doxygen.sh'
runs install 'cmake --install build/release --prefix /usr/local'
runs format 'clang-format-14 -i '
runs tidy 'clang-tidy-14'
runs fuzz 'scripts/fuzz.sh'
runs clean 'rm -rf build$'

for target in quickstart quickstart-text test test-slow release install bench docs doxygen format tidy analyze fuzz deps clean; do
  make --no-print-directory help | grep -q "make $target " || fail "make help does not name $target"
done

# What the recipe reads is what the Makefile fetches; every recipe that reads it says how to get it.
grep -q 'train: ../../build/quickstart/jargon.txt.gz' examples/quickstart/quickstart.yaml ||
  fail "the quickstart's recipe reads another file than the Makefile fetches"
for recipe in $(grep -l 'build/quickstart/' examples/*/*.yaml); do
  grep -q '`\?make quickstart-text`\?' "$recipe" || fail "$recipe does not say that make quickstart-text fetches its text"
done
[ "$(scripts/install_dependencies.sh nonsense 2>/dev/null || echo "status $?")" = "status 2" ] ||
  fail "install_dependencies.sh accepts an unknown group"
echo "the Makefile keeps its promises"
