# SPDX-License-Identifier: Apache-2.0
"""Servers in other processes, that are killed and come back, and servers of Python."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import sys
import threading
import time

import pytest
from processes import Process, start_script, tandem_binary

import tandem
from tandem import replay


class ReplayServer:
    """`tandem replay serve` at an address of its own, so that nobody else takes its port while it is away."""

    def __init__(self, folder: pathlib.Path, host: str, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind((host, 0))
            self.address = f"{host}:{probe.getsockname()[1]}"
        self._command = [tandem_binary(), "replay", "serve", "--listen", self.address, "--checkpoint-dir", str(folder), *options]
        self.process = self.start()

    def start(self) -> Process:
        self.process = Process(self._command)
        self.process.wait_for_output(re_escape(self.address))
        return self.process

    def __enter__(self) -> ReplayServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__()


def re_escape(address: str) -> str:
    return address.replace(".", r"\.")


def test_a_server_that_was_killed_comes_back_with_its_checkpoint_and_clients_go_on(tmp_path):
    with ReplayServer(tmp_path, "127.0.77.21", "--table", "queue:q:100") as server:
        with replay.connect(server.address, timeout=60) as client, client.writer(chunk_steps=1) as writer:
            sampler = client.sampler("q", 1)
            for x in range(3):
                writer.append({"x": x})
                writer.create_item("q", writer.last(1))
            assert str(tmp_path) in client.save_checkpoint()
            writer.append({"x": 3})  # acknowledged after the checkpoint: lost with the server, and counted
            writer.create_item("q", writer.last(1))
            server.process.__exit__()
            writer.append({"x": 4})
            waiting = threading.Thread(target=lambda: writer.create_item("q", writer.last(1), timeout=60))
            waiting.start()
            with pytest.raises((TimeoutError, ConnectionError), match=re_escape(server.address) + "|no batch"):
                client.sample("q", timeout=0.3)
            server.start()
            waiting.join(60)
            assert not waiting.is_alive()
            # The sampler had requested items of the server that is gone: those of the checkpoint are there again.
            taken = [sampler.next(timeout=60)["x"].item() for _ in range(3)]
            info = client.info("q")
            assert info["lost_items"] == 1 and set(taken) <= {0, 1, 2, 4}
            sampler.close()


@contextlib.contextmanager
def server_with_a_writer(folder: pathlib.Path, host: str, chunk_steps: int):
    """A server, a client, and a writer that has made one item of the table `t`."""
    with ReplayServer(folder, host, "--table", "uniform:t:100") as server:
        with replay.connect(server.address, timeout=60) as client:
            writer = client.writer(chunk_steps=chunk_steps)
            writer.append({"x": 1})
            writer.create_item("t", writer.last(1))
            yield server, client, writer


def test_a_server_that_hangs_is_named_and_ctrl_c_ends_the_wait(tmp_path):
    with server_with_a_writer(tmp_path, "127.0.77.22", chunk_steps=1) as (server, client, _):
        with server.process.stopped():
            for call in (lambda: client.info("t"), lambda: client.sample("t"), lambda: client.update_priorities("t", [1], [1.0])):
                with pytest.raises(KeyboardInterrupt):
                    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                    call()
            with pytest.raises(TimeoutError):
                client.why("t", timeout=0.2)
        assert client.info("t")["items"] == 1


def test_a_call_that_need_not_wait_ends_soon_if_the_server_hangs(tmp_path):
    with server_with_a_writer(tmp_path, "127.0.77.26", chunk_steps=8) as (server, client, writer):
        with server.process.stopped():
            for call in (lambda: client.sample("t", timeout=0), lambda: writer.flush(timeout=0)):
                began = time.monotonic()
                with pytest.raises(TimeoutError):
                    call()
                assert time.monotonic() - began < 25  # 5 s for the round trip, and 2 s to ask why
        writer.flush()
        assert client.info("t")["items"] == 1


def test_a_reset_is_made_once(tmp_path):
    with ReplayServer(tmp_path, "127.0.77.27", "--table", "queue:q:100") as server:
        with replay.connect(server.address, timeout=60) as client:
            assert client.reset("q") == 0
            server.process.__exit__()
            began = time.monotonic()
            with pytest.raises((TimeoutError, ConnectionError)):
                client.reset("q")
            assert time.monotonic() - began < 50  # no attempt after the first


def test_connecting_to_nobody_ends_by_its_time_limit():
    with socket.socket() as probe:
        probe.bind(("127.0.77.23", 0))  # and does not listen
        address = "127.0.77.23:%d" % probe.getsockname()[1]
        with pytest.raises((TimeoutError, ConnectionError), match=re_escape(address)):
            replay.connect(address, timeout=0.5)
    with pytest.raises(ValueError, match="nonsense"):
        replay.connect("nonsense")
    with pytest.raises(tandem.errors.FailedPreconditionError, match="tandem run"):
        replay.connect()


def test_python_serves_tables_and_weights_and_saves_them_at_sigterm(tmp_path):
    program = f"""
import signal, threading
from tandem import replay
def say_when_sigterm_is_awaited():
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        threading.Event().wait(0.01)
    print("awaits SIGTERM", flush=True)
server = replay.serve([replay.Table.queue("q", 100)], checkpoint_directory={str(tmp_path / "saved")!r}, checkpoint_seconds=0)
print("serves at", server.address, flush=True)
threading.Thread(target=say_when_sigterm_is_awaited).start()
print("stopped:", server.wait(), flush=True)
"""
    with start_script(tmp_path, program) as process:
        address = process.wait_for_output(r"serves at (\S+)")
        with replay.connect(address, timeout=60) as client, tandem.weights.connect(address, timeout=60) as weights:
            with client.writer() as writer:
                writer.append({"x": 5})
                writer.create_item("q", writer.last(1))
            weights.publisher("policy").publish({"w": [1.0]})
            process.wait_for_output("awaits SIGTERM")
            process._process.send_signal(signal.SIGTERM)
            assert process.wait() == 0 and "stopped: True" in process.output, process.output
    with replay.local(checkpoint_directory=tmp_path / "saved") as client:
        assert client.sample("q")["x"].tolist() == [[5]]


def test_the_address_of_an_ipv6_server_is_one_to_connect_to():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with replay.serve([replay.Table.queue("q", 10)], listen="[::1]:0") as server, replay.connect(server.address) as client:
        assert client.tables() == ["q"]


def test_a_server_gives_clients_of_its_own_process_without_a_network():
    with replay.serve([replay.Table.queue("q", 10)], listen="127.0.0.1:0") as server:
        with server.replay() as client, server.weights() as weights, replay.connect(server.address) as other:
            with client.writer() as writer:
                writer.append({"x": 1})
                writer.create_item("q", writer.last(1))
            assert other.sample("q")["x"].tolist() == [[1]]
            assert weights.head("policy") is None
            assert not server.wait(timeout=0.01)
    for call in (server.replay, server.weights):
        with pytest.raises(tandem.errors.CancelledError, match="closed"):
            call()


def test_a_damaged_checkpoint_is_named(tmp_path):
    with replay.local([replay.Table.queue("q", 10)], checkpoint_directory=tmp_path) as client:
        with client.writer() as writer:
            writer.append({"x": 1})
            writer.create_item("q", writer.last(1))
        path = pathlib.Path(client.save_checkpoint())
    newest = max(tmp_path.glob("replay-*"))
    (newest / "CHUNKS").write_bytes(b"damaged")
    with pytest.raises(tandem.errors.DataLossError, match="CHUNKS"):
        replay.local(checkpoint_directory=tmp_path)
    assert path.parent == tmp_path
    with replay.local([replay.Table.queue("q", 10)]) as client:
        with pytest.raises(tandem.errors.FailedPreconditionError, match="director"):
            client.save_checkpoint()


def test_an_interpreter_ends_while_calls_wait(tmp_path):
    program = """
import threading
from tandem import replay, weights
client = replay.local([replay.Table.queue("q", 1)])
store = weights.local()
sampler = client.sampler("q")
for call in (lambda: client.sample("q"), sampler.next, lambda: store.newer("policy")):
    threading.Thread(target=call, daemon=True).start()
while client.info("q")["waiting_samples"] < 2: pass
print("ends", flush=True)
"""
    with start_script(tmp_path, program) as process:
        assert process.wait() == 0 and process.output.strip().startswith("ends"), process.output


def test_the_roles_of_a_job_find_their_server(tmp_path):
    script = tmp_path / "roles.py"
    script.write_text("""
import os, signal
from tandem import replay, weights
role = os.environ["TANDEM_ROLE"]
if role == "replay":
    replay.serve([replay.Table.queue("q", 4)]).wait()
elif role == "actor":
    with weights.connect() as store:
        model = store.newer("policy", timeout=60)
    with replay.connect() as client, client.writer() as writer:
        writer.append({"x": int(model["w"][0]) + int(os.environ["ROLE_RANK"])})
        writer.create_item("q", writer.last(1))
    signal.pause()
else:
    with weights.connect() as store, replay.connect() as client:
        store.publisher("policy").publish({"w": [40]})
        print("learned from", sorted(client.sample("q", 2)["x"].ravel().tolist()), flush=True)
""")
    command = [tandem_binary(), "run", "--log-dir", str(tmp_path / "logs"), "--learners", "1", "--replay", "1", "--actors", "2"]
    with Process([*command, "--", sys.executable, "-B", str(script)]) as job:
        assert job.wait() == 0, job.output
        assert "learned from [40, 41]" in job.output, job.output


@pytest.mark.parametrize("place", ["listen='127.0.0.1:0', advertise='localhost'", "listen='127.0.0.1:0'"])
def test_the_job_knows_the_first_server_of_a_process_by_its_address(tmp_path, place):
    script = tmp_path / "named.py"
    script.write_text(f"""
import os
from tandem import replay
if os.environ["TANDEM_ROLE"] == "replay":
    server = replay.serve([replay.Table.queue("q", 4)], {place})
    private = replay.serve([replay.Table.queue("private", 4)], listen="127.0.0.1:0")
    another = replay.serve([replay.Table.queue("private", 4)])
    print("serves at", server.address, flush=True)
    server.wait()
else:
    with replay.connect() as client:
        print("found", client.tables(), flush=True)
""")
    command = [tandem_binary(), "run", "--log-dir", str(tmp_path / "logs"), "--learners", "1", "--replay", "1"]
    with Process([*command, "--", sys.executable, "-B", str(script)]) as job:
        assert job.wait() == 0, job.output
        host = "localhost" if "advertise" in place else "127.0.0.1"
        assert f"serves at {host}:" in job.output and "found ['q']" in job.output, job.output


def test_an_advertised_name_needs_a_place_to_listen():
    with pytest.raises(ValueError, match="advertise needs listen"):
        replay.serve(advertise="replay0:7400")
    with pytest.raises(ValueError, match=r"^advertise\b"):
        replay.serve(listen="127.0.0.1:0", advertise="replay0:none")
    with replay.serve([replay.Table.queue("q", 10)], listen="127.0.0.1:0", advertise="localhost") as server:
        assert server.address.startswith("localhost:")


def test_a_table_is_found_by_the_command_line_while_python_serves_it():
    with replay.serve([replay.Table.queue("from_python", 10)]) as server:
        with Process([tandem_binary(), "replay", "list", "--server", server.address]) as listing:
            assert listing.wait() == 0 and "from_python" in listing.output, listing.output


def test_servers_and_clients_of_a_job_are_its_members(tmp_path):
    def part(role: str) -> dict[str, str]:
        return {"TANDEM_ROLE": role, "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1", "WORLD_SIZE": "1", "TANDEM_STORE": store_address}

    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Process([tandem_binary(), "store"]))
        store_address = store.wait_for_output(r"(127\.0\.0\.1:\d+)")
        served = stack.enter_context(Process([tandem_binary(), "replay", "serve", "--table", "queue:q:10"], **part("replay")))
        address = served.wait_for_output(r"(127\.0\.0\.1:\d+)")
        text = "import threading\nfrom tandem import replay\nclient = replay.connect()\nprint(client.tables(), flush=True)\nthreading.Event().wait()\n"
        actor = stack.enter_context(start_script(tmp_path, text, **part("actor")))
        actor.wait_for_output(r"\['q'\]")
        # The states come with the heartbeats.
        lines: dict[str, str] = {}
        deadline = time.monotonic() + 60
        while "running" not in lines.get("actor/0", "") or "serving" not in lines.get("replay/0", ""):
            assert time.monotonic() < deadline, lines
            with Process([tandem_binary(), "status", "--store", store_address]) as status:
                assert status.wait() == 0, status.output
                lines = {line.split()[0]: line for line in status.output.splitlines() if "/" in line}
        assert address in lines["replay/0"]
