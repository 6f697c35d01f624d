# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/rdata.py against the writer of r_writer.py."""

import pathlib
import struct
import tempfile
import unittest

import r_writer as r
import rdata


def frame_bytes():
    return r.data_frame({
        "who": r.factor(["b", "a", r.NA], ["a", "b"]),
        "count": r.integers([1, r.NA, 3]),
        "share": r.reals([0.5, -1.0, 2.0]),
        "note": r.strings(["x", "é", r.NA])})


EXPECTED = {"who": ["b", "a", None], "count": [1, None, 3], "share": [0.5, -1.0, 2.0],
            "note": ["x", "é", None]}


class UnserializeTest(unittest.TestCase):
    def test_vectors_come_back_with_missing_values_as_none(self):
        for version in (2, 3):
            data = r.header(version) + r.integers([7, r.NA, -7])
            self.assertEqual(rdata.unserialize(data).elements, [7, None, -7])

    def test_a_symbol_seen_before_is_a_reference_to_it(self):
        first = r.integers([1], [("class", r.strings(["p"]))])
        again = (struct.pack(">I", 13 | 1 << 9) + struct.pack(">ii", 1, 2) +
                 struct.pack(">I", 2 | 1 << 10) + struct.pack(">I", 255 | 1 << 8) +
                 r.strings(["q"]) + r.NULL)
        value = rdata.unserialize(r.header() + r.generic([first, again]))
        self.assertEqual([v.attribute("class") for v in value.elements], [["p"], ["q"]])

    def test_a_compact_sequence_is_expanded(self):
        info = (struct.pack(">I", 2) + r.symbol("compact_intseq") + struct.pack(">I", 2) +
                r.symbol("base") + struct.pack(">I", 2) + r.integers([13]) + r.NULL)
        data = r.header(3) + struct.pack(">I", 238) + info + r.reals([4, 10, 1]) + r.NULL
        self.assertEqual(rdata.unserialize(data).elements, [10, 11, 12, 13])

    def test_code_is_refused_by_its_type(self):
        with self.assertRaisesRegex(rdata.RDataError, "type 3 is not data"):
            rdata.unserialize(r.header() + struct.pack(">I", 3))

    def test_other_formats_are_refused(self):
        with self.assertRaisesRegex(rdata.RDataError, "XDR"):
            rdata.unserialize(b"A\n2\n")
        with self.assertRaisesRegex(rdata.RDataError, "version 9"):
            rdata.unserialize(r.header(9) + r.NULL)

    def test_every_truncation_is_an_rdata_error(self):
        data = r.header() + frame_bytes()
        for length in range(len(data)):
            with self.assertRaises(rdata.RDataError, msg=f"first {length} bytes"):
                rdata.unserialize(data[:length])

    def test_a_damaged_byte_never_ends_in_another_exception(self):
        data = r.header() + frame_bytes()
        for position in range(len(data)):
            for value in (0, 0x7F, 0xFF):
                damaged = data[:position] + bytes([value]) + data[position + 1:]
                try:
                    rdata.data_frame_columns(rdata.unserialize(damaged))
                except rdata.RDataError:
                    pass


class DataFrameTest(unittest.TestCase):
    def test_factors_become_their_labels(self):
        frame = rdata.unserialize(r.header() + frame_bytes())
        self.assertEqual(rdata.data_frame_columns(frame), EXPECTED)

    def test_a_list_is_not_a_data_frame(self):
        with self.assertRaisesRegex(rdata.RDataError, "not a data frame"):
            rdata.data_frame_columns(rdata.unserialize(r.header() + r.generic([])))

    def test_a_code_outside_the_levels_is_refused(self):
        column = r.integers([3], [("levels", r.strings(["a"])), ("class", r.strings(["factor"]))])
        frame = rdata.unserialize(r.header() + r.data_frame({"x": column}))
        with self.assertRaisesRegex(rdata.RDataError, "outside its levels"):
            rdata.data_frame_columns(frame)


class LazyLoadTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.stem = pathlib.Path(directory.name) / "Rdata"
        r.write_lazyload(self.stem, {"other": r.integers([1]), "frame": frame_bytes()})

    def test_the_named_variable_is_found_behind_others(self):
        frame = rdata.read_lazyload(self.stem, "frame")
        self.assertEqual(rdata.data_frame_columns(frame), EXPECTED)

    def test_an_unknown_variable_is_named_with_those_there(self):
        with self.assertRaisesRegex(rdata.RDataError, "no 'none'; it has: frame, other"):
            rdata.read_lazyload(self.stem, "none")

    def test_damaged_files_are_reported_by_path(self):
        data = self.stem.with_suffix(".rdb")
        content = data.read_bytes()
        data.write_bytes(content[:-1])
        with self.assertRaisesRegex(rdata.RDataError, "ends before 'frame'"):
            rdata.read_lazyload(self.stem, "frame")
        data.write_bytes(content[:-40] + bytes(40))
        with self.assertRaisesRegex(rdata.RDataError, "damaged"):
            rdata.read_lazyload(self.stem, "frame")
        self.stem.with_suffix(".rdx").write_bytes(b"\x1f\x8bjunk")
        with self.assertRaisesRegex(rdata.RDataError, "not the index"):
            rdata.read_lazyload(self.stem, "frame")


if __name__ == "__main__":
    unittest.main()
