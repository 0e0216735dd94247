#!/bin/bash
# Where the time of a training step goes on CPU: samples `ithaca train RECIPE` with perf (Debian package linux-perf) and
# prints the share of each function above 0.3%, and of attention and matrix products together.
#
#   bench/profile_step.sh bench/profile/profile.yaml [--set section.key=value ...]
#
# Needs build/release/bin/ithaca (make release) and the quickstart's text (scripts/fetch_quickstart_text.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
recipe=$1
shift
mkdir -p build/profile
command -v perf >/dev/null || { echo "perf is missing: apt-get install linux-perf" >&2; exit 1; }
[ -f build/quickstart/jargon.txt.gz ] || scripts/fetch_quickstart_text.sh build/quickstart/jargon.txt.gz
perf record -e cpu-clock -F 99 -o build/profile/perf.data \
  build/release/bin/ithaca train "$recipe" --overwrite --set train.output_dir=build/profile/run "$@"
perf report -i build/profile/perf.data --no-children --stdio --percent-limit 0.05 --sort symbol 2>/dev/null |
  grep '%' | sed 's/ithaca::cpu::N_[A-Z0-9]*::(anonymous namespace):://; s/ithaca::cpu:://; s/\[\.\] //; s/\[k\] /kernel: /; s/  *-  *- *$//' >build/profile/functions.txt
awk '$1 + 0 >= 0.3' build/profile/functions.txt
awk '{ share = $1 + 0; name = $2
       if (name ~ /ForwardPass|BackwardPass|attention/) attention += share
       else if (name ~ /gemm/) products += share
       else { rest += share; if (share > largest) { largest = share; which = $0 } } }
     END { printf "attention %.1f%%, matrix products %.1f%%, everything else %.1f%%; the largest of the rest: %s\n",
                  attention, products, rest, which }' build/profile/functions.txt
