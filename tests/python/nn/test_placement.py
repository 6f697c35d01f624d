# SPDX-License-Identifier: Apache-2.0
"""Tables that every worker has as a parameter, compared with sharded ones."""

import copy

import numpy as np
import pytest

import tandem

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")

ROWS, DIM = 30, 4


def tables(placement: str, **options) -> "list[tandem.nn.Table]":
    own = {"placement": "replicated", "num_embeddings": ROWS} if placement == "replicated" else {"optimizer": tandem.optim.SGD(lr=0.5), "mode": "sync"}
    return [
        tandem.nn.Table("sum", DIM, features=["a", "b"], seed=3, init=tandem.init.Normal(0.0, 1.0), **own, **options),
        tandem.nn.Table("mean", DIM, pooling="mean", padding_idx=2, **own, **options),
        tandem.nn.Table("rows", 3, pooling=None, padding_idx=0, **own, **options),
    ]


def batch(step: int) -> "dict[str, object]":
    random = torch.Generator().manual_seed(step)
    ids = torch.randint(0, ROWS, (9,), generator=random)
    return {
        "a": (ids, torch.tensor([0, 4, 4, 6, 9]), torch.rand(9, generator=random)),
        "b": torch.randint(0, ROWS, (4,), generator=random),
        "mean": torch.randint(0, 5, (4, 3), generator=random),
        "rows": torch.randint(0, 4, (4,), generator=random),
    }


def loss_of(out: "dict[str, torch.Tensor]") -> "torch.Tensor":
    return sum((o * torch.arange(1.0, o.numel() + 1).view_as(o)).square().mean() for o in out.values())


class TestReplicated:
    def test_a_replicated_table_trains_as_a_sharded_one_in_sync_mode(self, client):
        sharded = tandem.nn.EmbeddingCollection(tables("sharded"), client)
        local = tandem.nn.EmbeddingCollection(tables("replicated"), client)
        assert {name for name, _ in local.named_parameters()} == {"replicated.sum", "replicated.mean", "replicated.rows"}
        optimizer = torch.optim.SGD(local.parameters(), lr=0.5)
        for step in range(5):
            mine, theirs = local(batch(step)), sharded(batch(step))
            assert list(mine) == list(theirs) == ["a", "b", "mean", "rows"]
            for name in mine:
                torch.testing.assert_close(mine[name], theirs[name], rtol=1e-4, atol=1e-5)
            optimizer.zero_grad()
            loss_of({name: 0.01 * out for name, out in mine.items()}).backward()
            optimizer.step()
            loss_of({name: 0.01 * out for name, out in theirs.items()}).backward()
        sharded.flush()
        for name in ("sum", "rows"):
            rows = client.pull(name, np.arange(1, ROWS), read_only=True)[0]
            np.testing.assert_allclose(local.replicated[name].detach().numpy()[1:], rows, rtol=1e-4, atol=1e-5)

    def test_reduction_sum_multiplies_gradients_also_of_copies_and_of_replaced_parameters(self, client):
        client._world_size = 4
        summed = tandem.nn.EmbeddingCollection(tables("replicated"), client, reduction="sum")
        averaged = tandem.nn.EmbeddingCollection(tables("replicated"), client)
        loss_of(averaged(batch(1))).backward()
        copied = copy.deepcopy(summed)
        replaced = copy.deepcopy(summed)
        for name, parameter in list(replaced.replicated.items()):  # as fully_shard() does
            replaced.replicated[name] = torch.nn.Parameter(parameter.detach().clone())
        for module in (summed, copied, replaced):
            loss_of(module(batch(1))).backward()
            for name, parameter in module.replicated.items():
                torch.testing.assert_close(parameter.grad, 4 * averaged.replicated[name].grad)

    def test_both_placements_in_one_module(self, client):
        mixed = tandem.nn.EmbeddingCollection([tables("replicated")[0], tables("sharded")[1]], client)
        out = mixed(batch(0))
        assert list(out) == ["a", "b", "mean"]
        loss_of(out).backward()
        mixed.flush()
        assert client.step == 1 and mixed.replicated["sum"].grad.abs().sum() > 0 and set(client.tables()) == {"mean"}

    def test_modules_of_one_table(self, client):
        options = {"name": "t", "client": client, "placement": "replicated", "num_embeddings": ROWS, "seed": 5}
        bag, rows = tandem.nn.EmbeddingBag(DIM, mode="sum", **options), tandem.nn.Embedding(DIM, **options)
        ids = torch.tensor([1, 2, 3])
        torch.testing.assert_close(bag(ids, torch.tensor([0, 2])), torch.stack([rows(ids)[:2].sum(0), rows(ids)[2]]))
        torch.testing.assert_close(bag(ids.view(3, 1)), rows(ids))
        assert bag(torch.zeros(2, 0, dtype=torch.int64)).tolist() == [[0.0] * DIM] * 2
        assert not client.tables()

    def test_compiled_graphs_give_the_same_results(self, client):
        emb = tandem.nn.EmbeddingCollection(tables("replicated")[:2], client)
        compiled = torch.compile(lambda x: loss_of(emb(x)), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(batch(1)), loss_of(emb(batch(1))))

    def test_rows_are_in_the_state_and_copies_have_their_own(self, client):
        emb = tandem.nn.EmbeddingCollection(tables("replicated"), client)
        state = emb.state_dict()
        assert state["replicated.sum"].shape == (ROWS, DIM)
        copied = copy.deepcopy(emb)
        with torch.no_grad():
            emb.replicated["sum"].zero_()
        assert copied.replicated["sum"].abs().sum() > 0
        emb.load_state_dict({name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in copied.state_dict().items()})
        assert torch.equal(emb.replicated["sum"], copied.replicated["sum"])
        sharded = tandem.nn.EmbeddingCollection(tables("sharded"), client)
        with pytest.raises(RuntimeError, match="saved with replicated True of table 'sum', here it is False"):
            sharded.load_state_dict({"_extra_state": state["_extra_state"]})

    def test_auto_replicates_small_tables_of_known_size(self):
        def replicated(**options) -> bool:
            return tandem.nn.Table("t", 16, placement="auto", optimizer=tandem.optim.SGD(lr=1.0), **options).replicated

        assert replicated(num_embeddings=1024) and not replicated(num_embeddings=1025) and not replicated()

    def test_gradients_of_a_sum_are_not_divided_by_the_workers(self):
        with tandem.local(timeout=10) as client:
            client._world_size = 4
            emb = tandem.nn.EmbeddingCollection(tables("replicated")[:1], client, reduction="sum")
            emb(batch(0))["b"].sum().backward()
            # DistributedDataParallel divides it by 4.
            assert emb.replicated["sum"].grad.sum() == 4 * 4 * DIM

    def test_prefetch_has_nothing_to_do(self, client):
        emb = tandem.nn.EmbeddingCollection(tables("replicated"), client)
        loader = tandem.data.Prefetch([{"sparse": batch(0)}], emb, depth=2)
        with pytest.warns(UserWarning, match="all tables of the module are replicated"):
            assert [emb(b["sparse"])["b"].shape for b in loader] == [(4, DIM)]


class TestWrongInput:
    @pytest.mark.parametrize(
        "options, text",
        [
            ({"placement": "replicated"}, "'t' is replicated and has no num_embeddings"),
            ({"placement": "everywhere"}, "placement is 'everywhere'"),
            ({"placement": "replicated", "num_embeddings": 0}, "num_embeddings is 0"),
            ({"placement": "replicated", "num_embeddings": 4, "optimizer": tandem.optim.SGD(lr=1.0)}, "leave `optimizer` out"),
            ({"placement": "replicated", "num_embeddings": 4, "row_type": "f16"}, "row_type is 'f16'; only sharded"),
            ({"placement": "replicated", "num_embeddings": 4, "spill": True}, "spill is True; only sharded"),
        ],
    )
    def test_tables(self, options, text):
        with pytest.raises(ValueError, match=text):
            tandem.nn.Table("t", 4, **options)

    @pytest.mark.parametrize("id", [-1, ROWS])
    def test_ids_outside_of_the_vocabulary_are_named(self, client, id):
        emb = tandem.nn.EmbeddingCollection(tables("replicated"), client)
        with pytest.raises(ValueError, match=f"feature 'b' contains the id {id}; table 'sum' is replicated, with ids from 0 to {ROWS - 1}"):
            emb(batch(0) | {"b": torch.tensor([1, id, 2, 3])})

    def test_names(self, client):
        options = {"placement": "replicated", "num_embeddings": 4}
        with pytest.raises(ValueError, match="differ by dots only"):
            tandem.nn.EmbeddingCollection([tandem.nn.Table("a.b", 2, **options), tandem.nn.Table("a_b", 2, **options)], client)
        emb = tandem.nn.EmbeddingCollection([tandem.nn.Table("a.b", 2, **options)], client)
        assert emb({"a.b": torch.tensor([1])})["a.b"].shape == (1, 2)
