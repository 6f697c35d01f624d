# SPDX-License-Identifier: Apache-2.0
"""What arguments and results can be."""

from __future__ import annotations

import collections
import enum
import importlib.util
import math
import subprocess
import sys

import numpy as np
import pytest

from tandem import rpc
from tandem.errors import FailedPreconditionError, InvalidArgumentError

Point = collections.namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


@rpc.function
def echo(*args: object, **kwargs: object) -> object:
    return args, kwargs


@rpc.function
def negated(array: np.ndarray) -> np.ndarray:
    np.negative(array, out=array)
    return array


VALUES = [
    None, True, 0, -1, 2**64 - 1, -(2**63), 1.5, math.inf, "", "ä\0z", b"", b"\xff" * 3000, [], [1, [2, [3]]], (), (1, (2, "x")), {},
    {"a": 1, 2: b"x", (1, 2): None, None: [()]}, "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("to", ["worker", "test"])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_plain_values_arrive_as_they_are(worker, to, value):
    [(got,), named] = worker.call("worker", "echo", value)
    assert got == value and type(got) is type(value) and named == {}
    [_, named] = worker.call("worker", "echo", key=value)
    assert named == {"key": value}


def test_values_of_derived_types_arrive_as_their_bases(worker):
    [args, _] = worker.call("worker", "echo", Colour.RED, Point(1, 2), collections.OrderedDict(a=1), np.float64(0.5), np.int32(3))
    assert args == (1, (1, 2), {"a": 1}, 0.5, 3)
    assert [type(arg) for arg in args] == [int, tuple, dict, float, int]


ARRAYS = [np.zeros(3, dtype) for dtype in "?bBhHiIlLqQefdgFD"] + [
    np.array(5.0), np.zeros((0, 4), np.int64), np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::2].T, np.arange(4, dtype=">i4"),
    np.array(["2026-01-01"], "datetime64[D]"), np.array(["ab", "c"]), np.random.default_rng(1).random(1 << 19),
]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_arrive_with_dtype_and_shape(worker, array):
    [(got, same), _] = worker.call("worker", "echo", array, [array])
    assert isinstance(got, np.ndarray) and got.shape == array.shape and got.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(same[0], array)
    assert got.flags.writeable and not np.shares_memory(got, same[0])


@pytest.mark.parametrize("to", ["worker", "test"])
def test_a_function_that_changes_its_argument_does_not_change_the_callers(worker, to):
    array = np.arange(5.0)
    got = worker.call(to, "negate_in_place" if to == "worker" else "negated", array)
    np.testing.assert_array_equal(got, -np.arange(5.0))
    np.testing.assert_array_equal(array, np.arange(5.0))


def test_an_array_of_many_megabytes_goes_there_and_back(worker):
    array = np.random.default_rng(7).integers(0, 255, 40 << 20, dtype=np.uint8)
    [(got,), _] = worker.call("worker", "echo", array)
    assert np.array_equal(got, array)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_tensors_arrive_as_tensors(worker):
    import torch

    tensors = [
        torch.arange(6.0).reshape(2, 3).t(), torch.tensor(3), torch.empty(0, 2), torch.tensor([True, False]),
        torch.arange(4, dtype=torch.bfloat16), torch.tensor([1 + 2j]).conj(), torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(3)), torch.arange(3, dtype=torch.int16), torch.arange(4, dtype=torch.float16),
    ]  # fmt: skip
    [got, _] = worker.call("worker", "echo", *tensors)
    for mine, theirs in zip(tensors, got, strict=True):
        assert type(theirs) is torch.Tensor and not theirs.requires_grad
        assert theirs.dtype == mine.dtype and theirs.shape == mine.shape and torch.equal(theirs, mine.detach())
    assert worker.call("worker", "describe", torch.ones(1)) == "torch.Tensor"
    assert worker.call("worker", "describe", np.ones(1)) == "numpy.ndarray"
    with pytest.raises(InvalidArgumentError, match="to_dense"):
        worker.call("worker", "echo", torch.ones(2).to_sparse())


REFUSED = [object(), {1, 2}, 2**64, -(2**63) - 1, 1j, lambda: None, np.array([None]), np.zeros(2, "i4,f4"), [[{"deep": object()}]]]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: repr(value)[:20])
def test_what_has_no_encoding_is_refused_before_it_is_sent(worker, value):
    with pytest.raises(InvalidArgumentError, match="sent"):
        worker.call("worker", "echo", value)


def test_a_value_that_contains_itself_is_refused(worker):
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidArgumentError, match="sent"):
        worker.call("worker", "echo", endless)


def nested(depth: int) -> tuple:
    value: tuple = ()
    for _ in range(depth):
        value = (value,)
    return value


def test_tuples_in_tuples_are_limited_and_lists_in_lists_are_not(worker):
    assert worker.call("worker", "echo", nested(25)) == ((nested(25),), {})
    for depth in (40, 100, 400):
        with pytest.raises(InvalidArgumentError, match="cannot be sent"):
            worker.call("worker", "echo", nested(depth))
    lists: list[object] = []
    for _ in range(300):
        lists = [lists]
    assert worker.call("worker", "echo", lists)[0][0] == lists
    # Bytes that no encoder of ours makes. Reading them must not need a stack of that depth.
    import msgpack

    from tandem.rpc import _agent

    value = msgpack.ExtType(3, msgpack.packb([]))
    for _ in range(1000):
        value = msgpack.ExtType(3, msgpack.packb([value]))
    future = _agent.RpcFuture(_agent._STATE.agent.start("worker", "echo", msgpack.packb([[value]]), [], [], 30.0, False))
    with pytest.raises(InvalidArgumentError, match="tuples in each other"):
        future.result()
    assert worker.call("worker", "add", 1, 2) == 3


@pytest.mark.parametrize("what", ["object", "set", "lock", "large"])
def test_a_result_that_has_no_encoding_is_an_error_of_the_call(worker, what):
    with pytest.raises(InvalidArgumentError, match="worker: give: its result cannot be sent"):
        worker.call("worker", "give", what)


def test_a_process_that_does_not_allow_pickle_refuses_it(worker):
    from tandem.rpc import _agent

    _agent._STATE.allow_pickle = True
    try:
        with pytest.raises(FailedPreconditionError, match="a pickled object has arrived; this process allows none"):
            worker.call("worker", "echo", {1, 2})
    finally:
        _agent._STATE.allow_pickle = False


def test_bytes_of_other_programs_are_refused(worker):
    from tandem.rpc import _agent

    agent = _agent._STATE.agent
    for data in [b"", b"\xc1", b"\x91", b"\x90", b"\x91\x01", b"\x92\x90\x81\x01\x02", b"\xc7\x03\x01\x92\x05\x00", b"\x91\x91\xd4\x09\x00",
                 b"\x91\x91\xd4\x01\x00", b"\x91\x91\xd4\x02\x07", b"\xdd\xff\xff\xff\xff"]:  # fmt: skip
        future = _agent.RpcFuture(agent.start("worker", "echo", data, [], [], 30.0, False))
        with pytest.raises(InvalidArgumentError):
            future.result()
    # An array whose shape or dtype is not that of its bytes, or whose elements would be addresses.
    memory = np.zeros(8, np.uint8)
    tensor = (0, (8,), memory.ctypes.data, 8, memory)
    import msgpack

    for header in [[0, 0, "float64", [2]], [0, 0, "O", [1]], [0, 0, "nonsense", [8]], [0, 1, "Tensor", [8]], [3, 0], [0, 0, "<U9", [1]]]:
        data = msgpack.packb([[msgpack.ExtType(1, msgpack.packb(header))]])
        future = _agent.RpcFuture(agent.start("worker", "echo", data, [tensor], [], 30.0, False))
        with pytest.raises(InvalidArgumentError):
            future.result()
    # An array without bytes may have any empty shape, and no other one.
    nothing = (0, (0,), 0, 0, memory)
    for header in [[0, 0, "float64", [1 << 33]], [0, 1, "float64", [1 << 33]], [0, 0, "float64", [-1, 0]], [0, 1, "float32", ["x", 0]]]:
        data = msgpack.packb([[msgpack.ExtType(1, msgpack.packb(header))]])
        future = _agent.RpcFuture(agent.start("worker", "echo", data, [nothing], [], 30.0, False))
        with pytest.raises(InvalidArgumentError):
            future.result()
    assert worker.call("worker", "add", 1, 2) == 3


def test_without_msgpack_the_import_says_what_to_install():
    text = "import sys; sys.modules['msgpack'] = None; import tandem.rpc"
    done = subprocess.run([sys.executable, "-B", "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "ImportError: tandem.rpc needs the package msgpack" in done.stderr, done.stderr
