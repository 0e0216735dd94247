#!/bin/bash
# Documents the public headers in build/doxygen/html. A warning of Doxygen, or a header that does not say in its first
# lines what it is, is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
output=build/doxygen
rm -rf "$output"
mkdir -p "$output"
cmake -DITHACA_SOURCE_FOLDER=. -DLIST="$output/headers.txt" -P cmake/IthacaPublicHeaders.cmake
mapfile -t headers < <(sed "s|^$PWD/||" "$output/headers.txt")
for header in "${headers[@]}"; do
  if ! head -n 1 "$header" | grep -q '^// '; then
    echo "doxygen: $header does not begin with a comment that says what it is" >&2
    exit 1
  fi
done
{
  cat docs/Doxyfile
  echo "OUTPUT_DIRECTORY = $output"
  echo "INPUT = docs/library.dox ${headers[*]}"
} | doxygen -
echo "The documentation of ${#headers[@]} public headers: $output/html/index.html"
