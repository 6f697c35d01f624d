# SPDX-License-Identifier: Apache-2.0
"""Versions of weights: published as a whole, pulled by readers that wait, refused to publishers that were replaced."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import threading
import time

import numpy as np
import pytest
from processes import Process, tandem_binary, wait_until

import tandem
from tandem import weights


@pytest.fixture
def client():
    with weights.local(timeout=30) as client:
        yield client


def test_a_version_comes_back_with_its_values(client):
    values = {"layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "layer.bias": np.float32(2.5), "empty": np.zeros((0, 3), np.float32)}
    assert client.head("policy") is None and client.newer("policy", timeout=0) is None
    publisher = client.publisher("policy", name="learner/0")
    assert publisher.publish(values, step=7, items_consumed=12) == 1
    model = client.newer("policy")
    assert (model.name, model.step, model.items_consumed, model.last, model.publisher) == ("policy", 7, 12, False, "learner/0")
    assert model.version == publisher.version == client.head("policy") and model.version.number == 1
    assert list(model.tensors) == list(values)
    for name, value in values.items():
        np.testing.assert_array_equal(model[name], value)
        assert model[name].dtype == np.float32 and not model[name].flags.writeable
    with pytest.raises(LookupError, match="it has layer.weight"):
        model["other"]
    assert client.newer("policy", model, timeout=0) is None
    publisher.publish({"w": [1.0]}, last=True)
    later = client.newer("policy", model)
    assert later.last and later.version > model.version and later.version.epoch == model.version.epoch
    assert model["layer.bias"] == 2.5  # a reader keeps what it has
    assert [state["model"] for state in client.models()] == ["policy"] and client.models()[0]["kept"] == [1, 2]


def test_values_that_float32_has_are_converted_and_others_refused(client):
    publisher = client.publisher("policy")
    publisher.publish({"large": np.array([1 << 53, -(1 << 63)]), "f16": np.float16(0.1), "i64": np.array([3, -4]), "u8": np.uint8(255), "b": np.array([True]), "f64": np.array([0.5, np.nan, np.inf])})
    model = client.newer("policy")
    assert model["f16"] == np.float32(np.float16(0.1)) and model["i64"].tolist() == [3, -4] and model["b"].tolist() == [1.0]
    assert np.isnan(model["f64"][1]) and np.isinf(model["f64"][2])
    for wrong in (np.array([0.1]), np.array([(1 << 24) + 1]), np.array([(1 << 53) + 1]), np.array([2**63 - 1]), np.array([2**64 - 1], np.uint64), np.array([1e300]), np.array(["x"]), np.array([1j])):
        with pytest.raises(ValueError, match="tensor 'w'.*float32"):
            publisher.publish({"w": wrong})
    with pytest.raises(ValueError):
        publisher.publish({})
    with pytest.raises(ValueError, match="name"):
        publisher.publish({3: np.zeros(1)})
    assert publisher.version.number == 1 and client.head("policy").number == 1


def test_a_state_dict_goes_into_another_module(client):
    torch = pytest.importorskip("torch")

    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2, dtype=torch.bfloat16))

    mine, theirs = make(), make()
    client.publisher("policy").publish(mine.state_dict())
    model = client.newer("policy")
    model.load_into(theirs)
    for name, value in theirs.state_dict().items():
        assert value.dtype == mine.state_dict()[name].dtype and torch.equal(value, mine.state_dict()[name]), name
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_into(torch.nn.Linear(2, 2))
    transposed = torch.arange(6.0).reshape(2, 3).T  # not contiguous
    client.publisher("other").publish({"w": transposed})
    assert client.newer("other")["w"].tolist() == transposed.tolist()


def test_readers_wait_for_a_newer_version_and_see_whole_ones(client):
    publisher = client.publisher("policy")
    wrong: list[str] = []

    def follow() -> None:
        policy = client.subscribe("policy")
        while not policy.last:
            if not policy.update(timeout=30):
                wrong.append("a reader waited for 30 s")
                return
            if len({float(v) for tensor in policy.model.tensors.values() for v in tensor}) != 1:
                wrong.append("a version of parts")

    readers = [threading.Thread(target=follow) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(50):
        publisher.publish({"a": np.full(1000, i), "b": np.full(10, i)}, last=i == 49)
    for reader in readers:
        reader.join()
    assert wrong == []


def test_a_publisher_that_was_replaced_is_refused_by_name(client):
    first = client.publisher("policy", name="learner/0")
    first.publish({"w": [1.0]})
    second = client.publisher("policy", name="learner/1", after_version=10)
    with pytest.raises(tandem.errors.FailedPreconditionError, match="'learner/0'.*replaced by 'learner/1'"):
        first.publish({"w": [2.0]})
    assert second.publish({"w": [3.0]}) == 11
    second.repeat()
    assert client.newer("policy")["w"].tolist() == [3.0]


def test_waits_end_by_their_deadline_ctrl_c_and_close(client):
    client.publisher("policy").publish({"w": [1.0]})
    model = client.newer("policy")
    assert client.newer("policy", model, timeout=0.2) is None
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        client.newer("policy", model)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            client.newer("policy", model)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: client.models()[0]["waiting"] > 0, "the call that waits")
    client.close()
    thread.join(30)
    assert isinstance(errors[0], tandem.errors.CancelledError)


def test_a_closed_client_refuses_everything(client):
    publisher = client.publisher("policy")
    client.close()
    calls = [
        lambda: publisher.publish({"w": [1.0]}), lambda: publisher.repeat(), lambda: client.newer("policy"), lambda: client.head("policy"),
        lambda: client.models(), lambda: client.publisher("policy"), lambda: client.subscribe("policy").update(),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(tandem.errors.CancelledError, match="closed"):
            call()
    with pytest.raises(TypeError, match="in the process that uses it"):
        pickle.dumps(client)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(client):
    publisher = client.publisher("policy")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        refused = 0
        for call in (lambda: publisher.publish({"w": [1.0]}), lambda: client.newer("policy"), lambda: client.head("policy")):
            try:
                call()
            except tandem.errors.FailedPreconditionError:
                refused += 1
        os.write(writer, b"%d" % refused)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "3"
    os.waitpid(pid, 0)
    publisher.publish({"w": [1.0]})


def test_a_server_that_was_killed_comes_back_and_gets_the_version_again():
    host = "127.0.77.24"
    with socket.socket() as probe:
        probe.bind((host, 0))
        address = f"{host}:{probe.getsockname()[1]}"

    def start() -> Process:
        process = Process([tandem_binary(), "weights", "serve", "--listen", address])
        process.wait_for_output(address.replace(".", r"\."))
        return process

    with start() as server, weights.connect(address, timeout=60) as client:
        publisher = client.publisher("policy")
        publisher.publish({"w": [1.0]})
        model = client.newer("policy")
        server.__exit__()
        with pytest.raises((TimeoutError, ConnectionError)):
            client.head("policy", timeout=0.2)
        newer: list[weights.Model | None] = []
        reader = threading.Thread(target=lambda: newer.append(client.newer("policy", model, timeout=120)))
        reader.start()
        with start():
            wait_until(lambda: client.head("policy") == model.version, "the publisher to publish again by itself")
            publisher.repeat()
            publisher.publish({"w": [2.0]})
            reader.join(120)
            assert newer[0] is not None and newer[0]["w"].tolist() == [2.0]


class SlowLink:
    """Forwards connections to `target`. What clients send passes at a limited rate."""

    BYTES, PAUSE_S = 32 << 10, 0.05

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> SlowLink:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                threading.Thread(target=self._forward, args=(client, server, self.PAUSE_S), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, 0.0), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, pause_s: float) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(self.BYTES)) and not self._ended.wait(pause_s):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)


def test_a_model_whose_upload_takes_longer_than_a_short_call_is_published(monkeypatch):
    monkeypatch.setenv("TANDEM_TRANSPORT", "grpc")
    with Process([tandem_binary(), "weights", "serve", "--listen", "127.0.0.1:0"]) as server:
        address = server.wait_for_output(r"(127\.0\.0\.1:\d+)\n")
        with SlowLink(address) as link, weights.connect(link.address, timeout=60) as client:
            publisher = client.publisher("policy")
            # It takes 6.5 s or longer.
            assert publisher.publish({"w": np.zeros(1 << 20)}, timeout=120) == 1
            assert client.head("policy").number == 1 and client.models()[0]["publishes"] == 1


def test_a_server_that_hangs_gives_no_newer_version():
    with Process([tandem_binary(), "weights", "serve", "--listen", "127.0.0.1:0"]) as server:
        address = server.wait_for_output(r"(127\.0\.0\.1:\d+)\n")
        with weights.connect(address, timeout=60) as client:
            client.publisher("policy").publish({"w": [1.0]})
            policy = client.subscribe("policy")
            with server.stopped():
                assert not policy.update(timeout=0)
            assert policy.update(timeout=60)


def test_connecting_to_nobody_ends_by_its_time_limit():
    with socket.socket() as probe:
        probe.bind(("127.0.77.25", 0))  # and does not listen
        began = time.monotonic()
        with pytest.raises((TimeoutError, ConnectionError), match="127.0.77.25"):
            weights.connect("127.0.77.25:%d" % probe.getsockname()[1], timeout=0.5)
        assert time.monotonic() - began < 60
    with pytest.raises(tandem.errors.FailedPreconditionError, match="tandem run"):
        weights.connect()
