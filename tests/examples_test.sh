#!/bin/bash
# Runs every recipe under examples/ for two steps and looks at what it leaves. A recipe says with "Tried by the tests
# with:" what makes it small enough.
#
#   tests/examples_test.sh ITHACA_PROGRAM SOURCE_FOLDER
set -euo pipefail
program=$1 source_folder=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "examples_test: $1" >&2
  exit 1
}

cp -r "$source_folder/examples" "$work/examples"
cd "$work"
# In the place of the book that `make quickstart` fetches.
mkdir -p build/quickstart
cat "$source_folder"/docs/*.md "$source_folder/README.md" | gzip >build/quickstart/jargon.txt.gz

recipes=$(find examples -name '*.yaml' | sort)
[ -n "$recipes" ] || fail "there is no recipe"
for recipe in $recipes; do
  read -ra smaller <<<"$(sed -n 's/^# .*[Tt]ried by the tests with: *//p' "$recipe")"
  "$program" train "$recipe" "${smaller[@]}" --set train.max_steps=2 --set train.output_dir=run >log 2>&1 ||
    fail "$recipe: $(cat log)"
  "$program" inspect run >log 2>&1 || fail "$recipe: inspect: $(cat log)"
  grep -q '^steps        2$' log || fail "$recipe: not two steps: $(cat log)"
  "$program" inspect run/export >log 2>&1 || fail "$recipe: the export cannot be used: $(cat log)"
  rm -r run
  echo "$recipe"
done
