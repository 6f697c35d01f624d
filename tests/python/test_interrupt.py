# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends every wait."""

import contextlib
import os
import signal
import threading
import time
from typing import Iterator

import numpy as np
import pytest

import tandem


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Expects that the block ends by a Ctrl-C long before its own time limit."""
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        yield
    assert time.monotonic() - began < 10


def test_a_dense_pull():
    with tandem.local(timeout=30) as client:
        client.create_dense("d", 3000, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)
        with interrupted():
            client.pull_dense("d", step=1)
        client.set_mode("d", "async")  # releases the pull, which close() would wait for


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.stats("t"),
        lambda client: client.servers(),
        lambda client: client.create_table("u", 2, tandem.optim.SGD(lr=1.0)),
        lambda client: client.flush("t"),
        lambda client: client.push_dense("d", np.ones(5)),
        lambda client: client.push("t", [1], np.ones((1, 2))),  # waits for its push epoch
    ],
    ids=["stats", "servers", "create_table", "flush", "push_dense", "push"],
)
def test_a_call_to_a_server_that_hangs(servers, call):
    with tandem.connect(servers=servers.addresses, timeout=30) as client:
        client.create_table("t", 2, tandem.optim.SGD(lr=1.0))
        client.create_dense("d", 5, tandem.optim.SGD(lr=1.0))
        with servers.processes[0].stopped(), interrupted():
            call(client)
        assert client.stats("t")["rows"] == 0


def test_connecting_to_a_server_that_hangs(servers):
    with servers.processes[0].stopped(), interrupted():
        tandem.connect(servers=servers.addresses, timeout=30)
