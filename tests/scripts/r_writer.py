# SPDX-License-Identifier: Apache-2.0
"""Writes R's serialisation, the opposite of scripts/rdata.py, for its tests.

Written from the format's description, not from the reader, so that the two check one another.
"""

import gzip
import pathlib
import struct
import zlib

NA = object()


def header(version=2):
    head = b"X\n" + struct.pack(">iii", version, 0x040202, 0x020300)
    return head + (struct.pack(">i", 5) + b"UTF-8" if version == 3 else b"")


def _flags(kind, attributes=False, tag=False, levels=0):
    return struct.pack(">I", kind | (attributes << 9) | (tag << 10) | (levels << 12))


NULL = _flags(254)


def chars(text):
    if text is NA:
        return _flags(9) + struct.pack(">i", -1)
    data = text.encode()
    return _flags(9, levels=8) + struct.pack(">i", len(data)) + data


def symbol(text):
    return _flags(1) + chars(text)


def pairlist(pairs):
    """pairs: [(name, serialised value)]"""
    return b"".join(_flags(2, tag=True) + symbol(n) + v for n, v in pairs) + NULL


def _vector(kind, count, body, attributes):
    tail = pairlist(attributes) if attributes else b""
    return _flags(kind, attributes=bool(attributes)) + struct.pack(">i", count) + body + tail


def integers(values, attributes=()):
    body = b"".join(struct.pack(">i", -(2**31) if v is NA else v) for v in values)
    return _vector(13, len(values), body, attributes)


def reals(values, attributes=()):
    return _vector(14, len(values), struct.pack(f">{len(values)}d", *values), attributes)


def strings(values, attributes=()):
    return _vector(16, len(values), b"".join(map(chars, values)), attributes)


def generic(items, attributes=()):
    return _vector(19, len(items), b"".join(items), attributes)


def factor(labels, levels):
    codes = [NA if label is NA else levels.index(label) + 1 for label in labels]
    return integers(codes, [("levels", strings(levels)), ("class", strings(["factor"]))])


def data_frame(columns):
    """columns: {name: serialised vector}"""
    return generic(list(columns.values()), [
        ("names", strings(list(columns))),
        ("class", strings(["data.frame"])),
        ("row.names", integers([NA, -3]))])


def write_lazyload(stem, variables):
    """variables: {name: serialised value without header}"""
    stem = pathlib.Path(stem)
    data, places = b"", []
    for value in variables.values():
        plain = header() + value
        chunk = struct.pack(">I", len(plain)) + zlib.compress(plain)
        places.append(integers([len(data), len(chunk)]))
        data += chunk
    index = generic(
        [generic(places, [("names", strings(list(variables)))]), generic([]), integers([1])],
        [("names", strings(["variables", "references", "compressed"]))])
    stem.with_suffix(".rdb").write_bytes(data)
    stem.with_suffix(".rdx").write_bytes(gzip.compress(header() + index))
