# SPDX-License-Identifier: Apache-2.0
"""Which requests a step makes: one pull and one push for each server, whatever the model does in between."""

import threading

import numpy as np
import pytest

import tandem

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tandem.nn.recompute import KeptLookups  # noqa: E402


def collection(client: tandem.Client, tables: int = 3, **options) -> "tandem.nn.EmbeddingCollection":
    return tandem.nn.EmbeddingCollection(
        [
            tandem.nn.Table(
                f"t{t}", dim=4, features=[f"f{t}a", f"f{t}b"], optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(1.0), **options
            )
            for t in range(tables)
        ],
        client,
    )


def features(tables: int = 3, seed: int = 0) -> "dict[str, torch.Tensor]":
    random = torch.Generator().manual_seed(seed)
    return {f"f{t}{x}": torch.randint(0, 1000, (32, 2), generator=random) for t in range(tables) for x in "ab"}


def requests(client: tandem.Client) -> "tuple[set[int], set[int]]":
    """Returns how many pulls and pushes of each table the servers have had."""
    stats = [info.stats for info in client.tables().values()]
    return {s["pulls"] for s in stats}, {s["pushes"] for s in stats}


def total(out: "dict[str, torch.Tensor]") -> "torch.Tensor":
    return torch.cat(list(out.values()), 1).square().sum()


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("on purpose")


def one(emb, id: int) -> "torch.Tensor":
    """Returns a loss whose gradient of the row is 1."""
    return emb({"f0a": torch.tensor([id]), "f0b": torch.tensor([id + 1000])})["f0a"][:, 0].sum()


class TestRequests:
    def test_a_step_of_six_features_is_one_pull_and_one_push_a_server(self, client):
        emb = collection(client)
        total(emb(features())).backward()
        emb.flush()
        assert requests(client) == ({client.num_servers}, {client.num_servers}) and client.step == 1

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_activation_checkpointing_adds_no_request(self, client, reentrant):
        emb = collection(client)
        dense = torch.nn.Linear(24, 24)
        x = features()

        def block(anchor):
            return dense(torch.cat(list(emb(x).values()), 1)).relu() * anchor

        anchor = torch.ones((), requires_grad=True)
        out = checkpoint(block, anchor, use_reentrant=reentrant)
        checkpoint(lambda y: dense(y).relu(), out, use_reentrant=reentrant).sum().backward()
        emb.flush()
        assert requests(client) == ({client.num_servers}, {client.num_servers}) and client.step == 1

        other = collection(client)
        block_result = dense(torch.cat(list(other(x).values()), 1))
        assert torch.isfinite(block_result).all()

    def test_a_pass_without_gradients_before_leaves_no_rows_for_a_recomputation(self):
        def run(with_a_pass_before: bool) -> np.ndarray:
            with tandem.local(servers=2, timeout=20) as client:
                emb = collection(client)
                x, other = features(seed=1), features(seed=2)
                anchor = torch.ones((), requires_grad=True)

                def block(a):
                    return torch.cat(list(emb(x).values()), 1).square() * a

                if with_a_pass_before:
                    with torch.no_grad():  # but in training mode, so that it may belong to a checkpoint
                        block(anchor)
                for _ in range(3):  # changes the rows of x
                    torch.cat(list(emb(x).values()), 1).sum().backward()
                    torch.cat(list(emb(other).values()), 1).sum().backward()
                checkpoint(block, anchor, use_reentrant=False).sum().backward()
                emb.flush()
                return client.pull("t1", np.arange(1000), read_only=True)[0]

        np.testing.assert_array_equal(run(True), run(False))

    def test_rows_for_which_no_recomputation_asks_are_dropped(self, client):
        emb = collection(client)
        kept = emb._engine.session._kept
        with torch.no_grad():
            emb(features(seed=1))
        assert kept._bytes > 0
        for step in range(20):
            torch.cat(list(emb(features(seed=2 + step)).values()), 1).sum().backward()
        emb.flush()
        assert kept._bytes == 0 and not kept._by_key

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_activation_checkpointing_changes_no_result(self, reentrant):
        def run(checkpointed: bool) -> np.ndarray:
            with tandem.local(servers=2, timeout=20) as client:
                emb = collection(client)
                for step in range(3):
                    x = features(seed=step)
                    anchor = torch.ones((), requires_grad=True)

                    def block(a, x=x):
                        return torch.cat(list(emb(x).values()), 1).square() * a

                    out = checkpoint(block, anchor, use_reentrant=reentrant) if checkpointed else block(anchor)
                    out.sum().backward()
                emb.flush()
                assert client.step == 3
                return client.pull("t1", np.arange(1000), read_only=True)[0]

        np.testing.assert_array_equal(run(True), run(False))

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpoints_of_many_lookups_pull_each_row_once(self, client, reentrant):
        emb = collection(client, 1)
        anchor = torch.ones((), requires_grad=True)
        parts = []
        for i in range(50):
            # Two of the lookups have the same contents.
            parts.append(checkpoint(lambda a, i=i: one(emb, max(1, i)) * a, anchor, use_reentrant=reentrant))
        before = requests(client)[0]
        sum(parts).backward()
        emb.flush()
        assert requests(client)[0] == before and client.step == 1
        assert client.pull("t0", [1, 2, 49], read_only=True)[0][:, 0].tolist() == [-1.0, 0.0, 0.0]
        kept = emb._engine.session._kept
        del parts
        assert not kept._kept and not kept._alive and kept._bytes == 0

    def test_a_recomputation_whose_rows_were_dropped_says_so(self, client, monkeypatch):
        emb = collection(client, 1)
        monkeypatch.setattr(emb._engine.session, "_kept", KeptLookups(limit=1))
        anchor = torch.ones((), requires_grad=True)
        parts = [checkpoint(lambda a, i=i: one(emb, i) * a, anchor, use_reentrant=True) for i in (1, 2)]
        with pytest.warns(UserWarning, match="a lookup again whose rows were dropped"):
            sum(parts).backward()
        emb.flush()
        assert client.pull("t0", [1, 2], read_only=True)[0][:, 0].tolist() == [0.0, 0.0]

    def test_modules_of_a_client_share_the_push(self, client):
        bags = [
            tandem.nn.EmbeddingBag(4, name=f"t{i}", client=client, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(1.0))
            for i in range(3)
        ]
        sum(bag(torch.tensor([[1, 2]])).sum() for bag in bags).backward()
        bags[0].flush()
        assert requests(client)[1] == {client.num_servers} and client.step == 1
        assert client.pull("t2", [1], read_only=True)[0][0, 0] == 0.5

    def test_lookups_of_one_table_add_up_in_one_push(self, client):
        emb = tandem.nn.Embedding(2, name="t", client=client, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(0.0))
        (emb(torch.tensor([1, 2])).sum() + emb(torch.tensor([2, 3])).sum()).backward()
        emb.flush()
        assert client.step == 1
        assert client.pull("t", [1, 2, 3], read_only=True)[0][:, 0].tolist() == [-1.0, -2.0, -1.0]


class TestAccumulation:
    def test_a_push_without_gradients_counts_as_a_step(self):
        with tandem.local(timeout=10) as client:
            emb = collection(client, 1, mode="sync", num_workers=1)
            emb.push()
            emb.flush()
            assert client.step == 1
            total(emb(features(1))).backward()
            emb.flush()
            assert client.step == 2

    def test_a_backward_pass_that_fails_pushes_nothing(self, client):
        emb = collection(client, 1)
        y = emb({"f0a": torch.tensor([1]), "f0b": torch.tensor([2])})
        z = emb({"f0a": torch.tensor([4]), "f0b": torch.tensor([5])})
        with pytest.raises(ZeroDivisionError):
            (y["f0a"].sum() + Fails.apply(z["f0a"]).sum()).backward()
        emb({"f0a": torch.tensor([7]), "f0b": torch.tensor([8])})["f0a"].sum().backward()
        emb.flush()
        assert client.step == 1
        assert client.pull("t0", [1, 4, 7], read_only=True)[0][:, 0].tolist() == [1.0, 1.0, 0.0]

    @pytest.mark.parametrize("through", ["a new backward pass", "a forward pass"])
    def test_a_backward_pass_after_one_that_failed_pushes_its_own_gradients(self, client, through):
        emb = collection(client, 1)
        good, bad = one(emb, 1), one(emb, 4)
        with pytest.raises(ZeroDivisionError):
            (one(emb, 7) + Fails.apply(bad)).backward()
        assert not emb._engine.session._passes
        if through == "a forward pass":
            one(emb, 9)
        good.backward()
        emb.flush()
        assert client.step == 1
        assert client.pull("t0", [1, 4, 7], read_only=True)[0][:, 0].tolist() == [0.0, 1.0, 1.0]

    def test_a_backward_pass_that_fails_leaves_gradients_that_wait(self, client):
        emb = collection(client, 1)
        optimizer = torch.optim.SGD(emb.parameters(), lr=1.0)
        emb.follow(optimizer)
        one(emb, 1).backward()
        with pytest.raises(ZeroDivisionError):
            (one(emb, 2) + Fails.apply(one(emb, 3))).backward()
        optimizer.step()
        emb.flush()
        assert client.step == 1 and client.pull("t0", [1, 2, 3], read_only=True)[0][:, 0].tolist() == [0.0, 1.0, 1.0]

    def test_threads_that_train_modules_of_one_client_lose_nothing(self, client):
        emb = collection(client, 1)
        steps, errors = 50, []

        def train(first: int) -> None:
            try:
                for step in range(steps):
                    loss = one(emb, first) + one(emb, first + 1)
                    if step % 7 == 3:
                        with pytest.raises(ZeroDivisionError):
                            (one(emb, first) + Fails.apply(one(emb, first + 2))).backward()
                    loss.backward()
                emb.flush()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=train, args=(10 * t,)) for t in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors and client.step == 3 * steps
        for t in range(3):
            ids = [10 * t, 10 * t + 1, 10 * t + 2]
            assert client.pull("t0", ids, read_only=True)[0][:, 0].tolist() == [1.0 - steps, 1.0 - steps, 1.0]

    @pytest.mark.parametrize("compiled", [False, True])
    def test_gradients_of_weights_alone_train_no_row(self, client, compiled):
        bag = tandem.nn.EmbeddingBag(
            4, mode="sum", name="t0", client=client, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(1.0)
        )
        weights = torch.ones(2, requires_grad=True)
        ids, offsets = torch.tensor([1, 2]), torch.tensor([0])
        forward = torch.compile(bag, backend="aot_eager") if compiled else bag
        (gradient,) = torch.autograd.grad(forward(ids, offsets, weights).sum(), [weights])
        bag.flush()
        assert gradient.tolist() == [4.0, 4.0]
        assert client.step == 0 and client.pull("t0", [1, 2], read_only=True)[0][:, 0].tolist() == [1.0, 1.0]
        forward(ids, offsets, weights).sum().backward()
        bag.flush()
        assert client.step == 1 and client.pull("t0", [1, 2], read_only=True)[0][:, 0].tolist() == [0.0, 0.0]

    def test_a_graph_that_is_kept_can_be_used_again(self, client):
        emb = collection(client, 1)
        loss = emb({"f0a": torch.tensor([1]), "f0b": torch.tensor([2])})["f0a"].sum()
        loss.backward(retain_graph=True)
        loss.backward()
        emb.flush()
        assert client.step == 2 and client.pull("t0", [1], read_only=True)[0][0, 0] == -1.0

    def test_gradients_are_divided_by_the_number_of_workers(self):
        with tandem.local(timeout=10) as client:
            client._world_size = 4
            options = {"dim": 1, "optimizer": tandem.optim.SGD(lr=1.0), "init": tandem.init.Constant(0.0), "num_workers": 1}
            mean = tandem.nn.EmbeddingCollection([tandem.nn.Table("a", **options)], client)
            whole = tandem.nn.EmbeddingCollection([tandem.nn.Table("b", **options)], client, reduction="sum")
            (mean({"a": torch.tensor([1])})["a"].sum() + whole({"b": torch.tensor([1])})["b"].sum()).backward()
            mean.flush()
            assert client.pull("a", [1], read_only=True)[0][0, 0] == -0.25
            assert client.pull("b", [1], read_only=True)[0][0, 0] == -1.0
