# SPDX-License-Identifier: Apache-2.0
"""Tables that follow an optimizer in a job of two workers: DistributedDataParallel, FSDP, ZeroRedundancyOptimizer, Join."""

import pathlib

import pytest
from processes import run_workers

pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")


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
    output = run_workers(tmp_path, pathlib.Path(__file__).with_name("follow_worker.py"), *programs.split())
    for program in programs.split():
        assert output.count(f": {program} is equal") == 2, output
