#!/bin/bash
# Builds the fuzz targets of tests/fuzz and runs each for a bounded time.
#
#   scripts/fuzz.sh [--seconds N] [TARGET...]     all targets, 20 seconds each, unless said otherwise
#   FUZZ_SECONDS=N scripts/fuzz.sh                the same
#
# Exit status 1 when an input crashes a target, trips a sanitizer, leaks or takes longer than 10 seconds; the input is
# kept, and the command that repeats it is printed. What is found to be interesting stays in build/fuzz/corpus, so that
# the next run goes on from there; seeds in tests/fuzz/corpus are never written to.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${FUZZ_SECONDS:-20}
targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds)
      seconds=${2:?"fuzz: --seconds needs a number"}
      shift 2
      ;;
    -*)
      echo "usage: scripts/fuzz.sh [--seconds N] [TARGET...]" >&2
      exit 2
      ;;
    *)
      targets+=("$1")
      shift
      ;;
  esac
done
if ! [[ "$seconds" =~ ^[1-9][0-9]*$ ]]; then
  echo "fuzz: the time must be a whole number of seconds, not '$seconds'" >&2
  exit 2
fi

folder=build/fuzz
cmake --preset fuzz >/dev/null
mapfile -t known < <(grep -v '^$' "$folder/fuzzers.txt" || true)
if [ ${#targets[@]} -eq 0 ]; then
  targets=("${known[@]}")
fi
for target in "${targets[@]}"; do
  if ! printf '%s\n' "${known[@]}" | grep -qxF -- "$target"; then
    echo "fuzz: there is no target '$target'; the targets are: ${known[*]}" >&2
    exit 2
  fi
done
cmake --build "$folder" -j "${FUZZ_JOBS:-$(nproc)}" --target "${targets[@]/#/fuzz_}" |
  grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' || [ "${PIPESTATUS[0]}" -eq 0 ]

failed=()
for target in "${targets[@]}"; do
  program=$folder/bin/fuzz_$target
  corpus=$folder/corpus/$target
  findings=$folder/findings/$target
  log=$folder/$target.log
  mkdir -p "$corpus" "$findings"
  options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2560 -max_len=8192 -print_final_stats=1
           -artifact_prefix="$findings/")
  if [ -f "tests/fuzz/dictionaries/$target.dict" ]; then
    options+=(-dict="tests/fuzz/dictionaries/$target.dict")
  fi
  folders=("$corpus")
  if [ -d "tests/fuzz/corpus/$target" ]; then
    folders+=("tests/fuzz/corpus/$target")
  fi
  if UBSAN_OPTIONS=print_stacktrace=1 "$program" "${options[@]}" "${folders[@]}" >"$log" 2>&1; then
    echo "fuzz_$target: nothing found in $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, $seconds s"
  else
    failed+=("$target")
    echo "fuzz_$target: FOUND a fault; the end of $log:" >&2
    tail -n 40 "$log" >&2
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    if [ -n "$input" ]; then
      echo "fuzz_$target: repeat it with: $program $input" >&2
      echo "fuzz_$target: the input, base64: $(base64 -w 0 "$input")" >&2
    fi
  fi
done
if [ ${#failed[@]} -ne 0 ]; then
  echo "fuzz: faults in: ${failed[*]}" >&2
  exit 1
fi
