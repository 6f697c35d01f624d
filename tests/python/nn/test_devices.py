# SPDX-License-Identifier: Apache-2.0
"""Batches on a GPU: rows are gathered into pinned memory and copied to the device of the ids."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import tandem

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (scripts/python-env --torch)", allow_module_level=True)

import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

HAS_GPU = torch.cuda.is_available()


def collection(client: tandem.Client) -> "tandem.nn.EmbeddingCollection":
    tables = [
        tandem.nn.Table(name, dim=4, features=[feature], optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Normal(0.0, 1.0))
        for name, feature in (("a", "x"), ("b", "y"))
    ]
    return tandem.nn.EmbeddingCollection(tables, client)


class OnGpu(torch.Tensor):
    """A tensor that says it is on cuda:0. Its data is on the CPU."""

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> "OnGpu":
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), dtype=data.dtype, device="cuda:0")

    def __init__(self, data: torch.Tensor) -> None:
        self.here = data

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        options = dict(kwargs or {})
        to_cpu = options.pop("device", torch.device("cuda")).type == "cpu"
        result = function(*[a.here if isinstance(a, OnGpu) else a for a in args], **options)
        return result if to_cpu else OnGpu(result)


class PretendedGpu(TorchFunctionMode):
    """Takes the place of a GPU: copies to cuda:0 become OnGpu, and pinned memory is ordinary memory."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[torch.Tensor] = []
        self.copied: list[tuple[torch.Tensor, bool]] = []  # tensors, and whether the program goes on meanwhile

    def __torch_function__(self, function, types, args=(), kwargs=None):
        options = dict(kwargs or {})
        if function is torch.empty and options.pop("pin_memory", False):
            self.pinned.append(function(*args, **options))
            return self.pinned[-1]
        if function is torch.Tensor.to and len(args) > 1 and isinstance(args[1], torch.device) and args[1].type == "cuda":
            self.copied.append((args[0], options.get("non_blocking", False)))
            return OnGpu(args[0])
        return function(*args, **(kwargs or {}))


IDS = {"x": torch.tensor([1, 2, 1]), "y": torch.tensor([[3, 4], [5, 5], [6, 3]])}


@pytest.mark.parametrize("stacked", [False, True])
def test_outputs_go_to_the_device_of_the_ids_through_pinned_memory(client, stacked):
    emb = collection(client)
    emb(IDS)  # creates the rows
    emb.eval()
    look_up = (lambda ids: [emb.stack(ids)]) if stacked else (lambda ids: list(emb(ids).values()))
    expected = look_up(IDS)
    with PretendedGpu() as gpu:
        found = look_up({name: OnGpu(ids) for name, ids in IDS.items()})
    assert [output.device for output in found] == [torch.device("cuda:0")] * len(expected)
    for output, on_cpu in zip(found, expected):
        np.testing.assert_array_equal(output.here.numpy(), on_cpu.numpy())
    assert [memory.data_ptr() for memory in gpu.pinned] == [output.data_ptr() for output, _ in gpu.copied]
    assert all(goes_on for _, goes_on in gpu.copied)


def test_gradients_on_a_device_are_copied(client):
    from tandem.nn import engine

    gradient = torch.arange(8.0).view(2, 4)
    assert engine._rows_on_cpu(OnGpu(gradient)).tolist() == gradient.tolist()


@pytest.mark.parametrize("stacked", [False, True])
def test_gradients_of_all_outputs_wait_once_for_the_gpu(client, monkeypatch, stacked):
    from tandem.nn import engine

    class Stream:
        waits = 0

        def synchronize(self):
            Stream.waits += 1

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    given = [torch.rand(2, 3, 4)] if stacked else [torch.rand(2, 4), None, torch.rand(3, 4).double(), torch.rand(2, 4)]
    on_gpu = [None if g is None else OnGpu(g) for g in given]
    on_gpu[-1] = on_gpu[-1] if stacked else given[-1]  # one is on the CPU
    with PretendedGpu() as gpu:
        found = engine._gradients_on_cpu(on_gpu)
    for gradient, expected in zip(found, given):
        assert (gradient is None) == (expected is None)
        if gradient is not None:
            assert gradient.is_contiguous() and gradient.dtype == torch.float32
            np.testing.assert_allclose(gradient.numpy(), expected.numpy(), rtol=1e-6)
    assert Stream.waits == 1
    assert len(gpu.pinned) == (1 if stacked else 2)


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_the_error_is_that_of_torch_and_no_row_is_created(client):
    emb = collection(client)
    with pytest.raises(RuntimeError) as error:
        emb({name: OnGpu(ids) for name, ids in IDS.items()})
    assert not isinstance(error.value, tandem.errors.TandemError)
    assert client.stats("a")["rows"] == 0


@pytest.mark.skipif(not HAS_GPU, reason="there is no GPU")
def test_a_step_on_a_gpu_trains_the_rows(client):
    emb = collection(client)
    before, _ = client.pull("a", [1, 2])
    out = emb({name: ids.cuda() for name, ids in IDS.items()})
    assert out["x"].device.type == "cuda" and out["x"].grad_fn is not None
    out["x"].sum().backward()
    emb.flush()
    after, _ = client.pull("a", [1, 2])
    np.testing.assert_allclose(before - after, [[2.0] * 4, [1.0] * 4], rtol=1e-5)
