# SPDX-License-Identifier: Apache-2.0
"""Runs the Python blocks of docs/python_rl.md, in order, in one namespace; the block that begins with "# job.py" as a job."""

import pathlib
import re
import sys

from processes import Process, tandem_binary


DOC = pathlib.Path(__file__).resolve().parents[3] / "docs" / "python_rl.md"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL)


def test_every_block_of_the_page_runs(capsys):
    names: dict[str, object] = {}
    for block in blocks():
        if not block.startswith("# job.py"):
            exec(compile(block, str(DOC), "exec"), names)
    for name in ("client", "remote", "store", "server"):
        getattr(names[name], "stop" if name == "server" else "close")()
    output = capsys.readouterr().out
    for line in ["(32, 1, 4)", "['unrolls']", "(4, 1, 3) dict_keys(['image', 'pose'])", "[0 1] [1, 1]", "[0 0]", "1 (2, 4)", "table 'paced' gives no"]:
        assert line in output, output


def test_the_program_of_the_page_runs_as_a_job(tmp_path):
    [program] = [block for block in blocks() if block.startswith("# job.py")]
    (tmp_path / "job.py").write_text(program)
    command = [tandem_binary(), "run", "--log-dir", str(tmp_path / "logs"), "--learners", "1", "--replay", "1", "--actors", "2"]
    with Process([*command, "--", sys.executable, "-B", str(tmp_path / "job.py")]) as job:
        assert job.wait() == 0, job.output
        assert "learned from [[[1.0, 2.0]]]" in job.output, job.output
