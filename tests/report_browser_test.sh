#!/bin/bash
# Opens reports in headless Chromium: the script runs without a complaint, draws every chart, and hostile names stay text.
#
#   tests/report_browser_test.sh ITHACA_PROGRAM      exit status 77 (skipped) where there is no Chromium
set -euo pipefail
program=$1
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
  echo "report_browser_test: SKIPPED: there is no chromium, so no browser has opened a report"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "report_browser_test: $1" >&2
  exit 1
}

# write_run FOLDER STEPS: loss falls; every 7th step is skipped with a loss that is not finite; evaluations.
write_run() {
  mkdir -p "$1"
  awk -v steps="$2" 'BEGIN {
    for (step = 1; step <= steps; ++step) {
      loss = step % 7 == 0 ? "null" : 2 + 4 / step
      printf "{\"step\": %d, \"loss\": %s, \"grad_norm\": %s, \"learning_rate\": 0.001, \"tokens\": 1000, ", step, loss, loss
      printf "\"skipped\": %s, \"step_seconds\": 0.5, \"tokens_per_second\": 2000, ", step % 7 == 0 ? "true" : "false"
      printf "\"peak_memory_bytes\": {\"total\": 3000000, \"weights\": 1000000, \"gradients\": 2000000}}\n"
      if (step % 10 == 0) printf "{\"step\": %d, \"eval_loss\": 2.5}\n", step
    }
  }' >"$1/metrics.jsonl"
  printf 'model: {path: /model}\ndata: {train: /text.txt}\ntrain: {output_dir: /out, seed: %d}\n' "$2" >"$1/config.yaml"
}

# open_page PAGE ADDRESS_END: the page as it is after its script has run, in $work/dom; what it complained of in $work/log.
open_page() {
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" \
    --enable-logging=stderr --v=0 --window-size=1280,1600 --virtual-time-budget=4000 --dump-dom "file://$1$2" \
    >"$work/dom" 2>"$work/log" || fail "the browser failed: $(tail -n 3 "$work/log")"
  if grep -E 'Uncaught|CONSOLE.*(Error|Refused)' "$work/log"; then fail "the script of $1 complained"; fi
  grep -q '<html[^>]*data-report="ready"' "$work/dom" || fail "the script of $1 did not come to its end"
}
count() { grep -o -- "$1" "$work/dom" | wc -l; }

hostile="$work/<img src=x onerror=\"document.title='owned'\">'&amp;"
write_run "$work/plain" 60
write_run "$hostile" 25
write_run "$work/single" 1
write_run "$work/long" 20000
: >"$work/none" && mkdir "$work/empty" && : >"$work/empty/metrics.jsonl"

"$program" report "$work/plain" "$hostile" --output "$work/page.html" >/dev/null
open_page "$work/page.html" '#x=tokens&smooth=0.5&log=loss'
[ "$(count '<figure class="chart')" -eq 6 ] || fail "there are not six charts"
[ "$(count 'class="line"')" -ge 10 ] || fail "two runs in five charts should be ten lines, not $(count 'class="line"')"
[ "$(count 'class="line raw"')" -ge 2 ] || fail "smoothing does not keep the unsmoothed curve"
[ "$(count 'class="area"')" -eq 2 ] || fail "memory should have two classes"
[ "$(count 'class="skipped"')" -eq 11 ] || fail "eleven steps were skipped, but there are $(count 'class="skipped"') marks"
grep -q 'Loss over tokens' "$work/dom" || fail "the axis that the address asks for is not used"
! grep -q '<img' "$work/dom" || fail "a run's name became markup"
! grep -q '<title>owned' "$work/dom" || fail "a run's name was executed"
grep -q 'train.seed' "$work/dom" || fail "the differing option is not named"

# What people do: hover, walk with the keyboard, ask for a logarithmic scale, zoom in, look at the values, hide a run.
cat "$work/page.html" - >"$work/used.html" <<'PAGE'
<script>
  const notes = document.body.dataset;
  const chart = document.getElementById("chart-loss");
  const svg = chart.querySelector("svg");
  const box = svg.getBoundingClientRect();
  const pointer = (type, part) => svg.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerType: "mouse", button: 0,
    clientX: box.left + part * box.width, clientY: box.top + 40 }));
  const ticks = () => [...svg.querySelectorAll("text")].map((text) => text.textContent).join(" ");
  pointer("pointermove", 0.5);
  notes.tooltip = chart.querySelector(".tooltip").hidden ? "hidden" : chart.querySelector(".tooltip").textContent;
  const shown = chart.querySelector(".tooltip").getBoundingClientRect();
  notes.inside = shown.top >= box.top && shown.bottom <= box.bottom && shown.left >= box.left && shown.right <= box.right;
  notes.cursors = document.querySelectorAll("svg .cursor").length;
  svg.dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
  notes.announced = document.getElementById("announce").textContent;
  chart.querySelector("input[type=checkbox]").click();
  notes.logarithmic = location.hash;
  notes.before = ticks();
  pointer("pointerdown", 0.3);
  pointer("pointerup", 0.5);
  notes.zoomed = ticks();
  document.getElementById("whole").click();
  notes.after = ticks();
  chart.querySelector("button").click();
  notes.rows = chart.querySelectorAll(".values tbody tr").length;
  document.querySelectorAll(".runs input")[1].click();
  notes.lines = svg.querySelectorAll("path.line").length;
</script>
PAGE
open_page "$work/used.html" ''
note() { sed -nE "s/.*<body[^>]* data-$1=\"([^\"]*)\".*/\1/p" "$work/dom"; }
[[ $(note tooltip) == *"step 29"*plain*2.13793* ]] || fail "hovering shows: $(note tooltip)"
[ "$(note inside)" = true ] || fail "the values hovered over are shown outside of their chart"
[ "$(note cursors)" -eq 6 ] || fail "the cursor is in $(note cursors) charts"
[[ $(note announced) == "Loss, step 60: plain 2.06667"* ]] || fail "the keyboard announces: $(note announced)"
[ "$(note logarithmic)" = "#log=loss" ] || fail "the address does not keep the scale: $(note logarithmic)"
[ "$(note zoomed)" != "$(note before)" ] || fail "dragging does not zoom"
[ "$(note after)" = "$(note before)" ] || fail "zooming out does not show everything again"
[ "$(note rows)" -eq 20 ] || fail "the table of values has $(note rows) rows"
[ "$(note lines)" -eq 1 ] || fail "hiding one of two runs leaves $(note lines) lines"

for run in single long empty; do
  "$program" report "$work/$run" >/dev/null
  open_page "$work/$run/report.html" ''
  [ "$(count '<figure class="chart')" -eq 6 ] || fail "$run: there are not six charts"
done
grep -q 'Not recorded' "$work/dom" || fail "an empty run does not say that nothing was recorded"

timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" \
  --window-size=1280,1600 --virtual-time-budget=4000 --screenshot="$work/page.png" "file://$work/page.html" 2>/dev/null
[ "$(stat -c %s "$work/page.png")" -gt 40000 ] || fail "the screenshot is nearly empty"
echo "the reports open in $("$browser" --version 2>/dev/null)"
