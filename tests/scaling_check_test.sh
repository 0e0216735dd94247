#!/bin/bash
# Runs scripts/scaling_check.sh over CPU ranks, with small numbers: every part ends in a table and raw rows, and what fails or takes too long is said.
#
#   tests/scaling_check_test.sh ITHACA_PROGRAM SOURCE_FOLDER
set -euo pipefail
program=$(readlink -f "$1") source_folder=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "scaling_check_test: $1" >&2
  cat "$work/out" >&2
  exit 1
}
cp "$source_folder/scripts/scaling_check.sh" "$source_folder/scripts/gpu_environment.sh" "$work/"
ln -s "$program" "$work/ithaca"
model=$source_folder/tests/data/models/llama-plain
step="step --backend cpu --model $model --tokens 64 --warmup 0 --steps 1"
export OUT=$work/logs SCALING_CHECK_COMMANDS="exchange 60 exchange --backend cpu --sizes 4KiB --seconds 0.001
attention 60 attention --backend cpu --tokens 64 --query-heads 4 --key-heads 2 --head-size 8 --documents 0,long-tailed:16 --schedules ulysses,hybrid:2x4 --predict-ranks 4 --seconds 0.001
step-attention 60 $step
auto-auto 60 $step
auto-ring 60 $step --schedule ring
longest 60 $step --longest --attention-layers 1 --limit-gib 0.0015"
"$work/scaling_check.sh" 2 "$work" >"$work/out" 2>&1 || fail "it failed"
for text in '== exchange' 'all_reduce' 'predicted' 'does not fit' '== step-attention' 'what auto chooses' '^auto  .* attention .*%' '^ring  .* attention .*%' \
  'longest sequence, recompute attention' '== summary: 2 ranks' '^longest  *[0-9]+  *status 0'; do
  grep -qE -- "$text" "$work/out" || fail "its output lacks: $text"
done
for name in exchange attention step-attention auto-auto auto-ring longest; do
  [ -s "$work/logs/$name.jsonl" ] || fail "no raw rows of $name"
done
# One part; what fails and what takes too long.
export SCALING_CHECK_COMMANDS="exchange 60 exchange --backend cpu --sizes nonsense
step 1 step --backend cpu --model $model --tokens 4096 --warmup 0 --steps 1000000"
SCALING_CHECK_PARTS=exchange "$work/scaling_check.sh" 2 "$work" >"$work/out" 2>&1 && fail "a failed part passed"
grep -qE '^exchange  *[0-9]+  *status 2' "$work/out" || fail "the failed part is not named"
grep -q '^step' "$work/out" && fail "a part that was not chosen ran"
SCALING_CHECK_PARTS=step "$work/scaling_check.sh" 2 "$work" >"$work/out" 2>&1 && fail "a part beyond its limit passed"
grep -qE '^step .*after its limit of 1 s' "$work/out" || fail "the limit is not named"
echo "scaling_check_test: passed"
