#!/usr/bin/env python3
"""Writes src/data/chat/jinja/case_tables.inc: what Python's str knows of characters and utf8proc does not.

    scripts/make_unicode_tables.py > src/data/chat/jinja/case_tables.inc
"""

import unicodedata

CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def rows(header, items):
    print(header)
    line = "   "
    for item in items:
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def mappings(name, mapping):
    items = []
    for character in CHARACTERS:
        mapped = mapping(character)
        if len(mapped) > 1:
            escaped = "".join(f"\\x{byte:02x}" for byte in mapped.encode())
            items.append(f' {{0x{ord(character):x}, "{escaped}"}},')
    rows(f"constexpr SpecialCase {name}[] = {{", items)


def ranges(name, has_property):
    found = []
    for character in CHARACTERS:
        if has_property(character):
            code = ord(character)
            if found and found[-1][1] == code - 1:
                found[-1][1] = code
            else:
                found.append([code, code])
    rows(f"constexpr CodePointRange {name}[] = {{", [f" {{0x{first:x}, 0x{last:x}}}," for first, last in found])


print(f"// Written by scripts/make_unicode_tables.py from Unicode {unicodedata.unidata_version}: case mappings to several")
print("// code points, and classes of characters that the general category does not give.")
mappings("kSpecialUpper", str.upper)
mappings("kSpecialTitle", str.title)
ranges("kDigitsBeyondDecimal", lambda c: c.isdigit() and not c.isdecimal())
ranges("kNumericLetters", lambda c: c.isnumeric() and unicodedata.category(c) not in ("Nd", "Nl", "No"))
ranges("kUpperBeyondLetters", lambda c: c.isupper() and unicodedata.category(c) != "Lu")
ranges("kLowerBeyondLetters", lambda c: c.islower() and unicodedata.category(c) != "Ll")
