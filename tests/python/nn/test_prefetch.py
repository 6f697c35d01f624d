# SPDX-License-Identifier: Apache-2.0
"""Rows that are pulled ahead of their batches."""

import dataclasses
import threading
import time
import warnings

import numpy as np
import pytest

import tandem
from tandem.data import Prefetch

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")


@dataclasses.dataclass
class Batch:
    sparse: "dict[str, torch.Tensor]"


def collection(client: tandem.Client, mode: str = "async") -> "tandem.nn.EmbeddingCollection":
    table = tandem.nn.Table("t", dim=2, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(0.0), mode=mode, num_workers=1)
    return tandem.nn.EmbeddingCollection([table], client)


def batches(count: int) -> "list[Batch]":
    return [Batch({"t": torch.arange(i, i + 20)}) for i in range(count)]


class FailedCall:
    """A push that has failed."""

    def wait(self, _: float) -> bool:
        return True

    def result(self) -> None:
        raise tandem.errors.UnavailableError("lost on purpose")


def fail_next_push(emb) -> None:
    """Makes one of the pushes under way fail."""
    emb._engine.session._pushes.append(FailedCall())


def train(loader, emb) -> int:
    steps = 0
    for batch in loader:
        emb(batch.sparse)["t"].sum().backward()
        steps += 1
    emb.flush()
    return steps


class TestPrefetch:
    @pytest.mark.parametrize("depth", [0, 1, 3])
    def test_every_batch_is_trained_once_and_staleness_is_bounded_by_depth(self, client, depth):
        emb = collection(client)
        loader = Prefetch(batches(40), emb, depth=depth, start=0)
        assert len(loader) == 40 and loader.depth == depth
        assert train(loader, emb) == 40
        expected = np.array([-min(i + 1, 20, 59 - i) for i in range(59)], np.float32)
        np.testing.assert_array_equal(client.pull("t", np.arange(59), read_only=True)[0][:, 0], expected)
        assert loader.stats.staleness_max <= depth and loader.stats.unused == 0
        assert loader.stats.batches == (40 if depth > 0 else 0)
        # The servers' own count, of updates of the table: this worker is the only one.
        assert client.stats("t")["staleness_max"] <= depth
        pulls = client.stats("t")["pulls"]
        assert pulls <= 41 * client.num_servers

    def test_with_depth_rows_are_pulled_before_the_loop_asks(self, client):
        emb = collection(client)
        started = threading.Event()
        start_ahead = emb._engine.start_ahead

        def watched(batch, used):
            ahead = start_ahead(batch, used)
            if len(starts) == 2:
                started.set()
            starts.append(ahead)
            return ahead

        starts: list[object] = []
        emb._engine.start_ahead = watched
        iterator = iter(Prefetch(batches(5), emb, depth=2, start=0))
        next(iterator)
        assert started.wait(10)  # of batches 0, 1 and 2, while batch 0 is in use
        iterator.close()

    def test_sync_tables_force_depth_0_and_say_so(self, client):
        emb = collection(client, mode="sync")
        loader = Prefetch(batches(10), emb, depth=2, start=0)
        with pytest.warns(UserWarning, match="table 't' is in sync mode, which allows no staleness: depth is 0 instead of 2"):
            assert train(loader, emb) == 10
        assert loader.depth == 0 and "sync" in loader.reason and loader.stats.batches == 0

    def test_bounded_tables_add_the_depth_to_their_staleness(self, client):
        emb = collection(client, mode="bounded:1")
        loader = Prefetch(batches(20), emb, depth=2, start=0)
        assert train(loader, emb) == 20 and loader.stats.staleness_max <= 2

    def test_errors_of_the_loader_reach_the_loop_after_the_batches_before_them(self, client):
        def broken():
            yield from batches(3)
            raise KeyError("the file ends early")

        emb = collection(client)
        seen = []
        with pytest.raises(KeyError, match="the file ends early"):
            for batch in Prefetch(broken(), emb, depth=2, start=0):
                seen.append(batch)
        assert len(seen) == 3

    def test_errors_of_pulls_reach_the_loop(self, client):
        emb = collection(client)
        with pytest.raises(ValueError, match="feature 't' contain -1"):
            train(Prefetch([*batches(2), Batch({"t": torch.tensor([-1])})], emb, depth=1, start=0), emb)

    def test_batches_that_are_not_used_are_dropped(self, client):
        emb = collection(client)
        loader = Prefetch(batches(10), emb, depth=2, start=0)
        for i, batch in enumerate(loader):
            if i % 2 == 0:
                emb(batch.sparse)["t"].sum().backward()
        emb.flush()
        assert client.step == 5 and loader.stats.unused == 5 and loader.stats.batches == 5
        assert not emb._engine.session._ahead

    def test_a_loop_that_ends_early_ends_the_thread(self, client):
        emb = collection(client)
        for _ in Prefetch(batches(100), emb, depth=3, start=0):
            break
        deadline = time.monotonic() + 10
        while any(t.name == "tandem-prefetch" for t in threading.enumerate()):
            assert time.monotonic() < deadline
        assert not emb._engine.session._ahead

    def test_the_error_of_a_push_reaches_the_loop(self, client):
        emb = collection(client)
        with pytest.raises(tandem.TandemError, match="lost on purpose"):
            for i, batch in enumerate(Prefetch(batches(100), emb, depth=1, start=0)):
                emb(batch.sparse)["t"].sum().backward()
                if i == 1:
                    fail_next_push(emb)
        emb.flush()

    def test_the_error_of_a_push_survives_a_loop_that_is_left_early(self, client):
        emb = collection(client)
        loader = Prefetch(batches(100), emb, depth=3, start=0)
        seen = threading.Event()
        wait_quietly = emb._engine.session.wait_quietly

        def watched():
            failure = wait_quietly()
            if failure is not None:
                seen.set()
            return failure

        emb._engine.session.wait_quietly = watched
        for i, batch in enumerate(loader):
            if i == 1:
                fail_next_push(emb)
                emb(batch.sparse)["t"].sum().backward()
            if i == 2:
                assert seen.wait(10)  # the thread of the loader has met the error
                break
        with pytest.raises(tandem.TandemError, match="lost on purpose"):
            emb.flush()
        emb.flush()

    def test_it_can_be_iterated_again_and_used_for_evaluation(self, client):
        emb = collection(client)
        loader = Prefetch(batches(5), emb, depth=2, start=0)
        assert train(loader, emb) == 5 and train(loader, emb) == 5
        emb.eval()
        assert [emb(batch.sparse)["t"].requires_grad for batch in loader] == [False] * 5
        assert client.step == 10

    def test_other_shapes_of_batches(self, client):
        emb = collection(client)
        with pytest.raises(ValueError, match="give Prefetch a function"):
            train(Prefetch([(1, 2)], emb), emb)
        pairs = [({"t": torch.tensor([i])}, i) for i in range(3)]
        for x, _ in Prefetch(pairs, emb, sparse=lambda pair: pair[0]):
            emb(x)["t"].sum().backward()
        emb.flush()
        assert client.step == 3
        bag = tandem.nn.EmbeddingBag(2, name="b", client=client, optimizer=tandem.optim.SGD(lr=1.0), mode="sum")
        loader = Prefetch([(torch.tensor([1, 2]), torch.tensor([0, 1]))] * 3, bag, sparse=lambda pair: pair, start=0)
        for ids, offsets in loader:
            bag(ids, offsets).sum().backward()
        assert loader.stats.batches == 3
        with pytest.raises(ValueError, match="without a wrapper"):
            Prefetch([], torch.nn.Sequential(emb))
        with pytest.raises(ValueError, match="depth is -1"):
            Prefetch([], emb, depth=-1)

    def test_it_starts_synchronously_and_again_after_rows_were_replaced(self, client):
        emb = collection(client)
        steps_at_pull = []
        start_ahead = emb._engine.start_ahead

        def watched(batch, used):
            steps_at_pull.append((int(batch.ids[0][0]), client.step))
            return start_ahead(batch, used)

        emb._engine.start_ahead = watched
        loader = Prefetch(batches(10), emb, depth=2, start=4)
        assert train(loader, emb) == 10
        # Batches 0 to 3 were looked up when all updates before them were made; from then on pulls run ahead.
        assert [batch for batch, _ in steps_at_pull] == [4, 5, 6, 7, 8, 9]
        assert all(batch - 2 <= step <= batch for batch, step in steps_at_pull)
        assert loader.stats.start_batches == 4 and loader.stats.batches == 6
        assert train(loader, emb) == 10 and loader.stats.start_batches == 4
        emb._engine.session.discard()  # as loading a checkpoint does
        assert train(loader, emb) == 10 and loader.stats.start_batches == 8

    def test_a_start_may_take_several_passes(self, client):
        emb = collection(client)
        loader = Prefetch(batches(3), emb, depth=2, start=5)
        assert train(loader, emb) == 3 and loader.stats.start_batches == 3 and loader.stats.batches == 0
        emb.eval()
        for batch in loader:
            emb(batch.sparse)
        emb.train()
        assert train(loader, emb) == 3 and loader.stats.start_batches == 5 and loader.stats.batches == 1
        with pytest.raises(ValueError, match="start is -1"):
            Prefetch([], emb, start=-1)

    def test_a_table_whose_rows_are_stale_has_one_warning(self, client):
        emb = collection(client)
        loader = Prefetch([Batch({"t": torch.arange(20)})] * 100, emb, depth=4)
        with pytest.warns(UserWarning, match=r"table 't' loses quality: its rows are updated \d.\d times on average"):
            train(loader, emb)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(loader, emb)

    def test_compiled_models_use_the_rows_too(self, client):
        emb = collection(client)
        compiled = torch.compile(lambda x: emb(x)["t"].sum(), backend="aot_eager", fullgraph=True)
        loader = Prefetch(batches(6), emb, depth=2, start=0)
        for batch in loader:
            compiled(batch.sparse).backward()
        emb.flush()
        assert loader.stats.batches == 6 and client.step == 6
