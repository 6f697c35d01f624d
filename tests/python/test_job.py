# SPDX-License-Identifier: Apache-2.0
"""Processes inside and outside of a job that `tandem run` has started."""

import pathlib

from processes import run_workers


def test_a_process_outside_of_the_job_reads_its_tables_and_changes_nothing(tmp_path):
    assert "read" in run_workers(tmp_path, pathlib.Path(__file__).with_name("job_worker.py"), workers=1)
