# SPDX-License-Identifier: Apache-2.0
"""Processes with remote functions. The tests are skipped where msgpack is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import sys
from typing import Any, Callable, Iterator

import pytest
from processes import Process, tandem_binary

collect_ignore_glob = [] if importlib.util.find_spec("msgpack") else ["test_*.py"]

WORKER = pathlib.Path(__file__).with_name("rpc_worker.py")


@pytest.fixture(scope="session")
def rpc_store() -> Iterator[str]:
    """The address of a store in which processes register."""
    with Process([tandem_binary(), "store"]) as store:
        yield store.wait_for_output(r"(127\.0\.0\.1:\d+)")


@pytest.fixture(scope="session")
def start_worker(rpc_store: str) -> Iterator[Callable[[str], Process]]:
    """Starts further processes that serve the functions of rpc_worker.py."""
    with contextlib.ExitStack() as stack:

        def start(name: str) -> Process:
            process = stack.enter_context(Process([sys.executable, "-B", str(WORKER), name, rpc_store]))
            process.wait_for_output("ready")
            return process

        yield start


@pytest.fixture(scope="session")
def worker(rpc_store: str, start_worker: Callable[[str], Process]) -> Iterator[Any]:
    """tandem.rpc, started in this process as "test", with the process "worker"."""
    from tandem import rpc

    start_worker("worker")
    rpc.start("test", store=rpc_store, wait_for=["worker"], timeout=200, call_timeout=200)  # importing torch takes long on a busy machine
    yield rpc
    rpc.shutdown(graceful=False)
