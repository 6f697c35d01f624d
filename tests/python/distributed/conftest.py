# SPDX-License-Identifier: Apache-2.0
"""Runs functions on the ranks of a group. The tests are skipped where PyTorch is not installed."""

from __future__ import annotations

import importlib.util
import os
import socket
from typing import Iterator

import pytest
from rank_pool import Pool

from tandem._load import load_core

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]

# Tests by what they need of torch 2.15. The others run with torch 2.11 as well (docs/python.md).
_NEED_TORCH_2_15 = {
    "the entry point torch.distributed.backends": (
        "test_every_block_about_torch_distributed_runs", "test_the_entry_point_needs_no_import_and_a_group_can_be_made_again",
        "test_tandem_run_starts_ranks_that_meet_by_env", "test_remote_functions_under_torchrun",
    ),
    "backends written in Python": (
        "a_group_with_another_backend_for_gpus_carries_cpu_tensors", "a_group_splits", "the_profiler_sees_collectives",
        "a_monitored_barrier_names_who_is_absent_and_leaves_the_group_usable",
    ),
    "quantization hooks that accept a list of tensors": ("ddp_with_hooks_that_chain_operations",),
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        import torch
    except ImportError:
        return
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15):
        return
    for item in items:
        for needed, names in _NEED_TORCH_2_15.items():
            if any(name in item.name for name in names):
                item.add_marker(pytest.mark.skip(reason=f"needs {needed}, of torch 2.15"))


def pytest_report_header() -> str:
    return "" if importlib.util.find_spec("torch") else "tests/python/distributed: skipped, because PyTorch is not installed"


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    pool = Pool(tmp_path_factory)
    yield pool
    pool.stop()


@pytest.fixture
def network_transport() -> str:
    """The transport between hosts."""
    return next(name for name in load_core().transports() if name not in ("auto", "shm", "mpi") and "+" not in name)


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port at which a rank can listen. Until then no other process gets it: a socket is bound to it that does not listen."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("0.0.0.0", 0))  # torch's store listens at all interfaces
        yield reserved.getsockname()[1]
