# SPDX-License-Identifier: Apache-2.0
"""Runs the Python blocks of docs/python.md, in order, in one namespace."""

import pathlib
import re

DOC = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_every_block_of_the_page_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        if not block.startswith("# skip"):
            exec(compile(block, str(DOC), "exec"), names)
    names["client"].close()
