# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/insteval.py with a tiny package made here; nothing is downloaded."""

import contextlib
import io
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

import insteval
import r_writer as r

CSV = "s,d,studage,lectage,service,dept,y\n1,20,2,1,0,15,5\n1,10,2,1,1,2,1\n2,20,4,6,0,2,3\n"


def small_data_set(ratings=(5, 1, 3)):
    return r.data_frame({
        "s": r.factor(["1", "1", "2"], ["1", "2"]),
        "d": r.factor(["20", "10", "20"], ["10", "20"]),
        "studage": r.factor(["2", "2", "4"], ["2", "4"]),
        "lectage": r.factor(["1", "1", "6"], ["1", "6"]),
        "service": r.factor(["0", "1", "0"], ["0", "1"]),
        "dept": r.factor(["15", "2", "2"], ["15", "2"]),
        "y": r.integers(list(ratings))})


def package(directory, frame):
    root = directory / "package"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN" / "control").write_text(
        "Package: r-cran-lme4\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n")
    copyright_file = root / insteval.COPYRIGHT
    copyright_file.parent.mkdir(parents=True)
    copyright_file.write_text("License: GPL\n")
    database = root / insteval.DATABASE
    database.parent.mkdir(parents=True)
    r.write_lazyload(database, {"InstEval": frame})
    subprocess.run(["dpkg-deb", "--build", root, directory / "small.deb"], check=True,
                   stdout=subprocess.DEVNULL)
    return directory / "small.deb"


class InstEvalTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.out = self.directory / "cache" / "insteval.csv"
        patch = mock.patch.multiple(insteval, ROWS=3, STUDENTS=2, LECTURERS=2)
        patch.start()
        self.addCleanup(patch.stop)

    def run_main(self, *arguments):
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(self.stdout), contextlib.redirect_stderr(self.stderr):
            return insteval.main(["--out", str(self.out), *map(str, arguments)])

    def test_the_csv_has_a_header_labels_and_the_licence_beside_it(self):
        self.assertEqual(self.run_main("--deb", package(self.directory, small_data_set())), 0)
        self.assertEqual(self.out.read_text(), CSV)
        self.assertEqual(self.out.with_suffix(".LICENSE").read_text(), "License: GPL\n")
        self.assertEqual(self.stdout.getvalue(), f"{self.out}\n")
        self.assertEqual(len(list(self.out.parent.iterdir())), 2, "a temporary file was left")

    def test_a_complete_file_is_used_as_it_is(self):
        self.out.parent.mkdir()
        self.out.write_text(CSV)
        with mock.patch.object(insteval, "download", side_effect=AssertionError):
            self.assertEqual(self.run_main(), 0)

    def test_an_incomplete_file_is_made_anew(self):
        self.out.parent.mkdir()
        self.out.write_text(CSV[:-12])
        self.assertEqual(self.run_main("--deb", package(self.directory, small_data_set())), 0)
        self.assertEqual(self.out.read_text(), CSV)

    def test_other_data_is_refused_and_nothing_written(self):
        self.assertEqual(self.run_main("--deb", package(self.directory, small_data_set((9, 1, 3)))),
                         1)
        self.assertIn("1 to 5 expected", self.stderr.getvalue())
        self.assertFalse(self.out.exists())

    def test_a_missing_package_file_is_named(self):
        self.assertEqual(self.run_main("--deb", self.directory / "none.deb"), 1)
        self.assertIn("none.deb", self.stderr.getvalue())

    def test_a_download_that_fails_says_what_to_do(self):
        with mock.patch.object(insteval, "_run", return_value="E: Temporary failure resolving"):
            self.assertEqual(self.run_main(), 1)
        self.assertIn("Temporary failure resolving", self.stderr.getvalue())
        self.assertIn("--deb FILE", self.stderr.getvalue())


if __name__ == "__main__":
    unittest.main()
