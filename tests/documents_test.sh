#!/bin/bash
# Holds the documents to the program: commands and flags that they show exist, links between them lead somewhere, and the
# blocks marked "sh runnable" run, in their order, in a folder with the repository's documents and examples.
#
#   tests/documents_test.sh ITHACA_PROGRAM SOURCE_FOLDER
set -euo pipefail
program=$(readlink -f "$1") source_folder=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
complain() {
  echo "documents_test: $1" >&2
  failures=$((failures + 1))
}
cd "$source_folder"
documents=$(ls README.md CONTRIBUTING.md CHANGELOG.md docs/*.md)

# The lines of fenced blocks, commands continued with a backslash joined: DOCUMENT<tab>LINE.
blocks() {
  for document in $documents; do
    awk -v name="$document" '
      /^ *```/ { inside = !inside; next }
      inside { line = line $0; if (sub(/\\$/, "", line)) next; print name "\t" line; line = "" }' "$document"
  done
}
# Code between backquotes in running text.
spans() {
  for document in $documents; do
    awk '/^ *```/ { inside = !inside; next } !inside' "$document" | { grep -oE '`ithaca [^`]*`' || true; } | tr -d '`' |
      sed "s|^|$document\t|"
  done
}

# Every command of the program, with flags that its help has.
while IFS=$'\t' read -r document line; do
  command=${line#"${line%%[![:space:]]*}"}
  case $command in
    "ithaca "* | "build/release/bin/ithaca "*) ;;
    *) continue ;;
  esac
  read -ra words <<<"${command%%[#|]*}"
  name=${words[1]:-}
  case $name in
    --version | --help | "" | "<"*) continue ;;
  esac
  if ! [[ $name =~ ^[a-z]+$ ]]; then continue; fi
  help=$("$program" "$name" --help 2>&1) || { complain "$document: there is no command: ithaca $name"; continue; }
  # A command of commands: the flags are those of the inner one.
  if [ "$name" = bench ] && [[ ${words[2]:-} =~ ^[a-z]+$ ]]; then
    help=$("$program" "$name" "${words[2]}" --help 2>&1) || { complain "$document: there is no command: ithaca $name ${words[2]}"; continue; }
  fi
  for word in "${words[@]:2}"; do
    [[ $word =~ ^--?[a-z] ]] || continue
    flag=${word%%=*}
    grep -qE -- "(^|[ ,])$flag([ ,=]|\$)" <<<"$help" || complain "$document: ithaca $name has no $flag: $command"
  done
  # Options of a recipe that are set.
  while read -r option; do
    [ "$option" != section.name ] || continue  # stands for any
    "$program" options "$option" >/dev/null 2>&1 || complain "$document: there is no option $option: $command"
  done < <(grep -oE -- '--set [a-z_]+\.[a-z0-9_]+=' <<<"$command" | sed 's/--set //; s/=$//' || true)
done < <(blocks; spans)

# Every target of make.
targets=$(make --no-print-directory help | grep -oE 'make [a-z-]+' | sort -u)
while IFS=$'\t' read -r document line; do
  [[ $line =~ ^make\ ([a-z-]+) ]] || continue
  grep -qx "make ${BASH_REMATCH[1]}" <<<"$targets" || complain "$document: make has no target ${BASH_REMATCH[1]}"
done < <(blocks)

# Every link to a file of the repository.
for document in $documents; do
  folder=$(dirname "$document")
  while read -r link; do
    [[ $link =~ ^(https?:|#|mailto:) ]] && continue
    [ -e "$folder/${link%%#*}" ] || complain "$document: the link leads nowhere: $link"
  done < <(grep -oE '\]\([^)]+\)' "$document" | sed 's/^](//; s/)$//' || true)
done

# What says that it can be run, runs.
mkdir "$work/repository"
cp -r README.md docs examples "$work/repository"
ln -s "$program" "$work/ithaca"
for document in $documents; do
  awk '/^```sh runnable/ { inside = 1; next } /^```/ { inside = 0 } inside' "$document" >"$work/script"
  [ -s "$work/script" ] || continue
  if ! (cd "$work/repository" && PATH=$work:$PATH bash -euo pipefail "$work/script") >"$work/log" 2>&1; then
    complain "$document: its commands fail: $(tail -n 5 "$work/log")"
  fi
  echo "$document: its $(grep -c . "$work/script") lines of commands run"
done
[ "$failures" -eq 0 ] || exit 1
