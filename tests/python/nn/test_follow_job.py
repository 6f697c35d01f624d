# SPDX-License-Identifier: Apache-2.0
"""Tables that follow an optimizer in a job of two workers: DistributedDataParallel, FSDP, ZeroRedundancyOptimizer, Join."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.parametrize(
    "programs",
    [
        "ddp no_sync clip_norm scaler an_overflow_of_a_table_on_one_rank frozen static_graph",
        "clip_norm_by_hand clip_norm_of_rows_that_one_rank_has scaler_of_rows_that_one_rank_has",
        "compiled_ddp ddp_of_compiled zero_redundancy zero_redundancy_of_the_dense_part",
        "fsdp2 fsdp1 join_of_ddp join_of_both join_of_tables",
    ],
)
def test_programs_of_two_workers_give_what_they_give_with_torch(tmp_path, programs):
    tandem = os.environ.get("TANDEM_BINARY")
    if not tandem:
        pytest.skip("TANDEM_BINARY does not name the tandem command")
    command = [os.path.abspath(tandem), "run", "--ps", "2", "--nproc-per-node", "2", "--no-python", "--", sys.executable, "-B"]
    done = subprocess.run(
        [*command, str(HERE / "follow_worker.py"), *programs.split()], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=220, text=True, capture_output=True,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    for program in programs.split():
        assert output.count(f": {program} is equal") == 2, output
