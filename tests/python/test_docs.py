# SPDX-License-Identifier: Apache-2.0
"""Runs the Python blocks of docs/python.md, in order, in one namespace.

Blocks that begin with "# 2 ranks" are run by distributed/test_docs_torch.py, and "# train.py" as a job.
"""

import importlib.util
import pathlib
import re

import pytest
from processes import start_job

DOC = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_every_block_of_the_page_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    left_out = 0
    for block in blocks:
        if block.startswith(("# 2 ranks", "# train.py")):
            continue
        # Blocks after the first one with torch use what it made.
        if left_out > 0 or ("import torch" in block and importlib.util.find_spec("torch") is None):
            left_out += 1
        elif not block.startswith("# skip"):
            exec(compile(block, str(DOC), "exec"), names)
    names["client"].close()
    if left_out > 0:
        pytest.skip(f"{left_out} of {len(blocks)} blocks need PyTorch, which is not installed (scripts/python-env --torch)")


def test_the_program_of_the_page_trains_as_a_job(tmp_path):
    [program] = re.findall(r"^```python\n(# train\.py\n.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL)
    with start_job(tmp_path, program, "--ps", "2", "--workers", "4") as job:
        assert job.wait() == 0, job.output
        for rank in range(4):
            assert f"rank {rank} of 4: 100% are right" in job.output, job.output
