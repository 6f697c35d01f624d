# SPDX-License-Identifier: Apache-2.0
"""Calls of remote functions: arguments, results, errors, time-outs, futures."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest
from processes import wait_until

import tandem
from tandem import rpc
from tandem.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
)


@rpc.function
def subtract(a: int, b: int) -> int:
    return a - b


def test_a_function_of_another_process_is_called_by_name(worker):
    assert worker.call("worker", "add", 2, 3) == 5
    assert worker.call("worker", "add", a="x", b="y") == "xy"
    assert worker.call("worker", "who calls") == "test"


def test_a_registered_function_names_itself_and_this_process_can_call_itself(worker):
    assert subtract(5, 3) == 2
    assert worker.call("test", subtract, 5, b=3) == 2
    with pytest.raises(UnimplementedError, match="there is no such function; there is .*add_to, batch_fails"):
        worker.call("worker", subtract, 5, 3)


def test_calls_come_back_from_the_function_of_another_process(worker):
    assert worker.call("worker", "relay", "test", "subtract", 1, 2) == -1


def test_many_threads_call_at_the_same_time(worker):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda i: worker.call("worker", "add", i, i), range(400))
        assert list(results) == [2 * i for i in range(400)]


@pytest.mark.parametrize("to", ["worker", "test"])
def test_futures_are_waited_for_awaited_and_have_callbacks(worker, to):
    name = "add" if to == "worker" else "subtract"
    expected = [i + 1 if to == "worker" else i - 1 for i in range(20)]
    futures = [worker.call_async(to, name, i, 1) for i in range(20)]
    assert [future.result() for future in futures] == expected
    assert futures[0].done() and futures[0].result() == expected[0]

    async def gather() -> list[int]:
        return await asyncio.gather(*(worker.call_async(to, name, i, 1) for i in range(20)))

    assert asyncio.run(gather()) == expected
    seen: concurrent.futures.Future[int] = concurrent.futures.Future()
    worker.call_async(to, name, 7, 1).add_done_callback(lambda future: seen.set_result(future.result()))
    assert seen.result() == expected[7]


def test_an_exception_keeps_its_type_text_and_traceback(worker):
    with pytest.raises(ValueError, match="worker: fail: ValueError: -4 is negative") as caught:
        worker.call("worker", "fail", "ValueError", "-4 is negative")
    assert isinstance(caught.value, rpc.RemoteError) and isinstance(caught.value, tandem.TandemError)
    assert caught.value.type_name == "ValueError"
    assert "in fail" in caught.value.remote_traceback and "rpc_worker.py" in caught.value.remote_traceback
    with pytest.raises(ZeroDivisionError):
        worker.call("worker", "fail", "ZeroDivisionError", "")


def test_an_exception_of_a_third_process_keeps_its_type(worker):
    with pytest.raises(KeyError, match="worker: relay: KeyError: worker: fail: KeyError: 'x'") as caught:
        worker.call("worker", "relay", "worker", "fail", "KeyError", "x")
    assert caught.value.type_name == "KeyError"
    with pytest.raises(UnimplementedError, match="worker: relay: worker: nonsense: there is no such function"):
        worker.call("worker", "relay", "worker", "nonsense")


@pytest.mark.parametrize("kind", ["Strange", "KeyboardInterrupt", "SystemExit", "UnicodeDecodeError"])
def test_an_exception_that_cannot_be_made_here_is_a_remote_error(worker, kind):
    with pytest.raises(rpc.RemoteError) as caught:
        worker.call("worker", "fail", kind, "text")
    # UnicodeDecodeError takes five arguments, so making it raises a TypeError there.
    assert caught.value.type_name == ("TypeError" if kind == "UnicodeDecodeError" else kind)
    assert worker.call("worker", "add", 1, 1) == 2


def test_a_wrong_number_of_arguments_is_the_functions_type_error(worker):
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        worker.call("worker", "add", 1)


def test_a_call_ends_at_its_timeout_and_the_function_sees_it(worker):
    before = worker.call("worker", "counts")["cancelled"]
    with pytest.raises(DeadlineExceededError, match="worker: block"):
        worker.call("worker", "block", timeout=3)  # in which a busy machine starts the function
    wait_until(lambda: worker.call("worker", "counts")["cancelled"] == before + 1, "the end of the function")


def test_a_cancelled_call_ends_and_the_function_sees_it(worker):
    before = worker.call("worker", "counts")["cancelled"]
    future = worker.call_async("worker", "block")
    wait_until(lambda: worker.call("worker", "counts")["running"] == 1, "the start of the function")
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    assert not future.done()
    future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    assert isinstance(future.exception(), CancelledError)
    wait_until(lambda: worker.call("worker", "counts")["cancelled"] == before + 1, "the end of the function")


def test_a_process_that_is_not_there_is_named(worker):
    with pytest.raises(DeadlineExceededError, match="nobody.*has not registered within.*test, worker"):
        worker.call("nobody", "add", 1, 2, timeout=0.2)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_must_be_a_positive_number(worker, timeout):
    with pytest.raises(InvalidArgumentError, match="timeout is"):
        worker.call("worker", "add", 1, 2, timeout=timeout)


def test_what_is_not_registered_is_refused(worker):
    with pytest.raises(InvalidArgumentError, match="not registered; decorate it"):
        worker.call("worker", len, [])
    with pytest.raises(InvalidArgumentError, match="coroutine"):

        @rpc.function
        async def later() -> None: ...

    with pytest.raises(AlreadyExistsError, match="'subtract' is registered already"):
        rpc.function(name="subtract")(test_what_is_not_registered_is_refused)
    with pytest.raises(InvalidArgumentError, match="must have 1 to 256"):
        rpc.function(name="tandem.x")(subtract)
    with pytest.raises(InvalidArgumentError, match="max_batch is 0"):
        rpc.function(name="b", batched=True, max_batch=0)(subtract)


def test_the_state_is_checked(worker, rpc_store):
    with pytest.raises(FailedPreconditionError, match="started already, as test"):
        worker.start("other", store=rpc_store)
    with pytest.raises(FailedPreconditionError, match="runs no remote function"):
        worker.current()
    assert worker.name() == "test"
    assert set(worker.workers()) >= {"test", "worker"}
