# SPDX-License-Identifier: Apache-2.0
"""Runs the blocks of docs/python_rpc.md, in order, as a job of two workers."""

import pathlib
import re

from processes import start_job

DOC = pathlib.Path(__file__).resolve().parents[3] / "docs" / "python_rpc.md"


def test_every_block_of_the_page_runs(tmp_path):
    blocks = re.findall(r"^```python\n(# 2 workers.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(re.findall(r"^```python", DOC.read_text(), re.MULTILINE)) >= 4
    with start_job(tmp_path, "\n".join(blocks), "--workers", "2") as job:
        assert job.wait() == 0, job.output
    for line in ["[0 2 4]", "42", "[3. 3.]", "8", "16", "[2. 2. 2.]"]:
        assert line in job.output, job.output
