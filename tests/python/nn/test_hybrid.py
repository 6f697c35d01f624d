# SPDX-License-Identifier: Apache-2.0
"""Hybrid training in a job: tables on two servers, two workers, DDP."""

import pathlib

import pytest
from processes import run_workers

pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")


@pytest.mark.parametrize("replicated", [0, 2])
def test_a_dlrm_in_sync_mode_equals_torch_over_200_steps(tmp_path, replicated):
    output = run_workers(tmp_path, pathlib.Path(__file__).with_name("hybrid_worker.py"), REPLICATED=str(replicated))
    assert "equal after 200 steps" in output, output
