# SPDX-License-Identifier: Apache-2.0
"""Which requests a step makes: one pull and one push for each server, whatever the model does in between."""

import numpy as np
import pytest

import tandem

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")
from torch.utils.checkpoint import checkpoint  # noqa: E402


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
    def test_no_push_keeps_gradients_for_the_first_push_after_it(self, client):
        emb = collection(client, 1)
        with emb.no_push():
            emb({"f0a": torch.tensor([1]), "f0b": torch.tensor([2])})["f0a"].sum().backward()
            emb({"f0a": torch.tensor([1]), "f0b": torch.tensor([2])})["f0b"].sum().backward()
        assert client.step == 0
        emb({"f0a": torch.tensor([1]), "f0b": torch.tensor([3])})["f0a"].sum().backward()
        emb.flush()
        assert client.step == 1
        assert client.pull("t0", [1, 2, 3], read_only=True)[0][:, 0].tolist() == [-1.0, 0.0, 1.0]

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

        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise ZeroDivisionError("on purpose")

        y = emb({"f0a": torch.tensor([1]), "f0b": torch.tensor([2])})
        z = emb({"f0a": torch.tensor([4]), "f0b": torch.tensor([5])})
        with pytest.raises(ZeroDivisionError):
            (y["f0a"].sum() + Fails.apply(z["f0a"]).sum()).backward()
        emb({"f0a": torch.tensor([7]), "f0b": torch.tensor([8])})["f0a"].sum().backward()
        emb.flush()
        assert client.step == 1
        assert client.pull("t0", [1, 4, 7], read_only=True)[0][:, 0].tolist() == [1.0, 1.0, 0.0]

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
