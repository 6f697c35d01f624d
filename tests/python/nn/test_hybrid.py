# SPDX-License-Identifier: Apache-2.0
"""Hybrid training in a job: tables on two servers, two workers, DDP."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.parametrize("replicated", [0, 2])
def test_a_dlrm_in_sync_mode_equals_torch_over_200_steps(tmp_path, replicated):
    tandem = os.environ.get("TANDEM_BINARY")
    if not tandem:
        pytest.skip("TANDEM_BINARY does not name the tandem command")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "REPLICATED": str(replicated)}
    command = [os.path.abspath(tandem), "run", "--ps", "2", "--nproc-per-node", "2", "--no-python", "--", sys.executable, "-B"]
    done = subprocess.run(
        [*command, str(HERE / "hybrid_worker.py")], cwd=tmp_path, env=environment, timeout=200, text=True, capture_output=True
    )
    assert done.returncode == 0 and "equal after 200 steps" in done.stdout + done.stderr, done.stdout + done.stderr
