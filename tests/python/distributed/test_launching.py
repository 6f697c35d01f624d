# SPDX-License-Identifier: Apache-2.0
"""The same program under every launcher, with every way to meet, over every transport."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch.multiprocessing
from launched_program import spawned

from tandem._load import load_core

PROGRAM = pathlib.Path(__file__).with_name("launched_program.py")
TIMEOUT = 200.0
TANDEM = os.environ.get("TANDEM_BINARY", "")
needs_tandem = pytest.mark.skipif(not TANDEM, reason="TANDEM_BINARY does not name the tandem command")
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")


def run(command: list[str], **variables: str) -> str:
    """Runs a program and returns its output."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "TANDEM_STORE", "MASTER_ADDR", "MASTER_PORT")}
    result = subprocess.run(
        command, timeout=TIMEOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**inherited, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    return result.stdout


def check(output: str, size: int = 2, transport: str = "") -> None:
    found = re.findall(r"rank (\d) of (\d) over (\S+)", output)
    assert sorted(rank for rank, _, _ in found) == [str(rank) for rank in range(size)], output
    assert {number for _, number, _ in found} == {str(size)}, output
    assert not transport or {used for _, _, used in found} == {transport}, output


@needs_tandem
@pytest.mark.parametrize("transport", ["default", "shm", "tcp", "gloo"])
def test_tandem_run_over_every_transport(transport):
    if transport != "default" and transport not in load_core().transports():
        pytest.skip(f"this build lacks the transport {transport}")
    output = run([TANDEM, "run", "--workers", "2", "--", sys.executable, "-B", str(PROGRAM), transport])
    check(output, transport="" if transport == "default" else transport)


@needs_tandem
def test_torchs_own_checks_of_collectives_are_on():
    command = [TANDEM, "run", "--workers", "2", "--", sys.executable, "-B", str(PROGRAM), "default"]
    output = run(command, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert len(re.findall(r"rank (\d) of 2 over", output)) == 2, output


def test_torchrun():
    command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    check(run([*command, str(PROGRAM), "default"]), size=3)


def test_spawn_with_a_file(tmp_path, capfd):
    torch.multiprocessing.spawn(spawned, (2, f"file://{tmp_path}/store"), nprocs=2)
    check(capfd.readouterr().out)


@needs_mpirun
def test_mpirun(tmp_path):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-B", str(PROGRAM), "default"]
    check(run([*command, f"file://{tmp_path}/store"], OMPI_MCA_btl_vader_single_copy_mechanism="none"))
