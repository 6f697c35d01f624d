# SPDX-License-Identifier: Apache-2.0
"""Processes inside and outside of a job that `tandem run` has started."""

import os
import pathlib
import subprocess
import sys

import pytest


def test_a_process_outside_of_the_job_reads_its_tables_and_changes_nothing(tmp_path):
    tandem = os.environ.get("TANDEM_BINARY")
    if not tandem:
        pytest.skip("TANDEM_BINARY does not name the tandem command")
    worker = pathlib.Path(__file__).with_name("job_worker.py")
    command = [os.path.abspath(tandem), "run", "--ps", "2", "--no-python", "--", sys.executable, "-B", str(worker)]
    done = subprocess.run(command, cwd=tmp_path, timeout=120, text=True, capture_output=True)
    assert done.returncode == 0 and "read" in done.stdout + done.stderr, done.stdout + done.stderr
