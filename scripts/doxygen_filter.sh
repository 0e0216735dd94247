#!/bin/bash
# A header as Doxygen wants it: `//` comments become documentation (`///` before a declaration, `///<` behind one), and
# what stands in them is text, not markup.
#
#   scripts/doxygen_filter.sh HEADER
exec sed -E '
  # The text of comments: nothing in it is a command or a tag.
  /\/\//{
    h
    s|^([^/]*)//.*$|\1|
    x
    s|^[^/]*//||
    s/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g; s/\\/\\\\/g; s/@/\\@/g; s/#/\\#/g; s/%/\\%/g; s/"/\\"/g
    x
    G
    # code, newline, comment
    s|^( *)\n(.*)$|\1///\2|
    s|^(.*[^ ].*)\n(.*)$|\1///<\2|
  }
  1s|^///|/// \\file\n///|
' "$1"
