# SPDX-License-Identifier: Apache-2.0
"""Publishers that commit their versions to a paced table, and servers of tables and weights that are killed and come back."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import sys
import threading
import time
from typing import Iterator

import pytest
from processes import Process, wait_until

import tandem
from tandem import replay, weights

SERVE = """
import sys
from tandem import replay

server = replay.serve([replay.Table.paced_queue("q", batch=1, max_lag=0)], listen=sys.argv[1])
print("serving", flush=True)
server.wait()
"""


class Servers:
    """A server of a paced table and of weights, which starts again at its address."""

    def __init__(self, folder: pathlib.Path, host: str) -> None:
        with socket.socket() as probe:
            probe.bind((host, 0))
            self.address = f"{host}:{probe.getsockname()[1]}"
        self._script = folder / "serve.py"
        self._script.write_text(SERVE)
        self.start()

    def start(self) -> None:
        self.process = Process([sys.executable, "-B", str(self._script), self.address])
        self.process.wait_for_output("serving")

    def kill(self) -> None:
        self.process.__exit__()


@contextlib.contextmanager
def servers_with_clients(folder: pathlib.Path, host: str) -> Iterator[tuple[Servers, replay.Client, weights.Client]]:
    servers = Servers(folder, host)
    with servers.process, replay.connect(servers.address, timeout=60) as client, weights.connect(servers.address, timeout=60) as store:
        try:
            yield servers, client, store
        finally:
            servers.kill()


def roll_out(client: replay.Client, store: weights.Client, x: int) -> None:
    """Does what an actor does for one item."""
    [ticket] = client.admit("q", 1, actor="actor/0", timeout=60)
    policy = store.subscribe("policy")
    while policy.version < weights.Version(ticket.epoch, ticket.min_version):
        assert policy.update(timeout=60), "no weights have come"
    with client.writer(columns={"x": "i64"}, chunk_steps=1) as writer:
        writer.hold("q", ticket)
        writer.append({"x": x}, policy_version=policy.version.number)
        writer.create_item("q", writer.last(1))


def test_a_publisher_commits_what_it_publishes():
    with replay.local([replay.Table.paced_queue("q", batch=2, max_lag=0)]) as client, weights.local() as store:
        publisher = store.publisher("policy", name="learner/0", commit_to=(client, "q"))
        assert client.info("q")["staleness"]["commits"] == 0
        first = publisher.publish({"w": [1.0]})
        head = client.info("q")["staleness"]
        assert (head["version"], head["commits"]) == (first, 1)
        for ticket in client.admit("q", 2, actor="actor/0"):
            assert (ticket.epoch, ticket.min_version) == publisher.version
            with client.writer(columns={"x": "i64"}, chunk_steps=1) as writer:
                writer.hold("q", ticket)
                writer.append({"x": 1}, policy_version=first)
                writer.create_item("q", writer.last(1))
        client.sample("q", 2)
        with pytest.raises(TimeoutError, match="admits no rollout"):
            client.admit("q", 1, actor="actor/0", timeout=0)
        publisher.publish({"w": [2.0]}, items_consumed=2)
        assert len(client.admit("q", 2, actor="actor/0")) == 2
        # A learner that starts again without its weights' store has versions above those of the table.
        with weights.local() as empty:
            again = empty.publisher("policy", name="learner/0", commit_to=(client, "q"))
            assert again.publish({"w": [3.0]}) == first + 2 and again.version.epoch > publisher.version.epoch


def test_what_is_no_table_to_commit_to_is_refused():
    with replay.local([replay.Table.paced_queue("q", batch=2, max_lag=0)]) as client, weights.local() as store:
        for wrong in (client, "q", (client,), (store, "q"), (client, 3)):
            with pytest.raises(ValueError, match=r"it must be \(client, table\)"):
                store.publisher("policy", commit_to=wrong)
        with pytest.raises(LookupError, match="there is no table 'other'"):
            store.publisher("policy", commit_to=(client, "other"))
        publisher = store.publisher("policy", commit_to=(client, "q"))
        client.close()
        with pytest.raises(tandem.errors.FailedPreconditionError, match="replay client of table 'q'.*is closed"):
            publisher.publish({"w": [1.0]})


def test_a_paced_learner_goes_on_after_the_server_of_its_table_and_weights_was_killed(tmp_path):
    with servers_with_clients(tmp_path, "127.0.77.31") as (servers, client, store):
        publisher = store.publisher("policy", name="learner/0", commit_to=(client, "q"))
        publisher.publish({"w": [1.0]})
        for life in range(2):
            roll_out(client, store, life)
            assert client.sample("q", timeout=60)["x"].item() == life
            publisher.publish({"w": [life + 2.0]}, items_consumed=life + 1)
            servers.kill()
            servers.start()
        # The learner makes no call: the publisher repairs both by itself.
        roll_out(client, store, 2)
        assert client.sample("q", timeout=60)["x"].item() == 2
        assert store.newer("policy", timeout=60)["w"].tolist() == [3.0]


def test_a_version_whose_publish_was_late_is_published_and_committed_by_itself(tmp_path):
    with servers_with_clients(tmp_path, "127.0.77.32") as (servers, client, store):
        publisher = store.publisher("policy", commit_to=(client, "q"))
        servers.kill()
        with pytest.raises((TimeoutError, ConnectionError)):
            publisher.publish({"w": [1.0]}, timeout=0.2)
        servers.start()
        assert store.newer("policy", timeout=60).version == publisher.version
        wait_until(lambda: client.info("q")["staleness"]["commits"] == 1, "the commit")
        publisher.repeat()


def test_reasons_name_weights_that_are_missing(tmp_path):
    with servers_with_clients(tmp_path, "127.0.77.33") as (servers, client, store):
        publisher = store.publisher("policy", name="learner/0", commit_to=(client, "q"))
        publisher.publish({"w": [1.0]})
        [line] = [reason for reason in client.why("q") if "weights" in reason]
        assert "can pull: version 1" in line and "of model 'policy' was published" in line and "by learner/0" in line
        version = publisher.version
        store.close()  # nobody repairs
        servers.kill()
        servers.start()
        client.commit("q", version.number, epoch=version.epoch)  # as a sample does, which carries the last commit
        client.admit("q", 1, actor="actor/0")
        with pytest.raises(TimeoutError, match="the weights of version 1.*are not in the weight store of this server.*it is empty"):
            client.sample("q", timeout=1)
        with pytest.raises(TimeoutError, match="are not in the weight store"):
            client.admit("q", 1, actor="actor/1", timeout=1)
        assert any("weights that are missing" in reason for reason in client.why("q"))
        # An epoch of a user's own says nothing of a weight store.
        client.create_table(replay.Table.paced_queue("own", batch=1, max_lag=0))
        client.commit("own", 1)
        assert not any("weights" in reason for reason in client.why("own"))


def paced(**staleness) -> replay.Table:
    """A paced queue that admits one rollout at a time."""
    return replay.Table(
        "q", sampler="fifo", remover="fifo", max_items=10, max_times_sampled=1, limit=replay.RateLimit.queue(10),
        staleness=replay.Staleness("pace", max_lag=0, batch=1, **staleness),
    )  # fmt: skip


def test_a_rollout_that_fails_gives_its_ticket_back_at_once():
    with replay.local([paced(lease=3600, max_rollout=7200)]) as client:
        client.commit("q", 1)
        with pytest.raises(RuntimeError, match="the environment has crashed"):
            with client.writer(columns={"x": "i64"}) as writer:
                [ticket] = client.admit("q", 1, actor="actor/1")
                writer.hold("q", ticket)
                writer.append({"x": 1}, policy_version=1)
                raise RuntimeError("the environment has crashed")
        [other] = client.admit("q", 1, actor="actor/2", timeout=60)
        assert client.info("q")["staleness"]["returned"] == 1
        # The ticket of an item that was delivered is none to give back.
        with client.writer(columns={"x": "i64"}, chunk_steps=1) as writer:
            writer.hold("q", other)
            writer.append({"x": 2}, policy_version=1)
            writer.create_item("q", writer.last(1))
        assert client.info("q")["staleness"]["returned"] == 1 and client.sample("q")["x"].item() == 2


def test_append_says_that_the_ticket_of_its_rollout_has_ended():
    with replay.local([paced(lease=1, max_rollout=1)]) as client:
        client.commit("q", 1)
        writer = client.writer(columns={"x": "i64"}, chunk_steps=1)
        writer.hold("q", client.admit("q", 1, actor="actor/1")[0])
        deadline = time.monotonic() + 60
        with pytest.raises(LookupError, match="table 'q': 1 ticket of this writer ended.*ask for another ticket"):
            while time.monotonic() < deadline:
                writer.append({"x": 0}, policy_version=1)
        # The same writer goes on with another ticket.
        writer.hold("q", client.admit("q", 1, actor="actor/1")[0])
        writer.append({"x": 7}, policy_version=1)
        writer.create_item("q", writer.last(1))
        writer.flush()
        assert client.sample("q")["x"].item() == 7


def test_lags_of_batches_that_were_drawn_ahead_are_those_of_their_use():
    with replay.local([replay.Table.queue("q", 100)]) as client:
        client.commit("q", 1)
        with client.writer(columns={"x": "i64"}, chunk_steps=1) as writer:
            for x in range(4):
                writer.append({"x": x}, policy_version=1)
                writer.create_item("q", writer.last(1))
        with client.sampler("q", 1, prefetch=4) as sampler:
            wait_until(lambda: client.info("q")["samples"] == 4, "the batches drawn ahead")
            for version in (2, 3, 4, 5):
                client.commit("q", version)
                assert sampler.next().lags.tolist() == [version - 1]


def test_close_ends_a_call_of_the_writer_that_waits():
    with replay.local([replay.Table.queue("q", 1)]) as client:
        writer = client.writer(columns={"x": "i64"}, chunk_steps=1)
        writer.append({"x": 0})
        writer.create_item("q", writer.last(1))
        writer.append({"x": 1})
        with pytest.raises(TimeoutError):
            writer.create_item("q", writer.last(1), timeout=0)
        errors: list[BaseException] = []

        def flush() -> None:
            try:
                writer.flush(timeout=3600)
            except BaseException as error:
                errors.append(error)

        waiting = threading.Thread(target=flush)
        waiting.start()
        wait_until(lambda: client.info("q")["waiting_inserts"] == 1, "the insert that waits")
        writer.close()
        waiting.join(60)
        assert not waiting.is_alive() and isinstance(errors[0], tandem.errors.CancelledError), errors
        assert "this writer is closed" in str(errors[0])
