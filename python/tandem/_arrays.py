# SPDX-License-Identifier: Apache-2.0
"""Checks arrays before their addresses go to C++. Accepts NumPy arrays and CPU tensors of PyTorch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tandem.errors import InvalidArgumentError

_IDS = (np.dtype(np.int64), np.dtype(np.uint64))
_F32 = np.dtype(np.float32)
_U32 = np.dtype(np.uint32)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


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
        raise InvalidArgumentError(f"{what} is a {type(value).__name__}; it must be a NumPy array or a CPU tensor")
    if out.dtype != _F32 or out.shape != shape:
        raise InvalidArgumentError(f"{what} has dtype {out.dtype} and shape {out.shape}; it must be float32 and {shape}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidArgumentError(f"{what} must be contiguous and writeable")
    return out
