# SPDX-License-Identifier: Apache-2.0
"""Batches, priorities, prefetching samplers, and tables that pace their actors."""

import threading

import numpy as np
import pytest

import tandem
from tandem import replay


def fill(client: replay.Client, table: str, count: int, **priorities: float) -> None:
    with client.writer(chunk_steps=1) as writer:
        for i in range(count):
            writer.append({"x": i}, policy_version=i)
            writer.create_item(table, writer.last(1), **priorities)


def test_a_batch_says_how_its_items_were_drawn():
    with replay.local([replay.Table.prioritized("t", 100, exponent=1.0, seed=3)], timeout=30) as client:
        with client.writer() as writer:
            for i in range(4):
                writer.append({"x": i}, policy_version=10 + i)
                writer.create_item("t", writer.last(1), priority=i)
        batch = client.sample("t", 4000)
        assert len(batch) == 4000 and batch.table_items == 4 and batch.mass == 6.0
        x = batch["x"][:, 0]
        np.testing.assert_allclose(batch.probabilities, x / 6)
        np.testing.assert_array_equal(batch.priorities, x)
        np.testing.assert_array_equal(batch.min_versions, 10 + x)
        assert set(x) == {1, 2, 3} and abs(np.mean(x == 3) - 0.5) < 0.06  # six standard deviations
        assert batch.times_sampled.max() <= 4000
        weights = batch.importance_weights(1.0, scale=False)
        np.testing.assert_allclose(weights, 1 / (4 * x / 6))
        np.testing.assert_allclose(batch.importance_weights(0.5), (weights / weights.max()) ** 0.5)
        assert batch.committed_version is None and not batch.lags.any()
        client.commit("t", 20, epoch=1)
        np.testing.assert_array_equal(client.sample("t", 5).lags >= 7, True)
        with pytest.raises(LookupError, match="'y'; it has x"):
            batch["y"]


def test_priorities_change_and_wrong_ones_change_nothing():
    with replay.local([replay.Table.prioritized("t", 100)], timeout=30) as client:
        fill(client, "t", 3)
        keys = np.array([item["key"] for item in client.peek("t")], np.uint64)
        for wrong in (float("nan"), float("inf"), -1.0):
            with pytest.raises(ValueError, match="finite and not negative"):
                client.update_priorities("t", keys, [5.0, wrong, 5.0])
        for values in ([1.0, 2.0], [[1.0, 2.0, 3.0]]):
            with pytest.raises(ValueError, match="shape"):
                client.update_priorities("t", keys, values)
        assert [item["priority"] for item in client.peek("t")] == [1, 1, 1]
        assert client.update_priorities("t", keys, np.array([0, 0, 2], np.float32)) == 3
        assert set(client.sample("t", 50)["x"].ravel()) == {2}
        client.reset("t")
        assert client.update_priorities("t", keys, [1.0, 1.0, 1.0]) == 0


def test_a_batch_that_can_never_be_is_refused_and_a_smaller_one_is_given():
    with replay.local([replay.Table.queue("q", 4)], timeout=30) as client:
        fill(client, "q", 3)
        with pytest.raises(ValueError, match="ask for at most 4, set min_batch"):
            client.sample("q", 5)
        assert len(client.sample("q", 4, min_batch=1)) == 3
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(ValueError):
                client.sample("q", wrong)


def test_a_prefetching_sampler_gives_each_item_once_to_threads_that_share_it():
    items, threads = 400, 4
    with replay.local([replay.Table.queue("q", 50)], timeout=60) as client, client.sampler("q", 5, min_batch=1, prefetch=8) as sampler:
        seen: list[list[int]] = [[] for _ in range(threads)]

        def consume(mine: list[int]) -> None:
            while -1 not in mine:
                mine.extend(sampler.next()["x"].ravel().tolist())

        def produce(first: int) -> None:
            with client.writer() as writer:
                for x in range(first, items, 2):
                    writer.append({"x": x})
                    writer.create_item("q", writer.last(1))

        producers = [threading.Thread(target=produce, args=(i,)) for i in range(2)]
        consumers = [threading.Thread(target=consume, args=(mine,)) for mine in seen]
        for thread in producers + consumers:
            thread.start()
        for thread in producers:
            thread.join()
        with client.writer() as writer:
            for thread in consumers:
                while thread.is_alive():  # each takes one of these, or several
                    writer.append({"x": -1})
                    writer.create_item("q", writer.last(1))
                    writer.flush()
                    thread.join(0.01)
        taken = [x for mine in seen for x in mine if x != -1]
        assert sorted(taken) == list(range(items))


def test_samples_are_the_same_for_the_same_operations():
    def draws() -> list[int]:
        with replay.local([replay.Table.uniform("t", 100, seed=5)], timeout=30) as client:
            fill(client, "t", 50)
            return client.sample("t", 100)["x"].ravel().tolist()

    assert draws() == draws()


def test_threads_may_share_a_client_and_write_with_writers_of_their_own():
    with replay.local([replay.Table.uniform("t", 10_000)], timeout=60) as client:
        threads = [threading.Thread(target=fill, args=(client, "t", 50)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.info("t")["inserts"] == 300


def test_threads_may_share_a_writer_from_its_first_step_on():
    with replay.local([replay.Table("t", sampler="fifo", max_times_sampled=1)], timeout=60) as client, client.writer(chunk_steps=1) as writer:
        begin = threading.Barrier(4)

        def write(first: int) -> None:
            begin.wait()
            for x in range(first, 40, 4):
                writer.append({"x": x})

        threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.create_item("t", writer.last(40))
        assert sorted(client.sample("t")["x"].ravel().tolist()) == list(range(40))


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 17}, {"prefetch_bytes": -1}, {"batch": 0}, {"min_batch": 2}])
def test_a_sampler_with_wrong_options_is_refused(options):
    with replay.local([replay.Table.uniform("t", 10)], timeout=30) as client:
        with pytest.raises(ValueError, match="prefetch|batch"):
            client.sampler("t", **options).next()


def test_rollouts_are_admitted_at_the_pace_of_the_learner():
    with replay.local([replay.Table.paced_queue("q", batch=2, max_lag=0)], timeout=30) as client:
        with pytest.raises(TimeoutError, match="no version|committed|commit"):
            client.admit("q", timeout=0.3)
        client.commit("q", 1, epoch=1)
        first = client.admit("q", 2, actor="actor/0")
        assert [ticket.min_version for ticket in first] == [1, 1] and first[0].lease > 0 and first[0].epoch == 1
        with pytest.raises(TimeoutError, match="admit"):
            client.admit("q", actor="actor/1", timeout=0.3)
        assert client.renew("q", first) == 2
        with client.writer(columns={"x": "i64"}, chunk_steps=1) as writer:
            for ticket in first:
                writer.hold("q", ticket)
                writer.append({"x": 7}, policy_version=1)
                writer.create_item("q", writer.last(1))
            with pytest.raises(ValueError, match="ticket"):
                writer.append({"x": 7}, policy_version=1)
                writer.create_item("q", writer.last(1))
        batch = client.sample("q", 2)
        assert batch.committed_version == 1 and not batch.lags.any()
        client.commit("q", 2, epoch=1, items_consumed=2)
        second = client.admit("q", 2, actor="actor/1")
        assert second[0].min_version == 2
        assert client.return_tickets("q", second) == 2 and client.renew("q", second) == 0
        assert client.info("q")["staleness"]["admitted"] == 4
        with pytest.raises(tandem.errors.FailedPreconditionError, match="version"):
            client.commit("q", 1, epoch=1, items_consumed=2)


def test_a_ticket_that_was_given_back_pays_for_no_item():
    with replay.local([replay.Table.paced_queue("q", batch=1, max_lag=1)], timeout=30) as client:
        client.commit("q", 1, epoch=1)
        [ticket] = client.admit("q")
        client.return_tickets("q", [ticket])
        writer = client.writer(columns={"x": "i64"}, chunk_steps=1)
        writer.hold("q", ticket)
        writer.append({"x": 1}, policy_version=1)
        with pytest.raises(LookupError, match="ticket"):
            writer.create_item("q", writer.last(1))
        assert writer.pending_items == 0 and client.info("q")["staleness"]["refused_items"] == 1
