# SPDX-License-Identifier: Apache-2.0
"""Checks arrays before their addresses go to C++.

Accepts NumPy arrays and CPU tensors of PyTorch. Rows and gradients may also lie on a GPU: CUDA tensors of PyTorch, and arrays that
have `__cuda_array_interface__` (CuPy, Numba).
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from tandem._load import load_core
from tandem.errors import InvalidArgumentError

_core = load_core()

_IDS = (np.dtype(np.int64), np.dtype(np.uint64))
_F32 = np.dtype(np.float32)
_U32 = np.dtype(np.uint32)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class GpuArray(NamedTuple):
    """Float32 numbers in the memory of a GPU."""

    array: Any  # keeps the memory alive
    address: int
    gpu: int
    stream: int | None  # a cudaStream_t; None: the array's owner asks for no order


def on_gpu(value: Any) -> bool:
    """Returns whether `value` is an array in the memory of a GPU."""
    if isinstance(value, np.ndarray) or value is None:
        return False
    return value.is_cuda if _is_tensor(value) else hasattr(value, "__cuda_array_interface__")


def gpu_rows(value: Any, what: str, shape: tuple[int, ...]) -> GpuArray:
    """Returns gradients on a GPU, of this shape. Converts tensors of other floats, and those that are not contiguous."""
    if _is_tensor(value) and value.is_floating_point() and tuple(value.shape) == shape:
        value = value.detach().float().contiguous()
    return _gpu_array(value, what, shape, written=False)


def gpu_output(value: Any, what: str, shape: tuple[int, ...]) -> GpuArray:
    """Returns an array on a GPU, into which C++ writes float32 of this shape."""
    return _gpu_array(value, what, shape, written=True)


def _gpu_array(value: Any, what: str, shape: tuple[int, ...], written: bool) -> GpuArray:
    if _is_tensor(value):
        torch = sys.modules["torch"]
        dtype, found, contiguous = str(value.dtype), tuple(value.shape), value.is_contiguous()
        writable = not (value.requires_grad and value.is_leaf)
    else:
        interface = value.__cuda_array_interface__
        dtype = "torch.float32" if interface["typestr"] == "<f4" else interface["typestr"]
        found, strides = tuple(interface["shape"]), interface.get("strides")
        contiguous = strides is None or tuple(strides) == np.empty(found, np.float32).strides
        writable = not interface["data"][1]
    if dtype != "torch.float32" or found != shape:
        raise InvalidArgumentError(f"{what} has dtype {dtype} and shape {found}; it must be float32 and {shape}")
    if not contiguous or (written and not writable):
        raise InvalidArgumentError(f"{what} must be contiguous and writeable")
    if _is_tensor(value):
        stream = torch.cuda.current_stream(value.device)
        # The memory may have been allocated for another stream, which does not wait for the copy.
        value.record_stream(stream)
        return GpuArray(value, value.data_ptr(), value.device.index, stream.cuda_stream)
    address = interface["data"][0]
    return GpuArray(value, address, _core.gpu_of(address, what) if address else 0, interface.get("stream"))


def _from_tensor(value: Any, what: str) -> np.ndarray:
    if value.device.type != "cpu":
        raise InvalidArgumentError(f"{what} is a tensor on {value.device}; it must be on the CPU: call .cpu() first")
    try:
        return value.detach().numpy()
    except TypeError:  # NumPy has no bfloat16, no sparse arrays
        raise InvalidArgumentError(f"{what} is a tensor of {value.dtype} and {value.layout}, which NumPy does not have") from None


def as_ids(value: Any, what: str) -> np.ndarray:
    """Returns `value` as a contiguous array of 64-bit ids with one dimension. Copies only if it must."""
    ids = _from_tensor(value, what) if _is_tensor(value) else value
    if not isinstance(ids, np.ndarray):
        ids = np.asarray(ids)
        if ids.size == 0:
            ids = ids.astype(np.int64)
    if ids.dtype not in _IDS:
        if ids.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"{what} has dtype {ids.dtype}; ids must be integers (int64 or uint64). Floats, and NaN among them, are no ids"
            )
        ids = ids.astype(np.int64)
    if ids.ndim != 1:
        raise InvalidArgumentError(f"{what} has shape {ids.shape}; it must have one dimension: use ids.ravel()")
    # int64 with a negative number is refused by check_ids() of the extension module.
    return np.ascontiguousarray(ids)


def as_offsets(value: Any, what: str, num_ids: int) -> np.ndarray:
    """Returns `value`, which has bags + 1 increasing positions from 0 to `num_ids`, as contiguous uint32."""
    offsets = np.asarray(_from_tensor(value, what) if _is_tensor(value) else value)
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or offsets.size == 0:
        raise InvalidArgumentError(
            f"{what} has dtype {offsets.dtype} and shape {offsets.shape}; it must have one dimension of integers, "
            f"one more than there are bags"
        )
    if offsets[0] != 0 or offsets[-1] != num_ids or np.any(offsets[1:] < offsets[:-1]):
        raise InvalidArgumentError(
            f"{what} must begin with 0, not decrease, and end with the number of ids, {num_ids}; it begins with "
            f"{int(offsets[0])} and ends with {int(offsets[-1])}"
        )
    return np.ascontiguousarray(offsets, dtype=np.uint32)


def as_rows(value: Any, what: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns `value`, numbers of this shape, as contiguous float32. Copies only if it must."""
    if _is_tensor(value):
        rows = _from_tensor(value.float() if value.is_floating_point() else value, what)
    else:
        rows = np.asarray(value)
    if rows.shape != shape:
        raise InvalidArgumentError(f"{what} has shape {rows.shape}; it must be {shape}")
    if rows.dtype != _F32:
        if rows.dtype.kind != "f":
            raise InvalidArgumentError(f"{what} has dtype {rows.dtype}; it must be float32")
        rows = rows.astype(_F32)
    return np.ascontiguousarray(rows)


def as_output(value: Any, what: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array over the memory of `value`, into which C++ writes float32 of this shape."""
    out = _from_tensor(value, what) if _is_tensor(value) else value
    if not isinstance(out, np.ndarray):
        raise InvalidArgumentError(f"{what} is a {type(value).__name__}; it must be a NumPy array, a tensor, or an array on a GPU")
    if out.dtype != _F32 or out.shape != shape:
        raise InvalidArgumentError(f"{what} has dtype {out.dtype} and shape {out.shape}; it must be float32 and {shape}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidArgumentError(f"{what} must be contiguous and writeable")
    return out
