# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends every wait."""

import contextlib
import os
import signal
import socket
import threading
import time
from typing import Iterator

import numpy as np
import pytest

import tandem
from processes import DEADLINE_S, start_script


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


@pytest.mark.parametrize("what", ["pull_async", "pull", "lookup"])
def test_a_pull_that_waits_until_earlier_ones_have_ended(what):
    with tandem.local(timeout=30, max_bytes_in_flight=1000) as client:
        client.create_table("t", 100, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)
        client.pull("t", [1])
        waits = client.pull_async("t", np.arange(3), step=5)  # for pushes of two workers
        calls = {
            "pull_async": lambda: client.pull_async("t", [1]),
            "pull": lambda: client.pull("t", [1]),
            "lookup": lambda: _lookup(client),
        }
        with interrupted():
            calls[what]()
        client.set_mode("t", "async")  # releases the pull, which close() would wait for
        waits.result(timeout=20)
        assert client.pull("t", [1])[0].shape == (1, 100)


def test_a_push_that_waits_until_earlier_ones_have_ended(servers):
    with tandem.connect(servers=servers.addresses, timeout=30, max_bytes_in_flight=1000) as client:
        client.create_table("t", 100, tandem.optim.SGD(lr=1.0), init=tandem.init.Zeros())
        client.pull("t", [1])
        client.push("t", [1], np.ones((1, 100)))
        with servers.processes[0].stopped():
            first = client.push_async("t", np.arange(3), np.ones((3, 100)))
            with interrupted():
                client.push_async("t", [1], np.ones((1, 100)))
            assert client.step == 2  # the interrupted push is no step
        first.result(timeout=20)
        client.push("t", [1], np.ones((1, 100)))
        assert client.pull("t", [1])[0][0, 0] == -3.0


def _lookup(client: tandem.Client) -> None:
    plan = tandem._load.load_core().make_lookup_plan([("t", 100, [("t", 1, -1)], False)])
    ids = np.arange(3)
    request = tandem._load.load_core().make_lookup_request(plan, [(ids.ctypes.data, 3, 3, 1, 0, 0, 0, True, 0)])
    lookup = tandem._load.load_core().LookupPool().take(plan)
    lookup.prepare(request)
    client._core.start_lookup(0, False, lookup)


def test_connecting_to_a_server_that_hangs(servers):
    with servers.processes[0].stopped(), interrupted():
        tandem.connect(servers=servers.addresses, timeout=30)


_CONNECTS = """
import sys
import tandem

try:
    tandem.connect(timeout=120)
except KeyboardInterrupt:
    sys.exit("interrupted")
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_joining_a_job_whose_store_does_not_answer(tmp_path, sent):
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.settimeout(DEADLINE_S)
        address = f"127.0.0.1:{store.getsockname()[1]}"
        with start_script(tmp_path, _CONNECTS, RANK="0", WORLD_SIZE="1", TANDEM_NUM_PS="1", TANDEM_STORE=address) as process:
            store.accept()  # it joins
            process._process.send_signal(sent)
            status = process.wait(20)
            if sent == signal.SIGTERM:  # Python's own handling
                assert status == -signal.SIGTERM, process.output
            else:
                assert status == 1 and "interrupted" in process.output, process.output
