# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of examples/python in jobs, briefly: each must learn."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import pytest
from processes import Process, tandem_binary

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python"

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (scripts/python-env --torch)", allow_module_level=True)


def run(tmp_path: pathlib.Path, *options: str) -> str:
    """Runs `tandem run OPTIONS` and returns the output."""
    command = [tandem_binary(), "run", "--log-dir", str(tmp_path / "logs"), *options]
    with Process(command, OMP_NUM_THREADS="1") as job:
        assert job.wait() == 0, job.output
        return job.output


def losses(output: str) -> list[float]:
    found = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]
    assert len(found) >= 2, output
    return found


def program(name: str, *arguments: str) -> list[str]:
    return ["--no-python", "--", sys.executable, "-B", str(EXAMPLES / name), *arguments]


def test_the_first_program_learns_and_is_that_of_the_readme(tmp_path):
    output = run(tmp_path, "--ps", "2", "--nproc-per-node", "2", *program("first.py"))
    first, *_, last = losses(output)
    assert last < 0.01 * first, output
    licence, text = (EXAMPLES / "first.py").read_text(encoding="utf-8").split("\n", 1)
    readme = (EXAMPLES.parents[1] / "README.md").read_text(encoding="utf-8")
    assert licence.startswith("# SPDX") and f"```python\n{text}```" in readme


def test_a_dlrm_learns_clicks(tmp_path):
    output = run(tmp_path, "--ps", "2", "--nproc-per-node", "2", *program("hybrid_dlrm.py", "--steps", "150"))
    first, *_, last = losses(output)
    assert last < first, output
    assert float(re.search(r"AUC (\d\.\d+)", output)[1]) > 0.7, output


def test_a_resnet_learns_classes(tmp_path):
    arguments = ("--model", "small", "--images", "256", "--batch", "16", "--epochs", "3")
    output = run(tmp_path, "--nproc-per-node", "2", *program("ddp_resnet.py", *arguments))
    first, *_, last = losses(output)
    assert last < 0.9 * first, output


def test_a_sharded_transformer_learns_text(tmp_path):
    output = run(tmp_path, "--nproc-per-node", "2", *program("fsdp2_transformer.py", "--steps", "30"))
    first, *_, last = losses(output)
    assert last < 0.9 * first, output
    shards = re.findall(r"rank \d holds (\d+) of (\d+) parameters", output)
    assert len(shards) == 2 and sum(int(mine) for mine, _ in shards) == int(shards[0][1]), output


def test_a_pipeline_of_two_ranks_learns_a_function(tmp_path):
    output = run(tmp_path, "--nproc-per-node", "2", *program("pipeline.py", "--steps", "60"))
    first, *_, last = losses(output)
    assert last < 0.7 * first, output


def test_each_example_is_named_in_a_test():
    tests = [path.read_text() for path in pathlib.Path(__file__).parents[1].rglob("test_*.py")]
    assert [path.name for path in EXAMPLES.glob("*.py") if not any(path.name in text for text in tests)] == []
