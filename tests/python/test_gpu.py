# SPDX-License-Identifier: Apache-2.0
"""Rows and gradients on GPUs: GPUs in this process, whose memory faults when the processor touches it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib

import numpy as np
import pytest

import tandem
from tandem import errors

FOLDER = pathlib.Path(os.environ.get("TANDEM_BUILD_DIR", "")) / "tests" / "base" / "fake_cuda"

pytestmark = pytest.mark.skipif(
    not (FOLDER / "libcudart.so.13").exists(), reason="TANDEM_BUILD_DIR has no tests/base/fake_cuda/libcudart.so.13"
)


class Gpus:
    """The test's side of the GPUs (tests/base/cuda/fake_cudart.cc)."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(FOLDER / "libcudart.so.13"))
        self.hold, self.copies, self.misuse = library.FakeHold, library.FakeCopies, library.FakeMisuse
        self._allocate, self._read, self._write, self._stream = (
            library.FakeAllocate, library.FakeRead, library.FakeWrite, library.FakeStream,
        )
        self._allocate.restype = self._stream.restype = ctypes.c_uint64
        self._allocate.argtypes = (ctypes.c_int, ctypes.c_uint64)
        self._read.argtypes = self._write.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)

    def stream(self, gpu: int = 0) -> int:
        return self._stream(gpu)

    def array(self, values: np.ndarray, gpu: int = 0, **changes) -> "Array":
        values = np.ascontiguousarray(values, np.float32)
        address = self._allocate(gpu, max(values.size, 1))
        self._write(address, values.ctypes.data, values.size)
        return Array(address, values.shape, changes)

    def read(self, array: "Array") -> np.ndarray:
        values = np.empty(array.shape, np.float32)
        self._read(array.address, values.ctypes.data, values.size)
        return values


class Array:
    """An array on a GPU, as CuPy and Numba hand it out."""

    def __init__(self, address: int, shape: tuple[int, ...], changes: dict) -> None:
        self.address, self.shape = address, shape
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (address, False), "version": 3} | changes


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setenv("TANDEM_CUDA_LIBRARY_PATH", str(FOLDER))
    found = Gpus()
    yield found
    assert found.misuse() == 0


@pytest.fixture
def table(client: tandem.Client) -> tandem.Client:
    client.create_table("t", 4, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Normal(0.0, 1.0))
    client.create_table("u", 2, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Normal(0.0, 1.0))
    return client


IDS = np.array([5, 7, 5, 9])
REPEATS = np.float32([[2], [1], [2], [1]])  # how often each id is in IDS


@pytest.mark.parametrize("gpu", [0, 1])
@pytest.mark.parametrize("ordered", [False, True])
def test_rows_are_pulled_to_a_gpu_and_gradients_pushed_from_it(gpus, table, gpu, ordered):
    before, _ = table.pull("t", IDS)
    changes = {"stream": gpus.stream(gpu)} if ordered else {}
    rows = gpus.array(np.zeros((4, 4)), gpu, **changes)
    out, version = table.pull("t", IDS, out=rows)
    assert out is rows and len(version) == table.num_servers
    np.testing.assert_array_equal(gpus.read(rows), before)
    table.push("t", IDS, gpus.array(np.ones((4, 4)), gpu, **changes), version=version)
    np.testing.assert_array_equal(table.pull("t", IDS)[0], before - REPEATS)
    assert gpus.copies() > 0


def test_one_call_has_tables_on_a_gpu_and_in_host_memory(gpus, table):
    expected, _ = table.pull({"t": IDS, "u": IDS})
    out = {"t": gpus.array(np.zeros((4, 4))), "u": np.zeros((4, 2), np.float32)}
    found, versions = table.pull({"t": IDS, "u": IDS}, out=out)
    np.testing.assert_array_equal(gpus.read(found["t"]), expected["t"])
    np.testing.assert_array_equal(found["u"], expected["u"])
    table.push({"t": (IDS[:2], gpus.array(np.ones((2, 4)))), "u": (IDS[:2], np.ones((2, 2)))}, version=versions)
    after, _ = table.pull({"t": IDS, "u": IDS})
    np.testing.assert_array_equal(after["t"][:2], expected["t"][:2] - 1)
    np.testing.assert_array_equal(after["u"][:2], expected["u"][:2] - 1)


def test_pooled_rows_and_asynchronous_calls(gpus, table):
    offsets = np.array([0, 1, 4])
    expected, _ = table.pull("t", IDS, pooling="sum", offsets=offsets)
    rows = gpus.array(np.zeros((2, 4)))
    out, _ = table.pull_async("t", IDS, out=rows, pooling="sum", offsets=offsets).result(20)
    assert out is rows
    np.testing.assert_array_equal(gpus.read(rows), expected)
    before, _ = table.pull("t", IDS)
    table.push_async("t", IDS, gpus.array(np.ones((2, 4))), pooling="sum", offsets=offsets).result(20)
    np.testing.assert_array_equal(table.pull("t", IDS)[0], before - REPEATS)


def test_a_pull_without_a_stream_ends_when_the_rows_are_there(gpus, table):
    expected, _ = table.pull("t", IDS)
    rows = gpus.array(np.zeros((4, 4)))
    gpus.hold(1)
    try:
        future = table.pull_async("t", IDS, out=rows)
        np.testing.assert_array_equal(table.pull("t", IDS)[0], expected)  # other calls go on
        assert not future.done()
    finally:
        gpus.hold(0)
    future.result(20)
    np.testing.assert_array_equal(gpus.read(rows), expected)


@pytest.mark.parametrize(
    "shape, changes, text",
    [
        ((4, 3), {}, r"shape \(4, 3\); it must be float32 and \(4, 4\)"),
        ((4, 4), {"typestr": "<f8"}, "dtype <f8"),
        ((4, 4), {"strides": (4, 16)}, "contiguous"),
        ((4, 4), {"stream": "of GPU 1"}, "is a stream of another GPU; expected one of GPU 0"),
    ],
)
def test_other_arrays_on_a_gpu_are_refused(gpus, table, shape, changes, text):
    if "stream" in changes:
        changes = {"stream": gpus.stream(1)}
    array = gpus.array(np.zeros(shape), **changes)
    before, _ = table.pull("t", IDS)
    with pytest.raises(errors.InvalidArgumentError, match=text):
        table.pull("t", IDS, out=array)
    with pytest.raises(errors.InvalidArgumentError, match=text):
        table.push("t", IDS, array)
    assert table.step == 0
    np.testing.assert_array_equal(table.pull("t", IDS)[0], before)


def test_rows_larger_than_the_pinned_memory(gpus):
    with tandem.local(servers=2, timeout=20, pinned_bytes=1 << 16) as client:
        client.create_table("t", 16, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Normal(0.0, 1.0))
        ids = np.arange(5000)
        expected, _ = client.pull("t", ids)
        rows = gpus.array(np.zeros((5000, 16)))
        client.pull("t", ids, out=rows)
        np.testing.assert_array_equal(gpus.read(rows), expected)
        client.push("t", ids, rows)
        assert not client.pull("t", ids)[0].any()


def test_the_amount_of_pinned_memory_has_bounds():
    with pytest.raises(errors.InvalidArgumentError, match="pinned_bytes is 1"):
        tandem.local(pinned_bytes=1)


def test_memory_that_is_read_only_is_no_output(gpus, table):
    array = gpus.array(np.zeros((4, 4)))
    array.__cuda_array_interface__["data"] = (array.address, True)
    with pytest.raises(errors.InvalidArgumentError, match="writeable"):
        table.pull("t", IDS, out=array)
    table.push("t", IDS, array)


def test_host_memory_that_is_said_to_be_on_a_gpu_is_refused(gpus, table):
    host = np.zeros((4, 4), np.float32)
    array = Array(host.ctypes.data, host.shape, {})
    with pytest.raises(errors.InvalidArgumentError, match="out has __cuda_array_interface__, but is not in the memory of a GPU"):
        table.pull("t", IDS, out=array)


def test_a_stream_of_the_calling_thread(gpus, table):
    expected, _ = table.pull("t", IDS)
    rows = gpus.array(np.zeros((4, 4)), stream=2)  # cudaStreamPerThread
    gpus.hold(1)
    try:
        future = table.pull_async("t", IDS, out=rows)
        np.testing.assert_array_equal(table.pull("t", IDS)[0], expected)  # other calls go on
        assert not future.done()
    finally:
        gpus.hold(0)
    future.result(20)
    np.testing.assert_array_equal(gpus.read(rows), expected)


def test_the_cuda_runtime_is_searched_once(gpus, table, monkeypatch, tmp_path):
    rows = gpus.array(np.zeros((4, 4)))
    table.pull("t", IDS, out=rows)
    monkeypatch.setenv("TANDEM_CUDA_LIBRARY_PATH", str(tmp_path))
    table.pull("t", IDS, out=rows)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed (scripts/python-env --torch)")
class TestTensors:
    """Tensors that say they are CUDA tensors. torch itself needs no GPU for them."""

    @pytest.fixture
    def tensor(self, gpus, monkeypatch):
        import torch

        class OnGpu(torch.Tensor):
            recorded: list = []

            @staticmethod
            def __new__(cls, array: Array, device: str = "cuda:1"):
                return torch.Tensor._make_wrapper_subclass(cls, array.shape, dtype=torch.float32, device=device)

            def __init__(self, array: Array, device: str = "cuda:1") -> None:
                self.array = array

            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                assert function is torch.ops.aten.detach.default, function
                return OnGpu(args[0].array)

            def data_ptr(self) -> int:
                return self.array.address

            def record_stream(self, stream) -> None:
                OnGpu.recorded.append(stream.cuda_stream)

        stream = type("Stream", (), {"cuda_stream": gpus.stream(1)})()
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        OnGpu.recorded = []
        OnGpu.of_program = stream.cuda_stream
        return OnGpu

    def test_cuda_tensors_are_ordered_in_the_current_stream(self, gpus, table, tensor):
        expected, _ = table.pull("t", IDS)
        rows = gpus.array(np.zeros((4, 4)), 1)
        gpus.hold(1)
        try:
            table.pull("t", IDS, out=tensor(rows))  # does not wait for the GPU
            assert not gpus.read(rows).any()
        finally:
            gpus.hold(0)
        np.testing.assert_array_equal(gpus.read(rows), expected)
        table.push("t", IDS, tensor(gpus.array(np.ones((4, 4)), 1)))
        np.testing.assert_array_equal(table.pull("t", IDS)[0], expected - REPEATS)
        assert tensor.recorded == [tensor.of_program] * 2

    def test_a_tensor_of_another_gpu_than_it_says_is_refused(self, gpus, table, tensor):
        with pytest.raises(errors.InvalidArgumentError, match="are memory of GPU 0; expected 64 bytes of GPU 1"):
            table.pull("t", IDS, out=tensor(gpus.array(np.zeros((4, 4)), 0)))
