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

    def run_script(self, *arguments, **environment):
        """Runs the script; returns (exit status, the calls of python3 that it made)."""
        self.calls.write_text("")
        done = subprocess.run([ROOT / "scripts" / "python-env", *arguments], env=self.environment | environment,
                              capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            self.assertEqual(done.stdout.strip(), str(self.folder / "env" / "bin" / "python"))
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


if __name__ == "__main__":
    unittest.main()
