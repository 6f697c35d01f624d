# SPDX-License-Identifier: Apache-2.0
"""Futures: callbacks, time limits, forks."""

import logging
import os
import queue
import threading

import numpy as np
import pytest

import tandem
from tandem import errors


def make(client: tandem.Client) -> None:
    client.create_table("t", 2, tandem.optim.SGD(lr=1.0), tandem.init.Zeros())


class TestCallbacks:
    def test_an_exception_in_one_callback_is_logged_and_the_others_run(self, client, caplog):
        make(client)
        futures = [client.pull_async("t", [i]) for i in range(50)]
        ran = threading.Semaphore(0)

        def fail(_: object) -> None:
            raise ValueError("boom")

        with caplog.at_level(logging.ERROR, "tandem"):
            for future in futures:
                future.add_done_callback(fail)
                future.add_done_callback(lambda _: ran.release())
            for _ in futures:
                assert ran.acquire(timeout=30)
        assert sum("boom" in str(record.exc_info) for record in caplog.records) == 50
        futures[0].add_done_callback(lambda _: ran.release())  # the future still works
        assert ran.acquire(timeout=30)

    def test_all_clients_of_a_process_share_one_thread(self):
        def threads() -> int:
            return sum(thread.name == "tandem-completer" for thread in threading.enumerate())

        for _ in range(5):
            with tandem.local() as client:
                make(client)
                called = threading.Event()
                client.pull_async("t", [1]).add_done_callback(lambda _: called.set())
                assert called.wait(30)
        assert threads() == 1


class TestCallbacksThatWait:
    def test_a_callback_may_wait_for_a_call_that_ends_later(self, client):
        make(client)
        results = queue.SimpleQueue()

        def pull_again(depth: int, future: "tandem.Future") -> None:
            if depth == 0:
                results.put(future.result()[0].tolist())
                return
            ended = threading.Event()
            inner = client.pull_async("t", [depth])
            inner.add_done_callback(lambda f: (pull_again(depth - 1, f), ended.set()))
            rows, _ = client.pull_async("t", [depth]).result(timeout=30)
            results.put(rows.tolist())

        for _ in range(20):
            client.pull_async("t", [9]).add_done_callback(lambda f: pull_again(3, f))
        for _ in range(20 * 4):
            assert results.get(timeout=30) == [[0.0, 0.0]]

    def test_callbacks_that_do_not_wait_run_one_after_the_other(self, client):
        make(client)
        inside, worst, ran = 0, 0, threading.Semaphore(0)

        def enter(_: object) -> None:
            nonlocal inside, worst
            inside += 1
            worst = max(worst, inside)
            for _ in range(1000):
                pass
            inside -= 1
            ran.release()

        for i in range(200):
            client.pull_async("t", [i]).add_done_callback(enter)
        for _ in range(200):
            assert ran.acquire(timeout=30)
        assert worst == 1


class TestTimeLimits:
    @pytest.fixture
    def waiting(self):
        with tandem.local(timeout=30) as client:
            client.create_table("t", 2, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)
            yield client.pull_async("t", [1], step=1)
            client.set_mode("t", "async")  # releases the pull

    @pytest.mark.parametrize("seconds", [0, -1, -1.0, -1e9])
    def test_no_time_means_no_wait(self, waiting, seconds):
        for wait in (waiting.result, waiting.exception):
            with pytest.raises(TimeoutError) as raised:
                wait(timeout=seconds)
            assert raised.type is TimeoutError  # also in Python 3.10, where concurrent.futures has its own

    def test_nan_is_refused(self, waiting):
        with pytest.raises(ValueError, match="timeout is NaN"):
            waiting.result(timeout=float("nan"))


class TestForks:
    def test_a_forked_child_gets_an_error_for_a_future_of_its_parent(self):
        with tandem.local(timeout=30) as client:
            client.create_table("t", 2, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)
            future = client.pull_async("t", [1], step=1)
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                texts = []
                try:
                    for use in (future.result, future.exception, future.done, lambda: future.add_done_callback(print)):
                        try:
                            use()
                        except errors.FailedPreconditionError as error:
                            texts.append("forked" if "forked after the call" in str(error) else str(error))
                finally:
                    os.write(write, ",".join(texts).encode())
                    os._exit(0)
            os.close(write)
            assert os.read(read, 1000) == b"forked,forked,forked,forked"
            os.close(read)
            os.waitpid(child, 0)
            client.set_mode("t", "async")
            assert np.all(np.isfinite(future.result(timeout=30)[0]))
