#!/bin/bash
# Packs the program of a CUDA build (ithaca, its GPU tests and benchmarks in one) for a machine that has a GPU and its libraries but no network and
# no build tools:
#
#   scripts/bundle.sh [BUILD_FOLDER [BUNDLE_FOLDER]]       (build/cuda and build/bundle); also BUNDLE_FOLDER.tar.gz, to carry
#
# Binaries are stripped; shared libraries that they need, other than those of CUDA and of the C library, lie beside them in lib/. On the other
# machine: BUNDLE_FOLDER/gpu_check.sh finds CUDA's libraries and runs everything.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
bundle=${2:-build/bundle}
largest=$((60 << 20))

[ -x "$build/bin/ithaca_gpu" ] || { echo "bundle: $build/bin/ithaca_gpu is not there; build it: cmake --preset cuda && cmake --build $build" >&2; exit 1; }
rm -rf "$bundle"
mkdir -p "$bundle/lib"
strip -o "$bundle/ithaca_gpu" "$build/bin/ithaca_gpu"
ln -s ithaca_gpu "$bundle/ithaca"
# CUDA's libraries come from the other machine; libc's family must be its own too.
ldd "$bundle/ithaca_gpu" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
  grep -Ev '/(libcuda|libcudart|libcublas|libcublasLt|libcudnn[a-z_]*|libnvrtc|libc|libm|libpthread|librt|libdl|ld-linux[^/]*)\.so' |
  while read -r library; do cp -Lu "$library" "$bundle/lib/"; done
# The other machine's C++ runtime is used unless it is too old: CUDA's libraries were built against it.
mkdir -p "$bundle/lib/fallback"
mv "$bundle"/lib/libstdc++.so.* "$bundle"/lib/libgcc_s.so.* "$bundle/lib/fallback/"
cp scripts/gpu_check.sh scripts/gpu_environment.sh scripts/scaling_check.sh "$bundle/"
mkdir -p "$bundle/data"
cp -r tests/data/models "$bundle/data/"
tar -C "$(dirname "$bundle")" -c "$(basename "$bundle")" | gzip -6 >"$bundle.tar.gz.partial"
mv "$bundle.tar.gz.partial" "$bundle.tar.gz"
bytes=$(stat -c %s "$bundle.tar.gz")
ls -l "$bundle" "$bundle/lib" "$bundle/lib/fallback"
echo "bundle: $bundle and $bundle.tar.gz, $((bytes >> 20)) MiB"
[ "$bytes" -lt "$largest" ] || { echo "bundle: larger than $((largest >> 20)) MiB" >&2; exit 1; }
