#!/bin/bash
# Installs a build to a folder of its own and builds examples/consumer against it, once with find_package and once with
# pkg-config; runs both. Also compiles every installed header alone.
#
#   tests/consumer_test.sh SOURCE_FOLDER BUILD_FOLDER COMPILER
set -euo pipefail
source_folder=$1 build_folder=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "consumer_test: $1" >&2
  exit 1
}
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "failed: $*"; }; }

quietly cmake --install "$build_folder" --prefix "$work/prefix"
[ -x "$work/prefix/bin/ithaca" ] || fail "the program is not installed"
[ "$("$work/prefix/bin/ithaca" --version)" = "ithaca $(cat "$source_folder/VERSION")" ] || fail "the program does not run"
cmp -s "$source_folder/LICENSE" "$work/prefix/share/doc/ithaca/LICENSE" || fail "the licence is not installed"
headers=$(cd "$work/prefix/include" && find . -name '*.h' | sed 's|^\./||' | sort)
[ -n "$headers" ] || fail "no header is installed"
if grep -E '_test\.h|testing|harness|-inl\.h|kernels' <<<"$headers"; then fail "an internal header is installed"; fi
if grep -rnE '#include "|\.cuh|cuda_runtime|nccl\.h|mpi\.h|json\.hpp' "$work/prefix/include"; then
  fail "an installed header includes something that it must not"
fi

# Every header alone, with nothing but the prefix.
for header in $headers; do printf '#include <%s>\n' "$header"; done >"$work/all.cpp"
# The same headers in the opposite order: each must bring what it needs.
for header in $(tac <<<"$headers"); do printf '#include <%s>\n' "$header"; done >"$work/backwards.cpp"
for text in all backwards; do
  quietly "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Werror "-I$work/prefix/include" "$work/$text.cpp"
done

launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
quietly cmake -S "$source_folder/examples/consumer" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  "-DCMAKE_CXX_COMPILER=$compiler" "-DCMAKE_PREFIX_PATH=$work/prefix" "${launcher[@]}"
quietly cmake --build "$work/build"
"$work/build/split_attention"

libraries=$(find "$work/prefix" -name ithaca.pc -printf '%h')
flags=$(PKG_CONFIG_PATH=$libraries pkg-config --cflags --libs ithaca) || fail "pkg-config does not find ithaca"
# shellcheck disable=SC2086  # flags are words
quietly "$compiler" -std=c++20 -O1 "$source_folder/examples/consumer/split_attention.cpp" -o "$work/with_pkg_config" $flags
quietly "$work/with_pkg_config"
echo "examples/consumer works with find_package and with pkg-config"
