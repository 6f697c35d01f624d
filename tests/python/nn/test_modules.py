# SPDX-License-Identifier: Apache-2.0
"""Modules over tables, compared with those of torch over the same rows."""

import copy
import os
import pickle

import numpy as np
import pytest

import tandem

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")

DIM = 8
ROWS = 50


def table(name="user", **options) -> "tandem.nn.Table":
    options = {"dim": DIM, "optimizer": tandem.optim.SGD(lr=0.5), "init": tandem.init.Normal(0.0, 1.0)} | options
    return tandem.nn.Table(name, **options)


def twin(client: tandem.Client, name: str = "user", mode: str = "sum", rows: int = ROWS) -> "torch.nn.EmbeddingBag":
    """Returns torch's module with the rows of the table."""
    weights, _ = client.pull(name, np.arange(rows))
    return torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weights), freeze=False, mode=mode, sparse=True)


def rows_of(client: tandem.Client, name: str = "user", rows: int = ROWS) -> np.ndarray:
    return client.pull(name, np.arange(rows), read_only=True)[0]


def random_bags(seed: int, bags: int = 20) -> "tuple[torch.Tensor, torch.Tensor]":
    random = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 5, (bags,), generator=random)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return torch.randint(0, ROWS, (int(offsets[-1]),), generator=random), offsets


class Jagged:
    """A KeyedJaggedTensor of TorchRec, as far as modules use it. Without strides, all keys have the same number of bags."""

    def __init__(self, keys, lengths, strides=None, inverse=None, weighted=False) -> None:
        self._keys, self._lengths, self._inverse, self._weighted = keys, torch.tensor(lengths, dtype=torch.int64), inverse, weighted
        self._strides = strides or [len(lengths) // len(keys)] * len(keys)

    def keys(self):
        return self._keys

    def stride_per_key(self):
        return self._strides

    def values(self):
        return torch.arange(int(self._lengths.sum())) * 7 % 50

    def offsets(self):
        return torch.cat([torch.zeros(1, dtype=torch.int64), self._lengths.cumsum(0)])

    def offset_per_key(self):
        firsts = np.cumsum([0, *self._strides]).clip(max=len(self._lengths))
        return [int(self.offsets()[first]) for first in firsts]

    def weights_or_none(self):
        return torch.arange(len(self.values())) + 0.5 if self._weighted else None

    def inverse_indices_or_none(self):
        return None if self._inverse is None else (self._inverse[0], torch.tensor(self._inverse[1]))

    def bags_of(self, key):
        """Returns (ids, weights) of each bag of a key, in the obvious way."""
        k = self._keys.index(key)
        first = sum(self._strides[:k])
        weights = self.weights_or_none() if self._weighted else torch.ones(len(self.values()))
        bags = []
        for b in range(first, first + self._strides[k]):
            begin, end = int(self._lengths[:b].sum()), int(self._lengths[: b + 1].sum())
            bags.append((self.values()[begin:end].numpy(), weights[begin:end].numpy()))
        if self._inverse is None:
            return bags
        return [bags[i] for i in self._inverse[1][self._inverse[0].index(key)]]


class TestResults:
    @pytest.mark.parametrize("pooling", ["sum", "mean"])
    def test_outputs_and_updates_are_those_of_torch(self, client, pooling):
        emb = tandem.nn.EmbeddingCollection([table(pooling=pooling)], client)
        reference = twin(client, mode=pooling)
        optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
        for step in range(10):
            ids, offsets = random_bags(step)
            weight = torch.randn(20, DIM, generator=torch.Generator().manual_seed(step))
            out = emb({"user": (ids, offsets)})["user"]
            expected = reference(ids, offsets[:-1])
            torch.testing.assert_close(out, expected)
            (out * weight).sum().backward()
            optimizer.zero_grad()
            (expected * weight).sum().backward()
            optimizer.step()
        emb.flush()
        np.testing.assert_allclose(rows_of(client), reference.weight.detach().numpy(), rtol=1e-4, atol=1e-4)

    def test_weights_of_ids_have_gradients(self, client):
        bag = tandem.nn.EmbeddingBag(
            DIM, mode="sum", name="user", client=client, optimizer=tandem.optim.SGD(lr=0.5), init=tandem.init.Normal(0.0, 1.0)
        )
        reference = twin(client)
        ids, offsets = random_bags(3)
        mine = torch.rand(len(ids), requires_grad=True)
        theirs = mine.detach().clone().requires_grad_()
        weight = torch.randn(20, DIM)
        out = bag(ids, offsets[:-1], mine)
        expected = reference(ids, offsets[:-1], theirs)
        torch.testing.assert_close(out, expected)
        (out * weight).sum().backward()
        (expected * weight).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
        bag.flush()
        changed = reference.weight.detach() - 0.5 * reference.weight.grad.to_dense()
        np.testing.assert_allclose(rows_of(client), changed.numpy(), rtol=1e-4, atol=1e-4)

    def test_embedding_returns_a_row_for_each_id(self, client):
        emb = tandem.nn.Embedding(DIM, name="user", client=client, optimizer=tandem.optim.SGD(lr=1.0))
        weights = torch.from_numpy(client.pull("user", np.arange(ROWS))[0]).requires_grad_()
        ids = torch.randint(0, ROWS, (4, 3, 2))
        out = emb(ids)
        assert out.shape == (4, 3, 2, DIM)
        torch.testing.assert_close(out, torch.nn.functional.embedding(ids, weights))
        out.square().sum().backward()
        torch.nn.functional.embedding(ids, weights).square().sum().backward()
        emb.flush()
        np.testing.assert_allclose(rows_of(client), (weights - weights.grad).detach().numpy(), rtol=1e-4, atol=1e-4)

    def test_padding_reads_as_zeros_and_learns_nothing(self, client):
        emb = tandem.nn.EmbeddingBag(
            DIM, padding_idx=0, name="user", client=client, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(2.0)
        )
        out = emb(torch.tensor([[0, 0], [0, 5], [5, 6]]))
        assert out[:, 0].tolist() == [0.0, 2.0, 2.0]
        out.sum().backward()
        emb.flush()
        assert client.pull("user", [0, 5, 6], read_only=True)[0][:, 0].tolist() == [2.0, 0.5, 1.5]
        assert client.stats("user")["rows"] == 2

    def test_bags_of_one_row_each_and_of_a_matrix(self, client):
        emb = tandem.nn.EmbeddingCollection([table(init=tandem.init.Constant(1.0))], client)
        assert emb({"user": torch.tensor([1, 2, 3])})["user"].tolist() == [[1.0] * DIM] * 3
        assert emb({"user": torch.tensor([[1, 2], [3, 3]])})["user"].tolist() == [[2.0] * DIM] * 2
        assert emb({"user": torch.zeros(2, 0, dtype=torch.int64)})["user"].tolist() == [[0.0] * DIM] * 2
        assert emb({"user": torch.zeros(0, dtype=torch.int32)})["user"].shape == (0, DIM)

    def test_features_share_a_table_and_differ_in_dim(self, client):
        tables = [
            table("user", features=["user", "friends"], init=tandem.init.Constant(1.0), optimizer=tandem.optim.SGD(lr=1.0)),
            table("item", dim=2, pooling=None, init=tandem.init.Constant(3.0)),
        ]
        emb = tandem.nn.EmbeddingCollection(tables, client)
        out = emb({"item": torch.tensor([9, 9]), "friends": torch.tensor([[1, 2]]), "user": torch.tensor([1])})
        assert {name: tuple(o.shape) for name, o in out.items()} == {"user": (1, DIM), "friends": (1, DIM), "item": (2, 2)}
        (out["user"].sum() + out["friends"].sum()).backward()
        emb.flush()
        assert client.pull("user", [1, 2], read_only=True)[0][:, 0].tolist() == [-1.0, 0.0]
        assert client.pull("item", [9], read_only=True)[0].tolist() == [[3.0, 3.0]]

    def test_stacked_outputs_and_their_updates_are_those_of_torch_stack(self, client):
        rows = []
        for name in ("separate", "stacked"):
            first = table(f"{name}-a", features=["x", "y"], pooling="sum", seed=1)
            second = table(f"{name}-b", features=["z"], pooling="mean", seed=2)
            emb = tandem.nn.EmbeddingCollection([first, second], client)
            bags = (torch.tensor([1, 2, 9]), torch.tensor([0, 2, 2, 3]))
            ids = {"x": torch.tensor([1, 2, 3]), "y": torch.tensor([[1, 4], [5, 5], [6, 7]]), "z": bags}
            out = emb.stack(ids) if name == "stacked" else torch.stack(list(emb(ids).values()), 1)
            assert out.shape[:2] == (3, 3)
            (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
            emb.flush()
            rows.append([out.detach().numpy(), rows_of(client, f"{name}-a"), rows_of(client, f"{name}-b"), emb.eval().stack(ids).numpy()])
        for separate, stacked in zip(*rows):
            np.testing.assert_array_equal(separate, stacked)

    def test_an_output_of_another_shape_cannot_be_stacked(self, client):
        emb = tandem.nn.EmbeddingCollection([table("a", features=["x"]), table("b", features=["y"])], client)
        with pytest.raises(tandem.errors.InvalidArgumentError, match=r"feature 'y' is \[3, 8\], that of 'x' \[2, 8\]"):
            emb.stack({"x": torch.tensor([1, 2]), "y": torch.tensor([1, 2, 3])})
        assert [client.stats(name)["rows"] for name in ("a", "b")] == [0, 0]  # no row is created for nothing
        rows = tandem.nn.EmbeddingCollection([table("a", features=["x"], pooling=None)], client)
        with pytest.raises(tandem.errors.InvalidArgumentError, match=r"feature 'x' is \[2, 1, 8\] .*a pooling"):
            rows.stack({"x": torch.tensor([[1], [2]])})

    @pytest.mark.parametrize("pooling", ["sum", "mean"])
    @pytest.mark.parametrize(
        "keys, lengths, strides, inverse",
        [
            (["item", "user"], [1, 2, 0, 2], None, None),
            (["user", "item"], [1, 0, 1, 2], [2, 2], None),
            (["user", "item"], [1, 0, 1, 3], [1, 3], None),
            (["other", "item", "user"], [2, 1, 0, 0, 1, 4], [1, 3, 2], None),
            (["user", "item"], [2, 0, 1, 1], [1, 3], (["user", "item"], [[0, 0, 0], [0, 1, 2]])),
            (["user", "item"], [1, 1, 2, 1], [2, 2], (["item", "user"], [[0, 1, 0], [1, 1, 0]])),
            (["user", "item"], [], [0, 0], None),
        ],
    )
    def test_bags_of_a_keyed_jagged_tensor_are_those_of_its_keys(self, client, pooling, keys, lengths, strides, inverse):
        jagged = Jagged(keys, lengths, strides, inverse, weighted=pooling == "sum")
        tables = [table(pooling=pooling), table("item", pooling=pooling)]
        emb = tandem.nn.EmbeddingCollection(tables, client)
        out = emb(jagged)
        assert list(out) == ["user", "item"]
        for name in out:
            rows = client.pull(name, np.arange(100))[0]
            bags = [
                (w[:, None] * rows[ids]).sum(0) / (max(1, len(ids)) if pooling == "mean" else 1) for ids, w in jagged.bags_of(name)
            ]
            expected = np.array(bags, np.float32).reshape(-1, DIM)
            np.testing.assert_allclose(out[name].detach().numpy(), expected, rtol=1e-5, atol=1e-5)
        if len({len(o) for o in out.values()}) == 1:
            torch.testing.assert_close(emb.stack(jagged), torch.stack(list(out.values()), 1))

    def test_gradients_of_inverse_indices_go_to_the_bag_that_they_repeat(self, client):
        emb = tandem.nn.EmbeddingCollection([table(optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Zeros())], client)
        jagged = Jagged(["user"], [1, 1], [2], (["user"], [[0, 1, 0]]))
        emb(jagged)["user"].sum().backward()
        emb.flush()
        assert client.pull("user", jagged.values().numpy(), read_only=True)[0][:, 0].tolist() == [-2.0, -1.0]

    def test_keyed_jagged_tensors_that_make_no_sense_are_refused(self, client):
        emb = tandem.nn.EmbeddingCollection([table(), table("item")], client)
        with pytest.raises(ValueError, match=r"has 3 bags, and its keys \(user, item\) have \[1, 3\]"):
            emb(Jagged(["user", "item"], [1, 1, 1], [1, 3]))
        with pytest.raises(ValueError, match="the inverse indices of the KeyedJaggedTensor lack 'item'"):
            emb(Jagged(["user", "item"], [1, 1], [1, 1], (["user"], [[0]])))
        rows = tandem.nn.EmbeddingCollection([table("rows", pooling=None)], client)
        with pytest.raises(ValueError, match="'rows' has no pooling, and the KeyedJaggedTensor has inverse indices"):
            rows(Jagged(["rows"], [1, 1], [2], (["rows"], [[0, 1, 0]])))

    # Each bucket holds a few rows. 20,000 ids are then pushed ten times each.
    def test_ids_that_repeat_in_one_push_outlive_ids_of_more_pushes_under_lfu(self, client):
        emb = tandem.nn.EmbeddingCollection(
            [table(init=tandem.init.Zeros(), eviction=tandem.eviction.LFU(), byte_budget=256 << 10)], client
        )
        repeated, raw, rare = np.arange(60).reshape(3, 20)

        def use(ids):
            emb({"user": (torch.from_numpy(ids), torch.arange(0, len(ids) + 1))})["user"].sum().backward()

        use(np.concatenate([np.repeat(repeated, 20), rare]))
        emb.flush()
        ids = np.repeat(raw, 20)
        client.pull("user", raw)
        client.push("user", ids, np.ones((len(ids), DIM), dtype=np.float32))
        for _ in range(10):
            use(np.arange(1000, 21000))
            emb.flush()
        assert client.stats("user")["evicted_rows"] > 10000
        for name, ids in {"repeated": repeated, "raw": raw}.items():
            assert np.all(client.pull("user", ids, read_only=True)[0] == -10.0), name
        assert np.count_nonzero(client.pull("user", rare, read_only=True)[0]) == 0

    def test_two_runs_give_the_same_bits(self):
        def run() -> np.ndarray:
            with tandem.local(servers=2, timeout=20) as client:
                emb = tandem.nn.EmbeddingCollection([table(optimizer=tandem.optim.Adagrad(lr=0.1))], client)
                for step in range(5):
                    ids, offsets = random_bags(step)
                    emb({"user": (ids, offsets)})["user"].square().sum().backward()
                emb.flush()
                return rows_of(client)

        assert np.array_equal(run(), run())

    def test_evaluation_creates_no_rows_and_needs_no_gradient(self, client):
        emb = tandem.nn.EmbeddingCollection([table()], client).eval()
        out = emb({"user": torch.tensor([1, 2])})["user"]
        assert not out.requires_grad and client.stats("user")["rows"] == 0 and client.step == 0


class TestWithTorch:
    def test_compiled_graphs_give_the_same_results(self, client):
        emb = tandem.nn.EmbeddingCollection([table(features=["user", "friends"]), table("item", dim=4, pooling=None)], client)
        dense = torch.nn.Linear(2 * DIM + 4, 1)
        optimizer = torch.optim.SGD(emb.parameters(), lr=0.1)
        emb.follow(optimizer)

        def loss(features, weights):
            out = emb(features | {"friends": (*features["friends"], weights)})
            return dense(torch.cat([out["user"], out["friends"], out["item"]], 1)).square().sum()

        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        for size in (6, 6, 9):
            ids = torch.arange(size)
            features = {"user": ids, "item": ids * 3, "friends": (torch.arange(2 * size), torch.arange(0, 2 * size + 1, 2))}
            mine = torch.rand(2 * size, requires_grad=True)
            theirs = mine.detach().clone().requires_grad_()
            before = client.step
            expected = loss(features, mine)
            result = compiled(features, theirs)
            torch.testing.assert_close(result, expected)
            expected.backward()
            first = rows_of(client)
            optimizer.step()
            emb.flush()
            by_eager = rows_of(client) - first
            result.backward()
            optimizer.step()
            emb.flush()
            assert client.step == before + 2
            torch.testing.assert_close(mine.grad, theirs.grad)
            np.testing.assert_allclose(rows_of(client) - first, 2 * by_eager, rtol=1e-3, atol=1e-4)
            assert np.any(by_eager != 0)

    def test_parameters_stand_for_tables_and_the_state_has_configurations_only(self, client):
        tables = [table(), table("a.b"), table("a_b"), table("training"), table("forward")]
        emb = tandem.nn.EmbeddingCollection(tables, client)
        assert [(name, p.shape) for name, p in emb.named_parameters()] == [
            (f"handles.{name}", (1,)) for name in ("user", "a_b", "a_b_", "training_", "forward_")
        ]
        emb = tandem.nn.EmbeddingCollection([table()], client)
        assert repr(next(emb.parameters())) == "TableParameter('user', requires_grad=True)"
        state = torch.nn.Sequential(emb, torch.nn.Linear(2, 2)).state_dict()
        assert sorted(state) == ["0._extra_state", "1.bias", "1.weight"]
        emb.load_state_dict(emb.state_dict())
        saved = emb.state_dict()
        saved["_extra_state"]["tables"][0]["dim"] = 3
        with pytest.raises(RuntimeError, match="dim 3 of table 'user', here it is 8"):
            emb.load_state_dict(saved)
        with pytest.raises(TypeError, match="save its state_dict"):
            pickle.dumps(emb)

    def test_copies_have_the_same_rows(self, client):
        emb = tandem.nn.EmbeddingCollection([table(init=tandem.init.Constant(0.0))], client)
        copied = copy.deepcopy(torch.nn.Sequential(emb))[0]
        copied.eval()
        assert emb.training
        emb({"user": torch.tensor([1])})["user"].sum().backward()
        assert copied({"user": torch.tensor([1])})["user"].tolist() == [[-0.5] * DIM]

    def test_default_dtypes_and_autocast_change_no_output(self, client):
        emb = tandem.nn.EmbeddingCollection([table()], client)
        torch.set_default_dtype(torch.float64)
        try:
            with torch.autocast("cpu", torch.bfloat16):
                out = emb({"user": torch.tensor([[1, 2]])})["user"]
                expected, _ = client.pull("user", [1, 2])
        finally:
            torch.set_default_dtype(torch.float32)
        assert out.dtype == torch.float32
        np.testing.assert_allclose(out.detach().numpy(), expected.sum(axis=0, keepdims=True), rtol=1e-6)
        out.double().sum().backward()

    def test_the_compiled_operator_is_described_correctly(self, client):
        emb = tandem.nn.EmbeddingCollection([table(), table("item", dim=3, pooling=None)], client)
        engine = emb._engine
        ids = [torch.tensor([1, 2, 3]), torch.tensor([[4], [5]])]
        arguments = ([handle.parameter.detach() for handle in engine.handles], engine.number, False, ids, [torch.tensor([0, 1, 3])], [False, True], [0, 0], True, [], [True, True])
        torch.library.opcheck(torch.ops.tandem.lookup.default, arguments, test_utils=("test_schema", "test_faketensor"))

    def test_gradients_that_are_not_finite_raise_and_name_the_id(self, client):
        emb = tandem.nn.EmbeddingCollection([table()], client)
        with pytest.raises(ValueError, match="id 7"):
            (emb({"user": torch.tensor([7])})["user"] * float("nan")).sum().backward()
        emb({"user": torch.tensor([7])})["user"].sum().backward()
        emb.flush()

    def test_a_step_that_was_refused_is_not_missed_by_sync_tables(self):
        with tandem.local(timeout=10) as client:
            emb = tandem.nn.EmbeddingCollection([table(mode="sync", num_workers=1)], client)
            with pytest.raises(ValueError, match="id 7"):
                (emb({"user": torch.tensor([7])})["user"] * float("nan")).sum().backward()
            assert client.step == 0
            for _ in range(2):
                emb({"user": torch.tensor([7])})["user"].sum().backward()
            emb.flush()
            assert client.step == 2


class TestNegativeIds:
    def test_a_table_takes_them_by_their_bits_if_it_says_so(self, client):
        hashes = torch.tensor([-1, 7, -(2**63), -1])
        module = tandem.nn.EmbeddingCollection([table(pooling=None, negative_ids="bits")], client)
        rows = module({"user": hashes})["user"]
        rows.sum().backward()
        module.flush()
        stored, _ = client.pull("user", hashes.numpy().view(np.uint64), read_only=True)
        assert not np.allclose(stored, rows.detach().numpy())  # the gradient went to these rows
        again = module({"user": hashes.view(torch.uint64)})["user"]
        np.testing.assert_array_equal(again.detach().numpy(), stored)

    def test_other_tables_refuse_them_and_name_the_option(self, client):
        module = tandem.nn.EmbeddingCollection([table()], client)
        with pytest.raises(ValueError, match='With negative_ids="bits" the table takes'):
            module({"user": torch.tensor([-1])})
        with pytest.raises(ValueError, match="negative_ids is 'signed'; it must be 'refuse' or 'bits'"):
            table(negative_ids="signed")


class TestWrongInput:
    def test_a_table_without_optimizer_is_refused(self, client):
        with pytest.raises(ValueError, match="table 'user' has no optimizer"):
            tandem.nn.EmbeddingCollection([table(optimizer=None)], client)
        with pytest.raises(ValueError, match="has no optimizer"):
            tandem.nn.EmbeddingBag(4, name="t", client=client)

    @pytest.mark.parametrize(
        "features, text",
        [
            ({"item": [1]}, "lack 'user'; they have: item"),
            ({"user": "ids"}, "feature 'user' is a str"),
            ({"user": [0.5]}, "dtype torch.float32; ids must be integers"),
            ({"user": [-1]}, "feature 'user' contain -1; ids must not be negative"),
            ({"user": [[[1]]]}, r"shape \(1, 1, 1\)"),
            ({"user": ([1, 2], [0, 1])}, "end with 1"),
            ({"user": ([1, 2], [0, 3])}, "contain 3"),
            ({"user": ([1, 2], [1, 2])}, "begin with 1"),
            ({"user": ([1, 2], [0, 2, 1, 2])}, "decrease from 2 to 1"),
            ({"user": ([1, 2], [])}, "are empty"),
            ({"user": ([1, 2], [0, 2], [1.0])}, "1 weights for 2 ids"),
            ({"user": ([1], [0, 1], [1.0], 4)}, "a tuple of 4"),
            ([1], "they must be a dict"),
        ],
    )
    def test_features(self, client, features, text):
        def tensors(value):
            if isinstance(value, tuple):
                return tuple(tensors(v) for v in value)
            if isinstance(value, list):
                made = torch.tensor(value)
                return made if value else made.to(torch.int64)
            return value

        emb = tandem.nn.EmbeddingCollection([table()], client)
        given = {k: tensors(v) for k, v in features.items()} if isinstance(features, dict) else features
        with pytest.raises(ValueError, match=text):
            emb(given)
        assert emb({"user": torch.tensor([1])})["user"].shape == (1, DIM)

    def test_tensors_without_data_are_refused(self, client):
        emb = tandem.nn.EmbeddingCollection([table()], client)
        with pytest.raises(ValueError, match="device meta, which has no data"):
            emb({"user": torch.tensor([1], device="meta")})
        with pytest.raises(ValueError, match="device meta, which has no data"):
            emb({"user": (torch.tensor([1, 2]), torch.tensor([0, 1], device="meta"))})
        with pytest.raises(ValueError, match="is a tensor on meta; it must be on the CPU"):
            client.pull("user", torch.tensor([1], device="meta"))

    def test_arguments_of_modules(self, client):
        options = {"name": "t", "client": client, "optimizer": tandem.optim.SGD(lr=1.0)}
        for arguments, text in (
            ({"max_norm": 1.0}, "max_norm is not supported"),
            ({"mode": "max"}, "mode is 'max'"),
            ({"dtype": torch.int64}, "dtype is torch.int64; it must be one of torch.float32"),
            ({"scale_grad_by_freq": True}, "scale_grad_by_freq"),
            ({"padding_idx": -1}, "padding_idx is -1"),
            ({"reduction": "max"}, "reduction is 'max'"),
            ({"client": None}, "tandem.connect"),
        ):
            with pytest.raises(ValueError, match=text):
                tandem.nn.EmbeddingBag(4, **(options | arguments))
        bag = tandem.nn.EmbeddingBag(4, **options)
        with pytest.raises(ValueError, match="offsets must be given"):
            bag(torch.tensor([1]))
        with pytest.raises(ValueError, match="mode='sum'"):
            bag(torch.tensor([[1]]), None, torch.tensor([[1.0]]))
        with pytest.raises(ValueError, match="two tables have the feature 'f'"):
            tandem.nn.EmbeddingCollection([table("a", features=["f"]), table("b", features=["f"])], client)
        with pytest.raises(ValueError, match="must be a list"):
            table(features="user")

    def test_a_closed_client_says_so(self):
        client = tandem.local()
        emb = tandem.nn.EmbeddingCollection([table()], client)
        client.close()
        with pytest.raises(tandem.errors.CancelledError, match="closed"):
            emb({"user": torch.tensor([1])})

    def test_a_forked_child_gets_an_error_and_does_not_wait_for_its_parents_pushes(self, client):
        emb = tandem.nn.EmbeddingCollection([table()], client)
        emb({"user": torch.tensor([1])})["user"].sum().backward()  # its push may be under way
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            text = "no error"
            try:
                emb({"user": torch.tensor([1])})
            except tandem.errors.FailedPreconditionError as error:
                text = str(error)
            finally:
                os.write(write, text.encode())
                os._exit(0)
        os.close(write)
        text = os.read(read, 1000).decode()
        os.close(read)
        os.waitpid(child, 0)
        assert "forked" in text
        emb.flush()
