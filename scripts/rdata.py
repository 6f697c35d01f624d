# SPDX-License-Identifier: Apache-2.0
"""Reads data frames from an R package's lazy-load database, without R.

An installed R package keeps its data sets in a pair of files. `Rdata.rdx` is the index: a gzip
file with one serialised R list that gives, for each variable, its (offset, length) in
`Rdata.rdb`. There each value is a chunk:

    A  4 bytes, big endian: length of the value once uncompressed
    B  1 byte, only with bzip2 or xz compression: '2' bzip2, 'Z' xz, '0' stored
    C  the compressed bytes (zlib when B is absent)

Uncompressed it is R's XDR serialisation ("X\\n", versions 2 and 3; "R Internals", section
"Serialization Formats"). Only data is decoded: vectors, strings, lists and attributes. Code,
environments and external pointers give an RDataError.
"""

import bz2
import dataclasses
import gzip
import lzma
import pathlib
import struct
import zlib


class RDataError(Exception):
    """The file is not as expected, or contains something that this module does not decode."""


@dataclasses.dataclass
class Value:
    """An R vector or list: its elements, and its attributes by name.

    Missing values (NA) are None in logical, integer and string vectors, and NaN in real ones.
    """

    elements: list
    attributes: dict

    def attribute(self, name, default=()):
        value = self.attributes.get(name)
        return list(default) if value is None else value.elements


# Type codes of R's serialisation, the low byte of an item's flags.
_SYMBOL, _PAIRLIST, _CHARS = 1, 2, 9
_LOGICAL, _INTEGER, _REAL, _STRINGS, _LIST = 10, 13, 14, 16, 19
_ALTREP, _ATTRIBUTED_PAIRLIST, _PERSISTENT, _NULL, _REFERENCE = 238, 239, 247, 254, 255
_HAS_ATTRIBUTES, _HAS_TAG = 1 << 9, 1 << 10
_LATIN1 = 1 << 2  # Within the upper flags ("levels") of a string.
_NA_INTEGER = -(2**31)


class _Reader:
    def __init__(self, data):
        self._data = data
        self._at = 0
        self._references = []

    def _take(self, count):
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise RDataError(
                f"serialised data ends early: byte {end} wanted, {len(self._data)} there")
        piece = self._data[self._at:end]
        self._at = end
        return piece

    def _int(self):
        return struct.unpack(">i", self._take(4))[0]

    def _ints(self, count):
        return list(struct.unpack(f">{count}i", self._take(4 * count)))

    def _length(self):
        length = self._int()
        if length == -1:  # 2^31 elements and more: upper and lower half follow.
            upper, lower = self._int(), self._int()
            length = (upper << 32) + (lower & 0xFFFFFFFF)
        if length < 0 or length > len(self._data):
            raise RDataError(f"a vector claims {length} elements, more than the data can hold")
        return length

    def header(self):
        if self._take(2) != b"X\n":
            raise RDataError("not R's XDR serialisation: it does not begin with 'X\\n'")
        version = self._int()
        if version not in (2, 3):
            raise RDataError(f"serialisation version {version}; 2 and 3 are known")
        self._take(8)  # Version of R that wrote it, oldest version of R that reads it.
        if version == 3:
            self._take(self._int())  # Name of the native encoding.

    def item(self):
        flags = self._int()
        kind, levels = flags & 0xFF, flags >> 12
        if kind in (_NULL, 0):
            return None
        if kind == _REFERENCE:
            index = (flags >> 8) or self._int()
            if not 1 <= index <= len(self._references):
                raise RDataError(f"reference {index} to nothing")
            return self._references[index - 1]
        if kind == _SYMBOL:
            name = self.item()
            self._references.append(name)
            return name
        if kind == _PERSISTENT:
            self._int()  # Always 0.
            names = tuple(self.item() for _ in range(self._length()))
            self._references.append(names)
            return names
        if kind == _CHARS:
            return self._chars(levels)
        if kind in (_PAIRLIST, _ATTRIBUTED_PAIRLIST):
            return self._pairlist(flags)
        if kind == _ALTREP:
            return self._altrep()
        elements = self._elements(kind)
        attributes = self.item() if flags & _HAS_ATTRIBUTES else None
        return Value(elements, _as_attributes(attributes))

    def _elements(self, kind):
        if kind in (_LOGICAL, _INTEGER):
            return [None if v == _NA_INTEGER else v for v in self._ints(self._length())]
        if kind == _REAL:
            count = self._length()
            return list(struct.unpack(f">{count}d", self._take(8 * count)))
        if kind in (_STRINGS, _LIST):
            return [self.item() for _ in range(self._length())]
        raise RDataError(f"an R object of type {kind} is not data; only vectors are decoded")

    def _chars(self, levels):
        length = self._int()
        if length == -1:  # NA_character_
            return None
        return self._take(length).decode("latin-1" if levels & _LATIN1 else "utf-8")

    def _pairlist(self, flags):
        # A linked list, read in a loop because a long one would exhaust the stack.
        elements, names = [], []
        attributes = None
        while True:
            if flags & _HAS_ATTRIBUTES:
                attributes = self.item()
            names.append(self.item() if flags & _HAS_TAG else None)
            elements.append(self.item())
            flags = self._int()
            kind = flags & 0xFF
            if kind in (_NULL, 0):
                break
            if kind not in (_PAIRLIST, _ATTRIBUTED_PAIRLIST):
                raise RDataError(f"a pairlist ends in an object of type {kind}")
        value = Value(elements, _as_attributes(attributes))
        value.attributes.setdefault("names", Value(names, {}))
        return value

    def _altrep(self):
        # Vectors that R keeps in a compact form: (class, package, type), state, attributes.
        info, state, attributes = self.item(), self.item(), self.item()
        name = info.elements[0]
        if name in ("compact_intseq", "compact_realseq"):
            count, first, step = state.elements
            if not 0 <= count < 2**31:
                raise RDataError(f"a compact sequence claims {count} elements")
            numbers = [first + step * i for i in range(int(count))]
            elements = [int(v) for v in numbers] if name == "compact_intseq" else numbers
        elif name.startswith("wrap_"):
            elements = state.elements[0].elements
        else:
            raise RDataError(f"compact vectors of class {name} are not decoded")
        return Value(elements, _as_attributes(attributes))


def _as_attributes(pairlist):
    if pairlist is None:
        return {}
    return dict(zip(pairlist.attribute("names"), pairlist.elements))


def unserialize(data):
    """Returns the value in `data`, the bytes of one R serialisation.

    A Value for vectors and lists, a str for symbols and single strings, None for NULL.
    """
    reader = _Reader(data)
    try:
        reader.header()
        return reader.item()
    except (struct.error, ValueError, OverflowError, AttributeError, IndexError, TypeError,
            RecursionError) as error:
        raise RDataError(f"damaged serialisation: {error}") from error


def _uncompress(chunk, compression):
    if compression == 0:
        return chunk
    want = struct.unpack(">I", chunk[:4])[0]
    if compression == 1:
        data = zlib.decompress(chunk[4:])
    else:
        kind, body = chunk[4:5], chunk[5:]
        if kind == b"2":
            data = bz2.decompress(body)
        elif kind == b"Z":
            data = lzma.LZMADecompressor(
                format=lzma.FORMAT_RAW,
                filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}]).decompress(body)
        elif kind == b"0":
            data = body
        else:
            raise RDataError(f"chunk compression {kind!r} is unknown")
    if len(data) != want:
        raise RDataError(f"a chunk gave {len(data)} bytes, {want} were promised")
    return data


def read_lazyload(stem, name):
    """Returns the variable `name` of the lazy-load database `stem`.rdx, `stem`.rdb (stem: a path)."""
    stem = pathlib.Path(stem)
    index_path, data_path = stem.with_suffix(".rdx"), stem.with_suffix(".rdb")
    try:
        index = unserialize(_decompress_file(index_path.read_bytes()))
        sections = dict(zip(index.attribute("names"), index.elements))
        variables = sections["variables"]
        places = dict(zip(variables.attribute("names"), variables.elements))
        compression = int(sections["compressed"].elements[0])
    except (OSError, zlib.error, EOFError, KeyError, AttributeError) as error:
        raise RDataError(f"{index_path} is not the index of a lazy-load database: {error}") \
            from error
    if name not in places:
        raise RDataError(f"{index_path} has no '{name}'; it has: {', '.join(sorted(places))}")
    offset, length = places[name].elements
    with open(data_path, "rb") as file:
        file.seek(offset)
        chunk = file.read(length)
    if len(chunk) != length:
        raise RDataError(f"{data_path} ends before '{name}': {offset + length} bytes expected")
    try:
        return unserialize(_uncompress(chunk, compression))
    except (zlib.error, lzma.LZMAError, OSError) as error:
        raise RDataError(f"'{name}' in {data_path} is damaged: {error}") from error


def _decompress_file(data):
    # R writes the index with gzip or, when byte-compiled for lazy loading, with bare zlib.
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else zlib.decompress(data)


def data_frame_columns(frame):
    """Returns {column name: list of values} of a data frame; factors become their level labels."""
    if not isinstance(frame, Value) or "data.frame" not in frame.attribute("class"):
        raise RDataError("not a data frame")
    names = frame.attribute("names")
    if len(names) != len(frame.elements):
        raise RDataError(f"{len(names)} names for {len(frame.elements)} columns")
    columns = {name: _labels(column) for name, column in zip(names, frame.elements)}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise RDataError(f"columns of different lengths: {sorted(lengths)}")
    return columns


def _labels(column):
    levels = column.attribute("levels", default=())
    if not levels:
        return column.elements
    # Codes count from 1.
    if any(code is not None and not 1 <= code <= len(levels) for code in column.elements):
        raise RDataError("a factor has a code outside its levels")
    return [None if code is None else levels[code - 1] for code in column.elements]
