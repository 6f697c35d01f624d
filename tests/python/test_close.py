# SPDX-License-Identifier: Apache-2.0
"""What closing a client does to calls under way, and what it tells the job."""

import os
import signal
import threading
import time
from typing import Callable

import numpy as np
import pytest
from processes import start_script, wait_until

import tandem
from tandem import errors


def make_waiting_table(client: tandem.Client) -> None:
    """Makes a table of whose pulls of step 1 none returns, because a second worker does not push."""
    client.create_table("t", 2, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)
    client.create_dense("d", 5, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)


def signal_when(condition: Callable[[], bool], number: int) -> None:
    """Sends this process a signal when the condition is true; a thread looks."""

    def send() -> None:
        wait_until(condition, "what the signal follows")
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


class TestCallsUnderWay:
    def test_threads_that_pull_get_an_error_while_the_client_is_closed(self, servers, tmp_path):
        script = f"""
import threading, numpy as np, tandem
for _ in range(20):
    client = tandem.connect(servers={servers.addresses!r}, timeout=20)
    client.create_table("t", 4, tandem.optim.SGD(lr=1.0))
    started = [threading.Event() for _ in range(3)]
    ended = []
    def pull(event):
        ids = np.arange(1000)
        try:
            while True:
                client.pull("t", ids)
                event.set()
        except tandem.errors.CancelledError as error:
            ended.append(str(error))
    threads = [threading.Thread(target=pull, args=(event,)) for event in started]
    for thread in threads: thread.start()
    for event in started: assert event.wait(30)
    client.close()
    for thread in threads: thread.join(30)
    assert len(ended) == 3 and all("closed" in text for text in ended), ended
print("all closed")
"""
        with start_script(tmp_path, script) as process:
            assert process.wait() == 0 and "all closed" in process.output, process.output

    def test_close_waits_for_calls_instead_of_cancelling_them(self):
        client = tandem.local(timeout=1)
        make_waiting_table(client)
        future = client.pull_async("t", [1], step=1)
        client.close()
        assert future.done()
        assert isinstance(future.exception(), errors.DeadlineExceededError)

    def test_close_waits_for_pushes(self, servers):
        client = tandem.connect(servers=servers.addresses, timeout=20)
        client.create_table("t", 64, tandem.optim.SGD(lr=1.0), tandem.init.Zeros())
        ids = np.arange(20_000)
        client.pull("t", ids)
        pushes = [client.push_async("t", ids, np.ones((20_000, 64), np.float32)) for _ in range(3)]
        client.close()
        assert all(push.result(timeout=0) is None for push in pushes)
        with tandem.connect(servers=servers.addresses, timeout=20) as reader:
            assert np.all(reader.pull("t", ids, read_only=True)[0] == -3.0)

    def test_pushes_reach_the_servers_when_the_program_ends_without_close(self, servers, tmp_path):
        script = f"""
import numpy as np, tandem
client = tandem.connect(servers={servers.addresses!r}, timeout=20)
client.create_table("t", 64, tandem.optim.SGD(lr=1.0), tandem.init.Zeros())
ids = np.arange(20_000)
client.pull("t", ids)
for _ in range(3): client.push_async("t", ids, np.ones((20_000, 64), np.float32))
"""
        with start_script(tmp_path, script) as process:
            assert process.wait() == 0, process.output
        with tandem.connect(servers=servers.addresses, timeout=20) as reader:
            assert np.all(reader.pull("t", np.arange(20_000), read_only=True)[0] == -3.0)

    def test_close_waits_for_a_blocking_call_of_another_thread(self):
        client = tandem.local(timeout=1)
        make_waiting_table(client)
        started, seen = threading.Event(), []

        def pull() -> None:
            started.set()
            try:
                client.pull_dense("d", step=1)
            except errors.TandemError as error:
                seen.append(error)

        thread = threading.Thread(target=pull)
        thread.start()
        assert started.wait(10)
        client.close()
        thread.join(10)
        # The thread may have been too late.
        assert len(seen) == 1 and isinstance(seen[0], (errors.DeadlineExceededError, errors.CancelledError))

    def test_ctrl_c_ends_close_and_cancels_the_calls(self):
        client = tandem.local(timeout=30)
        make_waiting_table(client)
        future = client.pull_async("t", [1], step=1)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            signal_when(lambda: client.closed, signal.SIGINT)  # close() waits for the pull
            client.close()
        assert time.monotonic() - began < 10
        assert isinstance(future.exception(timeout=10), errors.CancelledError)
        client.close()

    def test_a_block_that_ends_by_an_exception_does_not_wait(self):
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="boom"):
            with tandem.local(timeout=30) as client:
                make_waiting_table(client)
                future = client.pull_async("t", [1], step=1)
                raise RuntimeError("boom")
        assert time.monotonic() - began < 10
        assert isinstance(future.exception(timeout=10), errors.CancelledError)

    def test_a_signal_handler_may_close_the_client(self):
        with tandem.local(timeout=5) as client:
            make_waiting_table(client)
            before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
            try:
                signal_when(lambda: client.servers()[0]["parked_calls"] > 0, signal.SIGUSR1)
                with pytest.raises(errors.DeadlineExceededError):
                    client.pull("t", [1], step=1)
            finally:
                signal.signal(signal.SIGUSR1, before)
            assert client.closed


class TestWhatTheJobLearns:
    CONNECT = "import sys, tandem\nclient = tandem.connect(timeout=20)\n"

    @pytest.mark.parametrize(
        "end, reason",
        [
            ("raise ValueError('boom')", "ValueError: boom"),
            ("with client: raise ValueError('boom')", "ValueError: boom"),
            ("with client: sys.exit(3)", "SystemExit: 3"),
        ],
    )
    def test_a_worker_that_fails_fails_the_job(self, servers, tmp_path, end, reason):
        with start_script(tmp_path, self.CONNECT + end, **servers.variables()) as worker:
            assert worker.wait() != 0
        servers.processes[0].wait_for_output(f"the job failed: .*worker/0.*{reason}")
        assert servers.processes[0].wait() != 0

    @pytest.mark.parametrize("end", ["client.close()", "with client: pass", "with client: sys.exit(0)"])
    def test_a_worker_that_closes_its_client_leaves_the_job(self, servers, tmp_path, end):
        with start_script(tmp_path, self.CONNECT + end, **servers.variables()) as worker:
            assert worker.wait() == 0, worker.output
            assert "will fail" not in worker.output
        with tandem.connect(servers=servers.addresses, timeout=20) as client:
            assert client.servers()

    def test_a_worker_that_ends_without_close_is_warned_when_nobody_sees_its_exit_status(self, servers, tmp_path):
        with start_script(tmp_path, self.CONNECT, **servers.variables()) as worker:
            assert worker.wait() == 0
            assert "without client.close()" in worker.output
