# SPDX-License-Identifier: Apache-2.0
"""Every wait ends by its deadline, which says why, by Ctrl-C, and by close(); forked children are refused."""

import contextlib
import os
import pickle
import signal
import threading
import time
from typing import Iterator

import pytest
from processes import interrupt_when, wait_until

import tandem
from tandem import replay


@pytest.fixture
def client() -> Iterator[replay.Client]:
    tables = [replay.Table.queue("full", 1), replay.Table.uniform("empty", 10), replay.Table.paced_queue("paced", 1, 0)]
    with replay.local(tables, timeout=60) as client:
        with client.writer(chunk_steps=1) as writer:
            writer.append({"x": 0})
            writer.create_item("full", writer.last(1))
        yield client


def write(client: replay.Client, **options: float) -> None:
    writer = client.writer(chunk_steps=1)
    writer.append({"x": 1})
    writer.create_item("full", writer.last(1), **options)


def append(client: replay.Client, **options: float) -> None:
    writer = client.writer(chunk_steps=2)
    writer.append({"x": 1})
    writer.create_item("full", writer.last(1))
    # Items of the newest step may follow, so the append after the one that completes the chunk delivers.
    writer.append({"x": 2}, **options)
    writer.append({"x": 3}, **options)


def flush(client: replay.Client, **options: float) -> None:
    writer = client.writer()
    writer.append({"x": 1})
    writer.create_item("full", writer.last(1))
    writer.flush(**options)


WAITS = {
    "create_item": (write, "takes no inserts.*max_diff 1"),
    "append": (append, "takes no inserts.*max_diff 1"),
    "flush": (flush, "takes no inserts.*max_diff 1"),
    "sample": (lambda client, **options: client.sample("empty", **options), "gives no sample.*0 items"),
    "sampler": (lambda client, **options: client.sampler("empty").next(**options), "gives no sample.*0 items"),
    "admit": (lambda client, **options: client.admit("paced", **options), "admits no|no rollout|not admitted"),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_deadline_ends_the_wait_and_says_why(client, name):
    call, text = WAITS[name]
    for timeout in (0, 0.2):
        began = time.monotonic()
        with pytest.raises(tandem.errors.DeadlineExceededError, match=text):
            call(client, timeout=timeout)
        assert time.monotonic() - began < 30  # not the client's 60 s
    assert client.info("full")["items"] == 1


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_the_wait(client, name):
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        WAITS[name][0](client)
    assert time.monotonic() - began < 30
    assert client.info("full")["items"] == 1  # the client goes on


@pytest.mark.parametrize("name", WAITS)
def test_close_ends_the_wait_of_another_thread(client, name):
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            WAITS[name][0](client)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()

    def waits() -> bool:
        waiting = (client.info("full")["waiting_inserts"], client.info("empty")["waiting_samples"], client.info("paced")["staleness"]["waiting_admits"])
        return any(waiting)

    wait_until(waits, "the call that waits")
    client.close()
    thread.join(30)
    assert not thread.is_alive() and isinstance(errors[0], tandem.errors.CancelledError) and "closed" in str(errors[0])


def test_ctrl_c_keeps_no_items_from_the_next_sample(client):
    client.create_table(replay.Table.queue("items", 10))
    with pytest.raises(KeyboardInterrupt):
        interrupt_when(lambda: client.info("items")["waiting_samples"] > 0, "the sample that waits")
        client.sample("items")
    with client.writer() as writer:
        writer.append({"x": 7})
        writer.create_item("items", writer.last(1))
    assert client.sample("items", timeout=30)["x"].tolist() == [[7]]


def test_ctrl_c_keeps_no_tickets_from_the_next_actor(client):
    with pytest.raises(KeyboardInterrupt):
        interrupt_when(lambda: client.info("paced")["staleness"]["waiting_admits"] > 0, "the actor that waits")
        client.admit("paced", actor="a")
    client.commit("paced", 1)
    assert len(client.admit("paced", actor="b", timeout=20)) == 1  # less than a lease


def test_close_ends_the_next_of_a_sampler_in_another_thread(client):
    sampler = client.sampler("empty")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            sampler.next(timeout=120)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: client.info("empty")["waiting_samples"] > 0, "the sample that waits")
    sampler.close()
    thread.join(30)
    assert not thread.is_alive() and isinstance(errors[0], tandem.errors.CancelledError)


def test_after_ctrl_c_the_writer_delivers_what_remains(client):
    writer = client.writer(chunk_steps=1)
    writer.append({"x": 5})
    with pytest.raises(KeyboardInterrupt):
        interrupt_when(lambda: client.info("full")["waiting_inserts"] > 0, "the insert that waits")
        writer.create_item("full", writer.last(1))
    assert client.sample("full")["x"].tolist() == [[0]]
    writer.flush()
    assert writer.pending_items == 0 and client.sample("full")["x"].tolist() == [[5]]


def test_items_wait_for_delivery_up_to_a_limit(client):
    writer = client.writer(chunk_steps=8, max_pending_items=2)
    writer.append({"x": 1})
    writer.create_item("empty", writer.last(1))
    writer.create_item("empty", writer.last(1))
    with pytest.raises(tandem.errors.ResourceExhaustedError, match="call Flush, or lower chunk_steps"):
        writer.create_item("empty", writer.last(1))
    writer.flush()
    writer.create_item("empty", writer.last(1))
    writer.flush()
    assert client.info("empty")["items"] == 3


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_a_wrong_time_limit_is_refused(client, timeout):
    with pytest.raises(ValueError, match="timeout is"):
        client.sample("empty", timeout=timeout)


def test_a_closed_client_refuses_everything(client):
    writer, sampler = client.writer(), client.sampler("empty")
    writer.append({"x": 1})
    window = writer.last(1)
    fresh = client.writer()
    for _ in range(2):
        client.close()
    calls = [
        lambda: client.sample("empty"), lambda: client.info("empty"), lambda: client.create_table(replay.Table.queue("a", 1)),
        lambda: client.update_priorities("empty", [1], [1.0]), lambda: client.commit("empty", 1), lambda: client.admit("paced"),
        lambda: writer.append({"x": 1}), lambda: writer.create_item("empty", window), lambda: writer.flush(), lambda: writer.last(1),
        lambda: sampler.next(), lambda: client.sampler("empty"), lambda: fresh.append({"x": 1}), lambda: client.writer(columns={"x": "f32"}),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(tandem.errors.CancelledError, match="closed"):
            call()
    assert client.closed and writer.closed


def test_a_closed_writer_and_sampler_refuse_calls(client):
    writer, sampler = client.writer(), client.sampler("empty")
    writer.append({"x": 1})
    writer.close()
    sampler.close()
    for call in (lambda: writer.append({"x": 1}), lambda: writer.flush(), lambda: writer.last(1), lambda: sampler.next()):
        with pytest.raises(tandem.errors.CancelledError, match="closed"):
            call()


def test_objects_cannot_be_pickled(client):
    for value in (client, client.writer()):
        with pytest.raises(TypeError, match="in the process that uses it"):
            pickle.dumps(value)


def in_child(body) -> str:
    """Runs `body` in a forked child and returns what it returns."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "nothing"
        with contextlib.suppress(BaseException):
            text = body()
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(client):
    writer, sampler = client.writer(), client.sampler("empty")
    writer.append({"x": 1})
    writer.create_item("empty", writer.last(1))
    calls = [lambda: client.sample("empty"), lambda: writer.append({"x": 1}), lambda: writer.flush(), lambda: sampler.next(), lambda: client.info("empty")]

    def child() -> str:
        refused = 0
        for call in calls:
            try:
                call()
            except tandem.errors.FailedPreconditionError as error:
                refused += "forked" in str(error)
        sampler.close()
        writer.close()
        client.close()
        return f"{refused} refused"

    assert in_child(child) == f"{len(calls)} refused"
    writer.flush()
    assert sampler.next()["x"].tolist() == [[1]]
