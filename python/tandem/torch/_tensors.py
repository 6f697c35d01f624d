# SPDX-License-Identifier: Apache-2.0
"""Which memory of a tensor a call of the C++ library reads and writes."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from tandem._load import load_core
from tandem.errors import InvalidArgumentError, UnimplementedError

_core = load_core()

_NUMBERS: dict[str, int] = _core.dtypes()
_OPS: dict[str, int] = _core.reduce_ops()

_NAMES = {
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}
# torch.dtype -> (number of the C++ dtype, elements of it in one element of the tensor).
_DTYPES: dict[torch.dtype, tuple[int, int]] = {dtype: (_NUMBERS[name], 1) for dtype, name in _NAMES.items()}
_COMPLEX: dict[torch.dtype, tuple[int, int]] = {
    torch.complex32: (_NUMBERS["f16"], 2),
    torch.complex64: (_NUMBERS["f32"], 2),
    torch.complex128: (_NUMBERS["f64"], 2),
}
_MOVED: dict[torch.dtype, tuple[int, int]] = {**_DTYPES, **_COMPLEX, torch.bool: (_NUMBERS["u8"], 1)}
# Unsigned numbers wrap like signed ones of their size.
_WRAPPING = {torch.uint32: _NUMBERS["i32"], torch.uint64: _NUMBERS["i64"]}

_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_OP_BY_VALUE = {int(getattr(torch.distributed.ReduceOp, name)): name for name in _REDUCTIONS}
_PREMUL_SUM = "PREMUL_SUM"
_LOGICAL = {"SUM": "bor", "MAX": "bor", "BOR": "bor", "PRODUCT": "band", "MIN": "band", "BAND": "band", "BXOR": "bxor"}


def moved(dtype: torch.dtype) -> tuple[int, int]:
    """Returns (C++ dtype, elements for one element of the tensor) for calls that do not compute."""
    return _MOVED.get(dtype) or (_NUMBERS["u8"], dtype.itemsize)


def reduced(dtype: torch.dtype, reduce_op: Any) -> tuple[int, int, int, float]:
    """Returns (C++ dtype, elements for one element of the tensor, C++ operation, factor) for a reduction."""
    value = getattr(reduce_op, "op", reduce_op)
    name = _OP_BY_VALUE.get(int(value))
    if name is None:
        raise UnimplementedError(f"reduction {reduce_op} is not supported; use one of {', '.join(_REDUCTIONS)}")
    factor = 1.0
    if name == _PREMUL_SUM:
        # Before torch 2.15 only a pickled operation tells its factor.
        factor = float(reduce_op.factor if hasattr(reduce_op, "factor") else reduce_op.__getstate__()[1])
    known = _DTYPES.get(dtype)
    if known is not None:
        return known[0], 1, _OPS[name.lower()], factor
    if dtype is torch.bool and name in _LOGICAL:
        return _NUMBERS["u8"], 1, _OPS[_LOGICAL[name]], 1.0
    if dtype in _COMPLEX and name in ("SUM", "AVG", _PREMUL_SUM):
        number, count = _COMPLEX[dtype]
        return number, count, _OPS[name.lower()], factor
    if dtype in _WRAPPING and name in ("SUM", "PRODUCT", "BAND", "BOR", "BXOR"):
        return _WRAPPING[dtype], 1, _OPS[name.lower()], 1.0
    raise UnimplementedError(f"{name} of {dtype} is not supported; convert the tensor, for example with .to(torch.float32)")


def only(tensors: Sequence[Any], call: str) -> Any:
    """Returns the one element of `tensors`."""
    if len(tensors) != 1:
        raise InvalidArgumentError(f"{call} takes one tensor of each rank, not {len(tensors)}")
    return tensors[0]


def same_dtype(tensors: Sequence[torch.Tensor], dtype: torch.dtype, call: str) -> None:
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise InvalidArgumentError(f"{call}: one tensor has dtype {tensor.dtype}, another {dtype}; all must be the same")


class Buffers:
    """The memory of a call's tensors. A tensor that is not contiguous is replaced by a copy."""

    __slots__ = ("keep", "_copies")

    def __init__(self) -> None:
        self.keep: list[torch.Tensor] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _check(self, tensor: torch.Tensor, call: str) -> bool:
        """Returns whether the tensor can be used as it is."""
        if tensor.device.type != "cpu":
            raise InvalidArgumentError(f"{call}: a tensor is on {tensor.device}; the backend tandem serves CPU tensors")
        if tensor.layout is not torch.strided:
            raise UnimplementedError(f"{call}: a tensor has layout {tensor.layout}; it must be dense")
        return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())

    def read(self, tensor: torch.Tensor, call: str) -> torch.Tensor:
        """Returns a tensor that the call reads."""
        if not self._check(tensor, call):
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        self.keep.append(tensor)
        return tensor

    def write(self, tensor: torch.Tensor, call: str) -> torch.Tensor:
        """Returns a tensor that the call overwrites."""
        return self._replace(tensor, torch.empty(tensor.shape, dtype=tensor.dtype)) if not self._check(tensor, call) else self._own(tensor)

    def update(self, tensor: torch.Tensor, call: str) -> torch.Tensor:
        """Returns a tensor that the call reads and overwrites."""
        if self._check(tensor, call):
            return self._own(tensor)
        return self._replace(tensor, tensor.detach().resolve_conj().resolve_neg().contiguous())

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        self.keep.append(tensor)
        return tensor

    def _replace(self, tensor: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        self.keep.append(copy)
        self._copies.append((tensor, copy))
        return copy

    @property
    def finish(self) -> Callable[[], None] | None:
        """What remains to be done when the call is completed."""
        return self._copy_back if self._copies else None

    def _copy_back(self) -> None:
        with torch.no_grad():
            for tensor, copy in self._copies:
                tensor.copy_(copy)


def flat(tensors: Sequence[torch.Tensor], count: int) -> list[int]:
    """Returns [address, elements, address, elements, ...]."""
    numbers = []
    for tensor in tensors:
        numbers.append(tensor.data_ptr())
        numbers.append(tensor.numel() * count)
    return numbers
