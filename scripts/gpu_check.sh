#!/bin/bash
# Runs all GPU tests and benchmarks of a bundle (scripts/bundle.sh) or a build folder, in a few minutes, and prints short tables last.
#
#   gpu_check.sh [FOLDER]      FOLDER has ithaca_gpu: by default that of this script, or build/cuda/bin
#
# Full logs go to $OUT, or to gpu_check_logs here. GPU_CHECK_PARTS chooses: "tests bench attention step sanitize" (default: all but the last).
# Each suite is a process of its own, as a fault of one kernel ends all that follow in its process. Exit status 1 when anything failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here}
[ -x "$folder/ithaca_gpu" ] || folder=$here/../build/cuda/bin
program=$(cd "$folder" && pwd)/ithaca_gpu
[ -x "$program" ] || { echo "gpu_check: no ithaca_gpu in $folder" >&2; exit 1; }
logs=${OUT:-$PWD/gpu_check_logs}
parts=${GPU_CHECK_PARTS:-tests bench attention step}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$logs"
failures=0

. "$here/gpu_environment.sh"
find_gpu_libraries "$folder" "$program" || { echo "gpu_check: libraries are missing" >&2; exit 1; }

# ---- tests ----
# run_shards NAME FILTER SHARDS: in the background, each shard a process with a log.
run_shards() {
  local shard
  for shard in $(seq 0 $(($3 - 1))); do
    (
      GTEST_TOTAL_SHARDS=$3 GTEST_SHARD_INDEX=$shard timeout 150 "$program" --gtest_filter="$2" >"$work/test.$1.$shard" 2>&1
      echo "exit status $?" >>"$work/test.$1.$shard"
    ) &
  done
}
summary=$work/summary
: >"$summary"
if [[ " $parts " == *" tests "* ]]; then
  begin=$SECONDS
  run_shards streams 'CudaStreams.*:CudaAbsence.*' 1  # alone: it looks at times
  wait
  run_shards step '*GpuStep.*' 1  # alone: it looks at the device's free memory
  wait
  run_shards elementwise '*CudaElementwise.*' 1
  run_shards gemm '*CudaGemm.*' 2
  run_shards normalization '*CudaNormalization.*' 4
  run_shards loss '*CudaLoss.*:CudaTokenSort.*' 3
  run_shards attention '-*CudaStreams.*:*CudaAbsence.*:*CudaElementwise.*:*CudaGemm.*:*CudaNormalization.*:*CudaLoss.*:CudaTokenSort.*:*GpuRanks.*:*GpuParity.*:*GpuRealShapes.*:*GpuStep.*:*GpuTrace.*' 3
  wait
  run_shards ranks '*GpuRanks.*' 2
  run_shards parity '*GpuParity.*:*GpuRealShapes.*:*GpuTrace.*' 4
  wait
  for log in "$work"/test.*; do
    echo "===== ${log##*/}" >>"$logs/tests.log"
    cat "$log" >>"$logs/tests.log"
  done
  printf '%-16s %7s %7s %8s   %s\n' suite passed failed skipped ended >>"$summary"
  for log in "$work"/test.*; do
    passed=$(grep -c '^\[       OK \]' "$log")
    failed=$(grep '^\[  FAILED  \] .* ([0-9]* ms)$' "$log" | wc -l)
    skipped=$(grep '^\[  SKIPPED \] .* ([0-9]* ms)$' "$log" | wc -l)
    few_gpus=$(grep -c '^NCCL wants a GPU for each ' "$log")  # why some are skipped, rightly
    ended=$(tail -1 "$log")
    [ "$ended" = "exit status 0" ] && [ "$skipped" = "$few_gpus" ] || failures=1
    printf '%-16s %7s %7s %8s   %s\n' "${log##*/test.}" "$passed" "$failed" "$skipped" "${ended#exit }" >>"$summary"
  done
  echo "tests: $((SECONDS - begin)) s" >>"$summary"
  grep -hE '^\[  FAILED  \] .* \([0-9]+ ms\)$' "$work"/test.* | head -40 >"$work/failed"
  grep -hE -A6 ': Failure$|terminate called|Exception|CUDA:' "$work"/test.* | grep -v '^--$' | cut -c1-220 | head -60 >"$work/first_failures"
fi

# ---- memory and race checkers, over small cases ----
# Both at once and each in shards, so that all of it takes about as long as its slowest test: under three minutes.
if [[ " $parts " == *" sanitize "* ]]; then
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer /opt/nvidia/*/compute-sanitizer 2>/dev/null | head -1)
  small='*CudaElementwise.*:*CudaGemm.B*:*CudaGemm.E*:*CudaLoss.Embedding*:CudaTokenSort.*:*CudaLoss.ColumnSum*:*CudaLoss.CrossEntropyOf*:*CudaLoss.CrossEntropyMakes*'
  small+=':*CudaLoss.StepNumbers*:*CudaNormalization.Head*Of*:*CudaNormalization.HeadRopeNormalises*:*CudaNormalization.RopeTable*'
  small+=':*CudaNormalization.WeightGradientsRepeat*:CudaAttentionTest.TaskKernelsOnViews:CudaAttentionTest.MisuseIsRefused:CudaAttentionTest.FewShortDocuments'
  begin=$SECONDS
  [ -n "$sanitizer" ] || { failures=1; echo "compute-sanitizer is not there" >>"$summary"; }
  for tool in memcheck racecheck; do
    [ -n "$sanitizer" ] || break
    for shard in 0 1 2 3; do
      (
        GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$shard timeout "${GPU_CHECK_SANITIZE_SECONDS:-160}" "$sanitizer" --tool "$tool" --error-exitcode 9 \
          "$program" --gtest_filter="$small" >"$work/sanitize.$tool.$shard" 2>&1
        echo "exit status $?" >>"$work/sanitize.$tool.$shard"
      ) &
    done
  done
  wait
  for log in "$work"/sanitize.*; do
    [ -s "$log" ] || continue
    cat "$log" >>"$logs/sanitize.log"
    ended=$(tail -1 "$log")
    [ "$ended" = "exit status 0" ] || failures=1
    printf '%-22s %3s passed, %s, %s\n' "${log##*/}" "$(grep -c '^\[       OK \]' "$log")" "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1 | sed 's/^=* //')" \
      "$ended" >>"$summary"
  done
  echo "sanitize: $((SECONDS - begin)) s" >>"$summary"
fi

# ---- benchmarks ----
if [[ " $parts " == *" bench "* ]]; then
  timeout 120 "$program" bench-operations >"$logs/bench.log" 2>&1
  status=$?
  [ $status = 0 ] || { failures=1; echo "bench: exit status $status" >>"$summary"; }
fi
if [[ " $parts " == *" attention "* ]]; then
  timeout 90 "$program" bench-attention >"$logs/bench_attention.log" 2>&1
  status=$?
  [ $status = 0 ] || { failures=1; echo "bench-attention: exit status $status" >>"$summary"; }
fi

# Whole training steps by the program itself; each shape a process of its own.
if [[ " $parts " == *" step "* ]]; then
  : >"$logs/bench_step.log"
  while read -r arguments; do
    timeout "${GPU_CHECK_STEP_SECONDS:-200}" "$program" bench step $arguments >>"$logs/bench_step.log" 2>&1
    status=$?
    [ $status = 0 ] || { failures=1; echo "bench step $arguments: exit status $status" >>"$summary"; }
    echo >>"$logs/bench_step.log"
  done <<<"${GPU_CHECK_STEPS:---shape qwen3-0.6b --tokens 8192,32768 --recompute attention,full
--shape qwen3-4b --tokens 8192,16384,32768,65536 --recompute attention,full}"
fi

for log in bench_attention bench bench_step; do
  [ -s "$logs/$log.log" ] && { echo; echo "== $log"; cut -c1-110 "$logs/$log.log" | tail -45; }
done
[ -s "$work/first_failures" ] && { echo; echo "== first failures"; cat "$work/first_failures"; }
[ -s "$work/failed" ] && { echo; echo "== failed tests"; cat "$work/failed"; }
echo
echo "== summary (logs in $logs)"
cat "$summary" | tee "$logs/summary.txt"
exit $failures
