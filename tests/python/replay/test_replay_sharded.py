# SPDX-License-Identifier: Apache-2.0
"""Tables that are divided among several servers."""

from __future__ import annotations

import collections
import contextlib
import pickle
import sys
import threading
import time

import numpy as np
import pytest
from processes import Process, interrupt_when, tandem_binary

import tandem
from tandem import replay


@pytest.fixture
def servers():
    table = replay.Table.prioritized("replay", size=1000, exponent=1.0)
    with replay.serve([table]) as first, replay.serve([table]) as second:
        yield [first.address, second.address]


def fill(client: replay.ShardedClient, items: int) -> None:
    """Writes items x = 0, 1, ... of priority 1 + x % 3, in turn to the servers."""
    for shard in range(len(client.shards)):
        with client.writer(shard=shard) as writer:
            for x in range(shard, items, len(client.shards)):
                writer.append({"x": x})
                writer.create_item("replay", writer.last(1), priority=1 + x % 3)


def test_items_of_all_servers_are_drawn_by_their_priorities(servers):
    with replay.connect(servers) as client:
        fill(client, 6)
        drawn: collections.Counter[int] = collections.Counter()
        for _ in range(200):
            batch = client.sample("replay", 30)
            x = batch["x"].ravel()
            assert (batch.shards == x % 2).all() and batch.table_items == 6 and batch.mass == pytest.approx(12)
            assert batch.probabilities == pytest.approx((1 + x % 3) / 12)
            drawn.update(x.tolist())
        expected = np.array([6000 * (1 + x % 3) / 12 for x in range(6)])
        # 5 degrees of freedom; one in a million.
        assert (((np.array([drawn[x] for x in range(6)]) - expected) ** 2) / expected).sum() < 35


def test_priorities_change_at_the_server_of_each_item(servers):
    with replay.connect(servers) as client:
        fill(client, 10)
        batch = client.sample("replay", 64)
        assert client.update_priorities("replay", batch, 100.0 + batch["x"].ravel()) == 64
        for shard, one in enumerate(client.shards):
            for item in one.peek("replay", 10):
                assert item["priority"] < 4 or int(item["priority"]) % 2 == shard
        with pytest.raises(ValueError, match="need the Batch"):
            client.update_priorities("replay", batch.keys, np.ones(64))
        with pytest.raises(ValueError, match="shape"):
            client.update_priorities("replay", batch, np.ones(63))


def test_priorities_of_a_batch_of_more_servers_are_refused(servers):
    with replay.serve([replay.Table.uniform("replay", size=10)]) as third:
        with replay.connect([third.address, *servers]) as three, replay.connect(servers) as two:
            fill(three, 6)
            batch = three.sample("replay", 64)
            with pytest.raises(ValueError, match="an item of shard 2, and this sampler has 2 shards"):
                two.update_priorities("replay", batch, np.ones(64))
            batch.shards = batch.shards[:5]
            with pytest.raises(ValueError, match="the shard of 5 of its 64 items"):
                three.update_priorities("replay", batch, np.ones(64))


def test_batches_are_drawn_ahead_and_threads_share_them(servers):
    with replay.connect(servers) as client:
        fill(client, 10)
        with client.sampler("replay", batch=8, prefetch=2) as sampler:
            sizes: list[int] = []
            threads = [threading.Thread(target=lambda: sizes.extend(len(sampler.next()) for _ in range(20))) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert sizes == [8] * 60
            assert len(next(iter(sampler))) == 8
        with pytest.raises(tandem.errors.CancelledError):
            sampler.next()


def test_writers_are_spread_over_the_servers(servers):
    with replay.connect(servers) as client:
        for x in range(4):
            with client.writer() as writer:
                writer.append({"x": x})
                writer.create_item("replay", writer.last(1))
        assert [info["items"] for info in client.info("replay")] == [2, 2]
        assert client.tables() == ["replay"]
        client.create_table(replay.Table.uniform("more", size=10))
        assert client.tables() == ["more", "replay"]
        with pytest.raises(ValueError, match="shard is 2; there are 2"):
            client.writer(shard=2)


def test_all_servers_say_why_change_limits_and_write_checkpoints(tmp_path):
    table = replay.Table.uniform("replay", size=100, min_size=2)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(replay.serve([table], checkpoint_directory=tmp_path / name)) for name in "ab"]
        client = stack.enter_context(replay.connect([server.address for server in servers]))
        fill(client, 2)
        assert all("min_size is 2" in " ".join(reasons) for reasons in client.why("replay")), client.why("replay")
        client.set_limits("replay", limit=replay.RateLimit.at_least(1), max_items=50)
        assert [shard.table("replay").max_items for shard in client.shards] == [50, 50]
        assert len(client.sample("replay", 4)) == 4
        assert [str(tmp_path / name) in path for name, path in zip("ab", client.save_checkpoint())] == [True, True]


def test_waits_end_by_their_limit_and_by_close(servers):
    client = replay.connect(servers)
    with pytest.raises(TimeoutError, match="replay shard"):
        client.sample("replay", 4, timeout=0.2)
    sampler = client.sampler("replay", 4)
    with pytest.raises(TimeoutError, match="no batch has arrived"):
        sampler.next(timeout=0.1)
    errors: list[BaseException] = []

    def wait():
        try:
            sampler.next(timeout=60)
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    client.close()
    waiting.join(60)
    assert [type(error) for error in errors] == [tandem.errors.CancelledError]
    assert client.closed
    for call in (lambda: client.sample("replay"), lambda: client.sampler("replay"), lambda: client.tables()):
        with pytest.raises(tandem.errors.CancelledError):
            call()


def test_ctrl_c_keeps_nothing_from_the_next_sample(servers):
    with replay.connect(servers, timeout=60) as client:
        with pytest.raises(KeyboardInterrupt):
            interrupt_when(lambda: any(info["waiting_samples"] for info in client.info("replay")), "the sample that waits")
            client.sample("replay", 4)
        fill(client, 4)
        assert len(client.sample("replay", 4, timeout=30)) == 4  # less than what the first call had left


def test_a_server_that_hangs_holds_up_neither_other_tables_nor_close(servers):
    with Process([tandem_binary(), "replay", "serve", "--listen", "127.0.0.1:0", "--table", "uniform:replay:10"]) as hanging:
        client = replay.connect([hanging.wait_for_output(r"(127\.0\.0\.1:\d+)"), *servers], timeout=100)
        client.create_table(replay.Table.uniform("other", size=10))
        with hanging.stopped():
            errors: list[BaseException] = []

            def sample() -> None:
                try:
                    client.sample("replay", 4)
                except BaseException as error:
                    errors.append(error)

            began = time.monotonic()
            waiting = threading.Thread(target=sample)
            waiting.start()
            with pytest.raises(TimeoutError):
                client.sample("other", timeout=0.2)  # and 5 s for the round trip
            client.close()
            waiting.join(60)
            assert [type(error) for error in errors] == [tandem.errors.CancelledError]
            assert time.monotonic() - began < 60


def test_queues_and_empty_lists_are_refused(servers):
    with replay.connect(servers) as client:
        client.create_table(replay.Table.queue("queue", size=4))
        with pytest.raises(ValueError, match="its sampler is fifo"):
            client.sample("queue")
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(client)
    with pytest.raises(ValueError, match="empty list"):
        replay.connect([])


def test_the_learner_of_a_job_samples_from_all_its_servers(tmp_path):
    script = tmp_path / "sharded.py"
    script.write_text("""
import os, signal
from tandem import replay
role = os.environ["TANDEM_ROLE"]
if role == "replay":
    replay.serve([replay.Table.uniform("t", size=100)]).wait()
elif role == "actor":
    with replay.connect_all() as client, client.writer() as writer:
        writer.append({"x": int(os.environ["ROLE_RANK"])})
        writer.create_item("t", writer.last(1))
    signal.pause()
else:
    with replay.connect_all() as client:
        seen = set()
        while len(seen) < 2:
            seen |= set(client.sample("t", 8)["x"].ravel().tolist())
        print("learned from", sorted(seen), [info["items"] for info in client.info("t")], flush=True)
""")
    command = [tandem_binary(), "run", "--log-dir", str(tmp_path / "logs"), "--learners", "1", "--replay", "2", "--actors", "2"]
    with Process([*command, "--", sys.executable, "-B", str(script)]) as job:
        assert job.wait() == 0, job.output
        assert "learned from [0, 1] [1, 1]" in job.output, job.output
