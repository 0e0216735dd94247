#!/bin/bash
# Puts the quickstart's text, the Jargon File (Debian package jargon-text, in the public domain), at the given place.
#
#   scripts/fetch_quickstart_text.sh build/quickstart/jargon.txt.gz
#
# The package's only content lies in the doc folder, which slim images leave out even when the package is installed;
# then the package is downloaded and unpacked beside the target, which needs no root.
set -euo pipefail

target=$1
installed=/usr/share/doc/jargon-text/jargon.txt.gz
folder=$(dirname "$target")
partial=$target.partial
mkdir -p "$folder"

if [ -s "$target" ]; then
  exit 0
fi
if [ -s "$installed" ]; then
  cp "$installed" "$partial"
else
  echo "Downloading the quickstart's text (Debian package jargon-text)"
  unpacked=$(mktemp -d "$folder/unpack.XXXXXX")
  trap 'rm -rf "$unpacked"' EXIT
  download() { (cd "$unpacked" && apt-get -q -o APT::Sandbox::User= download jargon-text >apt.log 2>&1 </dev/null); }
  if ! download; then
    # A fresh image has no package lists.
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
    "${as_root[@]}" apt-get -q update >"$unpacked/update.log" 2>&1 </dev/null || cat "$unpacked/update.log" >&2
    if ! download; then
      cat "$unpacked/apt.log" >&2
      echo "fetch_quickstart_text: the package jargon-text cannot be downloaded" >&2
      exit 1
    fi
  fi
  dpkg-deb -x "$unpacked"/jargon-text_*.deb "$unpacked/tree"
  cp "$unpacked/tree$installed" "$partial"
fi
gzip -t "$partial"
mv "$partial" "$target"
