# SPDX-License-Identifier: Apache-2.0
"""Runs functions on the ranks of a group. The tests are skipped where PyTorch is not installed."""

from __future__ import annotations

import importlib.util
import os
from typing import Iterator

import pytest
from rank_pool import Pool

from tandem._load import load_core

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


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
