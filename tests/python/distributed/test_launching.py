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
RPC_PROGRAM = pathlib.Path(__file__).with_name("launched_rpc_program.py")
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


def needs_transport(transport: str) -> None:
    if transport != "default" and transport not in load_core().transports():
        pytest.skip(f"this build lacks the transport {transport}")


def check(output: str, size: int = 2, transport: str = "") -> None:
    found = re.findall(r"rank (\d) of (\d) over (\S+)", output)
    assert sorted(rank for rank, _, _ in found) == [str(rank) for rank in range(size)], output
    assert {number for _, number, _ in found} == {str(size)}, output
    assert not transport or {used for _, _, used in found} == {transport}, output


@needs_tandem
@pytest.mark.parametrize("transport", ["default", "shm", "tcp", "gloo"])
def test_tandem_run_over_every_transport(transport):
    needs_transport(transport)
    output = run([TANDEM, "run", "--workers", "2", "--", sys.executable, "-B", str(PROGRAM), transport])
    check(output, transport="" if transport == "default" else transport)


@needs_tandem
def test_the_default_group_can_be_made_again_at_once(tmp_path):
    program = tmp_path / "again.py"
    program.write_text(
        """
import os, pathlib, sys
import torch, torch.distributed as dist
folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
for i in range(12):
    dist.init_process_group("tandem")
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.eq(2).all()
    # Rank 0 waits for rank 1, which goes on to the next group while rank 0 still serves the store of this one.
    with open(folder / str(i), "w" if rank == 1 else "r") as pipe:
        pipe.write("passed") if rank == 1 else pipe.read()
    dist.destroy_process_group()
os.write(1, b"a rank is done\\n")
"""
    )
    for i in range(12):
        os.mkfifo(tmp_path / str(i))
    output = run([TANDEM, "run", "--workers", "2", "--", sys.executable, "-B", str(program), str(tmp_path)])
    assert output.count("a rank is done") == 2, output


@needs_tandem
def test_torchs_own_checks_of_collectives_are_on():
    command = [TANDEM, "run", "--workers", "2", "--", sys.executable, "-B", str(PROGRAM), "default"]
    output = run(command, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert len(re.findall(r"rank (\d) of 2 over", output)) == 2, output


def test_torchrun():
    command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    check(run([*command, str(PROGRAM), "default"]), size=3)


def test_torchrun_with_each_transport_that_needs_no_launcher():
    command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM)]
    for transport in ("shm", "gloo"):
        if transport in load_core().transports():
            check(run([*command, transport]), transport=transport)


def test_spawn_with_a_file(tmp_path, capfd):
    torch.multiprocessing.spawn(spawned, (2, f"file://{tmp_path}/store"), nprocs=2)
    check(capfd.readouterr().out)


def test_spawn_with_an_address(free_port, capfd):
    torch.multiprocessing.spawn(spawned, (2, f"tcp://127.0.0.1:{free_port}"), nprocs=2)
    check(capfd.readouterr().out)


def mpirun(*arguments: str) -> str:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-B", str(PROGRAM)]
    return run([*command, *arguments], OMPI_MCA_btl_vader_single_copy_mechanism="none")


@needs_mpirun
@pytest.mark.parametrize("transport", ["default", "shm", "gloo", "mpi"])
def test_mpirun_with_a_file(tmp_path, transport):
    needs_transport(transport)
    check(mpirun(transport, f"file://{tmp_path}/store"), transport="" if transport == "default" else transport)


@needs_mpirun
def test_mpirun_with_an_address(free_port):
    check(mpirun("default", f"tcp://127.0.0.1:{free_port}"))


@pytest.mark.parametrize("backend", ["tandem", "gloo"])
def test_remote_functions_under_torchrun(backend):
    pytest.importorskip("msgpack", reason="msgpack is not installed (pip install 'tandem-runtime[rpc]')")
    command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    output = run([*command, str(RPC_PROGRAM), backend])
    for rank in range(2):
        assert f"rank {rank} of 2: worker/{rank} has called worker/{1 - rank}" in output, output
