# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/python-env, with a python3 that only writes down what it is asked for."""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >> "$CALLS"
if [[ "$1 $2" == "-m venv" ]]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi
if [[ "$*" == *"${SLEEPS_IN:-nothing}"* ]]; then exec sleep 60; fi
if [[ "$1 $2" == "-c import "* && "$2" == *"${CANNOT_IMPORT:-nothing}"* ]]; then exit 1; fi
exit "${RESULT_OF_PYTHON:-0}"
"""


class PythonEnvTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.calls = self.folder / "calls"
        fake = self.folder / "bin" / "python3"
        fake.parent.mkdir()
        fake.write_text(FAKE_PYTHON)
        fake.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{fake.parent}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "TANDEM_PYTHON_ENV": str(self.folder / "env"),
        }

    def run_script(self, *arguments, folder="env", **environment):
        """Runs the script, which is to print the interpreter of `folder`; returns (exit status, the calls of python3 that it made)."""
        self.calls.write_text("")
        done = subprocess.run([ROOT / "scripts" / "python-env", *arguments], env=self.environment | environment,
                              capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            self.assertEqual(done.stdout.strip(), str(self.folder / folder / "bin" / "python"))
        return done.returncode, self.calls.read_text()

    def test_packages_are_installed_once(self):
        status, calls = self.run_script()
        self.assertEqual(status, 0)
        self.assertIn("pip install", calls)
        self.assertIn("nanobind==", calls)
        self.assertEqual(self.run_script(), (0, ""))

    def test_a_raised_version_is_installed(self):
        self.run_script()
        mark = self.folder / "env" / ".tandem-base"
        mark.write_text(mark.read_text().replace("nanobind==", "nanobind==0."))
        self.assertIn("pip install", self.run_script()[1])
        self.assertEqual(self.run_script(), (0, ""))

    def test_a_failed_installation_is_repeated(self):
        self.assertNotEqual(self.run_script(RESULT_OF_PYTHON="1")[0], 0)
        self.assertIn("pip install", self.run_script()[1])

    def test_torch_is_installed_on_request(self):
        self.run_script()
        self.assertIn("torch==", self.run_script("--torch")[1])
        self.assertEqual(self.run_script("--torch"), (0, ""))

    def test_an_installation_that_takes_too_long_is_ended_and_repeated(self):
        self.run_script()
        status, _ = self.run_script("--torch", SLEEPS_IN="torch==", TANDEM_PIP_LIMIT_S="1")
        self.assertNotEqual(status, 0)
        self.assertIn("torch==", self.run_script("--torch")[1])

    def test_packages_that_cannot_be_imported_are_installed_again(self):
        self.run_script()
        self.assertNotEqual(self.run_script("--torch", CANNOT_IMPORT="torch")[0], 0)
        self.assertIn("torch==", self.run_script("--torch")[1])

    def test_a_disk_without_space_is_named_before_anything_is_fetched(self):
        df = self.folder / "bin" / "df"
        df.write_text("#!/bin/sh\necho Avail\necho 1000\n")
        df.chmod(0o755)
        status, calls = self.run_script("--torch")
        self.assertNotEqual(status, 0)
        self.assertNotIn("pip", calls)

    def test_extras_are_in_an_environment_of_their_own(self):
        status, calls = self.run_script("--extras", folder="env-extras")
        self.assertEqual(status, 0)
        self.assertIn("auditwheel", calls)
        self.assertNotIn("auditwheel", self.run_script()[1])


if __name__ == "__main__":
    unittest.main()
