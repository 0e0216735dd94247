#!/bin/bash
# Draws a trace of the quickstart's recipe and holds the picture to the trace.
#
#   tests/trace_picture_test.sh ITHACA_PROGRAM SOURCE_FOLDER
set -euo pipefail
program=$1 source_folder=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "trace_picture_test: $1" >&2
  exit 1
}
picture() { "$source_folder/scripts/trace_picture.py" "$@"; }

cd "$work"
mkdir -p build/quickstart
cat "$source_folder"/docs/*.md | gzip >build/quickstart/jargon.txt.gz
cp -r "$source_folder/examples" .
"$program" train examples/quickstart/quickstart.yaml --set train.max_steps=3 --set data.max_length=1024 \
  --set train.output_dir=run --trace trace.json --trace-steps 2:3 >log 2>&1 || fail "$(cat log)"

picture trace.json picture.svg
python3 - <<'PYTHON'
import json
import re
import xml.etree.ElementTree

root = xml.etree.ElementTree.parse("picture.svg").getroot()
texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
assert sum(text.startswith("step 3, all of it") for text in texts) == 1, texts
for rank in range(4):
    # The whole step, and one layer forward and backward.
    assert texts.count(f"rank {rank} compute") == 3, texts
    assert texts.count(f"rank {rank} communication") == 3, texts
assert "other" not in texts, "work without a phase"

# The pieces of the first row are all that rank 0's compute stream did in the step, but for gaps too small to be seen.
slices = [event for event in json.load(open("trace.json"))["traceEvents"] if event["ph"] == "X"]
step = next(event for event in slices if event["name"] == "step 3" and event["pid"] == 0)
operations = [event["dur"] for event in slices if event["cat"] == "operation" and event["pid"] == 0 and
              event["tid"] == 1 and step["ts"] <= event["ts"] < step["ts"] + step["dur"]]
begin = next(i for i, element in enumerate(root) if element.text == "rank 0 compute")
shown = 0.0
for element in list(root)[begin + 2:]:
    title = element.find("{http://www.w3.org/2000/svg}title")
    if title is None:
        break
    shown += float(re.search(r", ([0-9.]+) ms$", title.text).group(1)) * 1000
drawn = sum(operations)
assert drawn * 0.999 - len(operations) <= shown <= drawn + 0.0006 * step["dur"] * len(operations), (shown, drawn)
PYTHON

picture trace.json picture.svg --step 2 --layer 0
grep -q '>step 2, all of it' picture.svg || fail "--step 2 shows another step"
grep -q '>layer 0, backward' picture.svg || fail "--layer 0 shows another layer"
if picture trace.json none.svg --layer 99 2>err; then fail "a layer that is not there was drawn"; fi
grep -q 'layers 0 to ' err || fail "the layers that are there are not named: $(cat err)"
if picture trace.json none.svg --step 1 2>err; then fail "a step that is not there was drawn"; fi
grep -q 'step 2, step 3, not step 1' err || fail "the steps that are there are not named: $(cat err)"
[ ! -e none.svg ] || fail "a picture was left behind"

# What is no trace, or cannot be read or written, is said in one line.
refused() {
  local expected=$1
  shift
  if picture "$@" 2>err; then fail "drawn: $*"; fi
  [ "$(wc -l <err)" = 1 ] || fail "not one line: $(cat err)"
  grep -q "$expected" err || fail "'$expected' is not in: $(cat err)"
}
for text in '{}' '[]' 'nonsense' '{"traceEvents": [{"ph": "X"}]}'; do
  echo "$text" >other.json
  refused 'other.json is not a trace' other.json none.svg
done
refused 'cannot read absent.json: No such file' absent.json none.svg
refused 'cannot read \.: Is a directory' . none.svg
refused 'cannot write absent/picture.svg: No such file' trace.json absent/picture.svg
