#!/bin/bash
# Measures how training scales over the GPUs of one host, with one command for any number of them, and prints tables last:
#
#   scaling_check.sh [RANKS [FOLDER]]     RANKS: all GPUs, or 2 where there is none (the CPU then). FOLDER: as for gpu_check.sh, or one that has ithaca
#
# Logs, and raw rows (one JSON object a line), go to $OUT, or to scaling_check_logs here. Each part has a time limit, after which the rows that
# it has measured are kept. SCALING_CHECK_PARTS chooses (default: all that the commands below have):
#   exchange   bandwidth of every exchange, 1 MiB to 1 GiB, beside a plain copy, over peer access and over NCCL
#   attention  attention alone by every schedule against one GPU, one document and packed ones; predictions for more GPUs than there are
#   step       training steps of the shape of Qwen3-4B
#   auto       the same step by every schedule, against what `auto` chooses
#   longest    the longest sequence that fits
# SCALING_CHECK_COMMANDS replaces the commands: lines of NAME SECONDS and arguments of `ithaca bench`, to which --ranks and --output are added;
# a name is a part, or PART-ANYTHING. Exit status 1 when anything failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
ranks=${1:-$gpus}
[ "$ranks" -ge 2 ] || ranks=2
folder=${2:-$here}
for name in ithaca_gpu ithaca; do
  for place in "$folder" "$here/../build/cuda/bin" "$here/../build/release/bin"; do
    [ -z "${program:-}" ] && [ -x "$place/$name" ] && folder=$place program=$(cd "$place" && pwd)/$name
  done
done
[ -n "${program:-}" ] || { echo "scaling_check: neither ithaca_gpu nor ithaca in $folder; name the FOLDER that has one: scaling_check.sh RANKS FOLDER" >&2; exit 1; }
logs=${OUT:-$PWD/scaling_check_logs}
mkdir -p "$logs"
. "$here/gpu_environment.sh"
if [ "$gpus" -gt 0 ]; then
  find_gpu_libraries "$folder" "$program" || { echo "scaling_check: libraries are missing" >&2; exit 1; }
fi

# Lengths are such that a part ends well within its limit on so many H200s.
default_commands() {
  local schedules=auto,ulysses,ring:zigzag,ring:striped,all_gather,hybrid:2x2,hybrid:2x4,hybrid:4x2
  local step="step --shape qwen3-4b --warmup 1 --steps 2"
  local attention=32768,131072,262144 predicted=4,8 compared=131072 first=524288
  [ "$ranks" -gt 2 ] && attention=65536,131072,524288 predicted=8
  [ "$ranks" -gt 4 ] && predicted= compared=262144 first=2097152
  echo "exchange 150 exchange --seconds 0.2"
  echo "attention 420 attention --tokens $attention --documents 0,long-tailed:8192 --schedules $schedules --seconds 0.3${predicted:+ --predict-ranks $predicted}"
  if [ "$ranks" -le 2 ]; then
    echo "step-0.6b 60 step --shape qwen3-0.6b --tokens 8192,32768 --recompute attention,full --warmup 1 --steps 2"
    echo "step-attention 180 $step --tokens 8192,32768,65536,131072 --recompute attention"
    echo "step-full 180 $step --tokens 8192,32768,65536,131072 --recompute full"
  else
    echo "step-attention 300 $step --tokens 131072,262144 --recompute attention"
    echo "step-512k 300 step --shape qwen3-4b --warmup 0 --steps 1 --tokens 524288 --recompute attention"
  fi
  local choice
  for choice in auto ulysses ring all_gather "hybrid --ulysses-size 2" "hybrid --ulysses-size 4"; do
    # A hybrid has 2 or more ranks in each direction.
    [[ $choice == *"size 2" && $ranks -lt 4 || $choice == *"size 4" && $ranks -lt 8 ]] && continue
    echo "auto-${choice// --ulysses-size /} 150 step --shape qwen3-4b --warmup 1 --steps 1 --tokens $compared --schedule $choice"
  done
  echo "longest 420 step --shape qwen3-4b --longest --attention-layers 1 --tokens $first --recompute full --warmup 0 --steps 1"
}

commands=${SCALING_CHECK_COMMANDS:-$(default_commands)}
parts=${SCALING_CHECK_PARTS:-exchange attention step auto longest}
failures=0
summary=$logs/summary.txt
names=()
printf '%-20s %8s   %s\n' part seconds ended >"$summary"
while read -r name limit arguments; do
  [ -n "$name" ] || continue
  [[ " $parts " == *" ${name%%-*} "* ]] || continue
  names+=("$name")
  begin=$SECONDS
  # Words on purpose: they are arguments.
  # shellcheck disable=SC2086
  timeout "$limit" "$program" bench $arguments --ranks "$ranks" --output "$logs/$name.jsonl" >"$logs/$name.log" 2>&1 </dev/null
  status=$?
  ended="status $status"
  [ $status = 124 ] && ended="after its limit of $limit s; rows until then are kept"
  [ $status = 0 ] || failures=1
  printf '%-20s %8s   %s\n' "$name" $((SECONDS - begin)) "$ended" >>"$summary"
done <<<"$commands"

for name in "${names[@]}"; do
  [[ $name == auto-* ]] && continue
  echo
  echo "== $name"
  cut -c1-170 "$logs/$name.log" | tail -75
done
if printf '%s\n' "${names[@]}" | grep -q '^auto-'; then
  echo
  echo "== what auto chooses against the others"
  head=
  for name in "${names[@]}"; do
    [[ $name == auto-* ]] || continue
    [ -n "$head" ] || { printf '%-16s' ""; grep -m1 -E '^ +tokens' "$logs/$name.log"; head=1; }
    grep -E '^ +[0-9]+ +(none|attention|full) .*(%|did not run)' "$logs/$name.log" | sed "s/^/$(printf '%-16s' "${name#auto-}")/" | cut -c1-170
  done
fi
echo
echo "== summary: $ranks ranks (logs and raw rows in $logs)"
cat "$summary"
exit $failures
