# SPDX-License-Identifier: Apache-2.0
"""Exports of the dense part, and modules that answer from them over the tables of servers."""

import os

import numpy as np
import pytest
from processes import start_script

import tandem

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")


class Model(torch.nn.Module):
    def __init__(self, client: tandem.Client, dim: int = 4) -> None:
        super().__init__()
        options = {"dim": dim, "optimizer": tandem.optim.SGD(lr=0.5), "init": tandem.init.Normal(0.0, 1.0), "num_workers": 1}
        tables = [
            tandem.nn.Table("user", features=["user", "friends"], **options),
            tandem.nn.Table("country", dim, placement="replicated", num_embeddings=10),
        ]
        self.emb = tandem.nn.EmbeddingCollection(tables, client)
        self.item = tandem.nn.EmbeddingBag(dim, name="item", client=client, mode="sum", optimizer=tandem.optim.SGD(lr=0.5))
        self.dense = torch.nn.Sequential(torch.nn.Linear(4 * dim, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

    def forward(self, features, items):
        out = self.emb(features)
        return self.dense(torch.cat([*out.values(), self.item(items)], 1)).squeeze(1)


def inputs(count: int, seed: int = 0) -> "tuple[dict[str, torch.Tensor], torch.Tensor]":
    random = torch.Generator().manual_seed(seed)
    features = {"user": (count,), "friends": (count, 3), "country": (count,)}
    ids = {name: torch.randint(0, 10, shape, generator=random) for name, shape in features.items()}
    return ids, torch.randint(0, 10, (count, 2), generator=random)


def trained(client: tandem.Client) -> Model:
    torch.manual_seed(1)
    model = Model(client)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(*inputs(8, step)).square().mean().backward()
        optimizer.step()
    model.item.flush()
    return model


def shapes() -> "tuple[object, object]":
    batch = torch.export.Dim("batch", min=2)
    return ({"user": {0: batch}, "friends": {0: batch}, "country": {0: batch}}, {0: batch})


class TestProgram:
    def test_a_program_answers_as_the_model_with_the_rows_of_now(self, client, tmp_path):
        model = trained(client)
        path = tandem.torch.export(model, tmp_path / "v1", inputs(4), dynamic_shapes=shapes())
        assert sorted(os.listdir(path)) == ["SERVING.json", "program.pt2"] and model.training
        with pytest.raises(tandem.errors.FailedPreconditionError, match="has a program.*weights_only=False"):
            tandem.torch.load_for_serving(path, client)
        with pytest.warns(UserWarning, match="runs whatever code its files name"):
            serving = tandem.torch.load_for_serving(path, client, weights_only=False)
        model.eval()
        rows, step = client.stats("user")["rows"], client.step
        for count in (2, 5, 7):
            torch.testing.assert_close(serving(*inputs(count, count)), model(*inputs(count, count)))
        assert client.stats("user")["rows"] == rows and client.step == step
        client.assign("user", [5], np.full((1, 4), 3.0, np.float32))
        torch.testing.assert_close(serving(*inputs(9, 3)), model(*inputs(9, 3)))
        with pytest.raises(tandem.errors.FailedPreconditionError, match="cannot be trained"):
            serving.train()
        assert not serving.eval().training and not serving(*inputs(2)).requires_grad

    @pytest.mark.parametrize("strict", [False, True])
    def test_torch_export_of_a_module_in_training_says_what_to_do(self, strict):
        with tandem.local(timeout=20) as client:
            bag = tandem.nn.EmbeddingBag(4, name="t", client=client, optimizer=tandem.optim.SGD(lr=0.5))
            ids = torch.tensor([[1, 2], [3, 4]])
            # With strict=True it is an error of Dynamo, which has this text.
            with pytest.raises(RuntimeError, match="training mode: call eval.. .*tandem.torch.export") as raised:
                torch.export.export(bag, (ids,), strict=strict)
            assert strict or isinstance(raised.value, tandem.errors.FailedPreconditionError)
            program = torch.export.export(bag.eval(), (ids,), strict=strict).module()
            torch.testing.assert_close(program(ids), bag(ids))

    def test_another_process_serves_it_without_the_models_code(self, servers, tmp_path):
        with tandem.connect(servers=servers.addresses, timeout=60) as client:
            model = trained(client)
            path = tandem.torch.export(model, tmp_path / "v1", inputs(4), dynamic_shapes=shapes())
            expected = model.eval()(*inputs(6, 5)).tolist()
            torch.save(inputs(6, 5), tmp_path / "inputs.pt")
            text = f"""
import torch, tandem
client = tandem.connect(servers={servers.addresses}, read_only=True, cache_bytes=1 << 20, cache_seconds=600, timeout=60)
serving = tandem.torch.load_for_serving({path!r}, client, weights_only=False)
inputs = torch.load({str(tmp_path / "inputs.pt")!r})
for _ in range(3):
    print("answer", serving(*inputs).tolist())
cache = client.stats("user")["read_cache"]
assert cache["hits"] == 2 * cache["lookups"] // 3 > 0, cache
client.close()
"""
            with start_script(tmp_path, text) as process:
                assert process.wait(200.0) == 0, process.output
                answers = [eval(line.partition(" ")[2]) for line in process.output.splitlines() if line.startswith("answer")]
            np.testing.assert_allclose(answers, [expected] * 3, rtol=1e-5)


class TestParameters:
    def test_parameters_are_loaded_into_a_model_over_the_client(self, client, tmp_path):
        model = trained(client)
        path = tandem.torch.export(torch.nn.Sequential(model)[0], tmp_path / "v1")
        assert sorted(os.listdir(path)) == ["SERVING.json", "dense.pt"]
        serving = tandem.torch.load_for_serving(path, client, Model(client))
        assert not serving.training
        torch.testing.assert_close(serving(*inputs(5)), model.eval()(*inputs(5)))

    def test_mistakes_are_named(self, client, tmp_path):
        model = trained(client)
        path = tandem.torch.export(model, tmp_path / "v1")
        with pytest.raises(tandem.errors.AlreadyExistsError, match="export into a new directory"):
            tandem.torch.export(model, path)
        with pytest.raises(ValueError, match="give args"):
            tandem.torch.export(model, tmp_path / "v2", dynamic_shapes=())
        with pytest.raises(ValueError, match="give load_for_serving.. a model"):
            tandem.torch.load_for_serving(path, client)
        with pytest.raises(tandem.errors.NotFoundError, match="is no export"):
            tandem.torch.load_for_serving(tmp_path, client)
        with tandem.local(timeout=20) as other:
            with pytest.raises(tandem.errors.NotFoundError, match="no table 'user'"):
                tandem.torch.load_for_serving(path, other, model)
            other.create_table("user", 5, tandem.optim.SGD(lr=1.0))
            with pytest.raises(ValueError, match="'user' has dim 5 on the servers, here it is 4"):
                tandem.torch.load_for_serving(path, other, model)
        with pytest.raises(RuntimeError):
            tandem.torch.export(model, tmp_path / "v3", ("wrong", "inputs"))
        assert sorted(os.listdir(tmp_path)) == ["v1"]
        for damaged in ("", "{", "[]", "[" * 100_000, '{"format": 1}', '{"format": "1", "model": "", "modules": {}}'):
            (tmp_path / "v1" / "SERVING.json").write_text(damaged)
            with pytest.raises(tandem.errors.DataLossError, match="SERVING.json is damaged"):
                tandem.torch.load_for_serving(path, client, model)
