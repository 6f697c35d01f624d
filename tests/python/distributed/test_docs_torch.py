# SPDX-License-Identifier: Apache-2.0
"""Runs the blocks of docs/python.md that begin with "# 2 ranks", in order, on two ranks."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

DOC = pathlib.Path(__file__).resolve().parents[3] / "docs" / "python.md"


@pytest.mark.skipif("TANDEM_BINARY" not in os.environ, reason="TANDEM_BINARY does not name the tandem command")
def test_every_block_about_torch_distributed_runs(tmp_path):
    blocks = re.findall(r"^```python\n(# 2 ranks.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    program = tmp_path / "program.py"
    program.write_text("\n".join(blocks))
    command = [os.environ["TANDEM_BINARY"], "run", "--workers", "2", "--", sys.executable, str(program)]
    result = subprocess.run(command, timeout=200, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
