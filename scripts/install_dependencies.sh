#!/bin/bash
# Installs the Debian packages that are missing, as root or through sudo.
#
#   scripts/install_dependencies.sh GROUP...     groups: build test bench checks
#
# Says what it installs; prints apt's own words only when it fails.
set -euo pipefail

build_packages=(g++ cmake ninja-build ccache libopenblas-pthread-dev libhwy-dev nlohmann-json3-dev libyaml-cpp-dev
                libcli11-dev libfmt-dev libspdlog-dev zlib1g-dev libzstd-dev libpcre2-dev libutf8proc-dev
                libsentencepiece-dev pkg-config)
test_packages=(libgtest-dev libgmock-dev protobuf-compiler python3-jinja2 zsh fish mandoc)
bench_packages=(libbenchmark-dev)
checks_packages=(clang-14 libclang-rt-14-dev clang-format-14 clang-tidy-14 chromium doxygen)

wanted=()
for group in "$@"; do
  case "$group" in
    build) wanted+=("${build_packages[@]}") ;;
    test) wanted+=("${test_packages[@]}") ;;
    bench) wanted+=("${bench_packages[@]}") ;;
    checks) wanted+=("${checks_packages[@]}") ;;
    *)
      echo "install_dependencies: there is no group '$group'; the groups are build, test, bench, checks" >&2
      exit 2
      ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" != installed ]; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_dependencies: these packages are missing, and there is neither root nor sudo: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Runs a command with its output kept for the case that it fails.
quietly() {
  if ! "$@" >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    echo "install_dependencies: failed: $*" >&2
    exit 1
  fi
}

echo "Installing with apt: ${missing[*]}"
quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update
quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}"
