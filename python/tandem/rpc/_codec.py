# SPDX-License-Identifier: Apache-2.0
"""Encodes the arguments and results of remote functions as MessagePack. Arrays, tensors and references stay outside of it.

MessagePack and not protobuf's Struct, whose only number is a double: 64-bit integers would lose bits, and it has no bytes.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import msgpack
import numpy as np

from tandem.errors import FailedPreconditionError, InvalidArgumentError, TandemError

# (data, tensors, references), as _core takes them.
Message = tuple[bytes, list[Any], list[Any]]

_TENSOR, _REFERENCE, _TUPLE, _PICKLE = 1, 2, 3, 4
_NUMPY, _TORCH = 0, 1
# The numbers of tandem::DType. Arrays of other types travel as bytes, with the name of their type.
_BYTES = 0
_CODES = {"uint8": 0, "int8": 1, "int32": 2, "int64": 3, "float16": 4, "bfloat16": 5, "float32": 6, "float64": 7}
_NAMES = {code: name for name, code in _CODES.items()}
# Each tuple in a tuple is a message in a message, for which the MessagePack library needs 40 KiB of the thread's stack.
_MAX_TUPLES = 32

ALLOWED = (
    "None, bool, int of 64 bits, float, str, bytes, list, tuple, dict, tandem.rpc.Reference, NumPy arrays and CPU tensors can be "
    "sent; other objects if both processes call tandem.rpc.start(pickle=True), or leave them where they are by tandem.rpc.remote()"
)


class Encoder:
    """Encodes one value. `tensors` and `references` are what the value refers to."""

    def __init__(self, reference_type: type, allow_pickle: bool) -> None:
        self._reference_type = reference_type
        self._allow_pickle = allow_pickle
        self._tuples = 0
        self.tensors: list[Any] = []
        self.references: list[Any] = []

    def encode(self, value: Any) -> Message:
        try:
            data = self._pack(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(f"{error}: {ALLOWED}") from None
        return data, self.tensors, self.references

    def _pack(self, value: Any) -> bytes:
        # strict_types: a tuple comes to _special, so that it arrives as a tuple.
        return msgpack.packb(value, default=self._special, strict_types=True)

    def _special(self, value: Any) -> Any:
        kind = type(value)
        if kind is tuple:
            return self._tuple(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(torch, value)
        if isinstance(value, self._reference_type):
            self.references.append(value._core)
            return msgpack.ExtType(_REFERENCE, msgpack.packb(len(self.references) - 1))
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return value.item()
        for plain in (bool, int, float, str, bytes, list, dict):
            # A subclass, such as an enumeration or a defaultdict, arrives as its base.
            if isinstance(value, plain):
                return plain(value) if plain is not str else str.__str__(value)
        if isinstance(value, tuple):  # a named tuple
            return self._tuple(value)
        if self._allow_pickle:
            try:
                return msgpack.ExtType(_PICKLE, pickle.dumps(value))
            except Exception as error:  # whatever the object's own code raises
                raise InvalidArgumentError(f"a {kind.__module__}.{kind.__qualname__} cannot be sent: pickle: {error}") from error
        raise InvalidArgumentError(f"a {kind.__module__}.{kind.__qualname__} cannot be sent: {ALLOWED}")

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        if self._tuples == _MAX_TUPLES:
            raise InvalidArgumentError(f"a value with more than {_MAX_TUPLES} tuples in each other cannot be sent: use lists")
        self._tuples += 1
        try:
            return msgpack.ExtType(_TUPLE, self._pack(list(value)))
        finally:
            self._tuples -= 1

    def _array(self, array: np.ndarray) -> Any:
        if array.dtype.hasobject:
            raise InvalidArgumentError(f"an array of dtype {array.dtype} cannot be sent: its elements are Python objects")
        if array.dtype.kind == "V":
            raise InvalidArgumentError(f"an array of dtype {array.dtype} cannot be sent: send its fields as arrays")
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        shape = array.shape
        array = np.ascontiguousarray(array)
        code = _CODES.get(array.dtype.name)
        return self._add(code, array.dtype.str, shape, array.ctypes.data if array.size else 0, array.nbytes, array, _NUMPY)

    def _tensor(self, torch: Any, tensor: Any) -> Any:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise InvalidArgumentError(
                f"a tensor on {tensor.device} of {tensor.layout} cannot be sent: use .cpu(), and .to_dense() for sparse ones"
            )
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        name = str(tensor.dtype).removeprefix("torch.")
        nbytes = tensor.numel() * tensor.element_size()
        return self._add(_CODES.get(name), name, tuple(tensor.shape), tensor.data_ptr(), nbytes, tensor, _TORCH)

    def _add(
        self, code: int | None, name: str, shape: tuple[int, ...], address: int, nbytes: int, owner: Any, kind: int
    ) -> Any:
        header: list[Any] = [len(self.tensors), kind]
        if code is None:
            header += [name, list(shape)]
            code, shape = _BYTES, (nbytes,)
        self.tensors.append((code, shape, address, nbytes, owner))
        return msgpack.ExtType(_TENSOR, msgpack.packb(header))


class Decoder:
    """Decodes one value. `make_reference` makes a Reference of a _core.RpcReference."""

    def __init__(self, tensors: list[Any], references: list[Any], make_reference: Any, allow_pickle: bool) -> None:
        self._tensors = tensors
        self._references = references
        self._make_reference = make_reference
        self._allow_pickle = allow_pickle
        self._tuples = 0

    def decode(self, data: bytes) -> Any:
        try:
            return self._unpack(data)
        except TandemError:
            raise
        except (ValueError, TypeError, IndexError, msgpack.UnpackException, AttributeError, RuntimeError) as error:
            raise InvalidArgumentError(f"a message of {len(data)} bytes cannot be read: {error}") from error

    def _unpack(self, data: bytes) -> Any:
        return msgpack.unpackb(data, ext_hook=self._special, strict_map_key=False)

    def _special(self, code: int, data: bytes) -> Any:
        if code == _TENSOR:
            return self._tensor(*msgpack.unpackb(data))
        if code == _TUPLE:
            if self._tuples == _MAX_TUPLES:
                raise InvalidArgumentError(f"a value with more than {_MAX_TUPLES} tuples in each other has arrived")
            self._tuples += 1
            try:
                return tuple(self._unpack(data))
            finally:
                self._tuples -= 1
        if code == _REFERENCE:
            return self._make_reference(self._references[msgpack.unpackb(data)])
        if code == _PICKLE:
            if not self._allow_pickle:
                raise FailedPreconditionError("a pickled object has arrived; this process allows none: tandem.rpc.start(pickle=True)")
            try:
                return pickle.loads(data)
            except Exception as error:
                raise InvalidArgumentError(f"a pickled object has arrived that cannot be loaded here: {error}") from error
        raise InvalidArgumentError(f"MessagePack extension {code} is not one of tandem.rpc")

    def _tensor(self, index: int, kind: int, name: str = "", shape: list[int] | None = None) -> Any:
        code, plain_shape, array = self._tensors[index]
        if not name:
            name, shape = _NAMES[code], plain_shape
        assert shape is not None
        # Only an empty array may have any shape. That of others is checked where it is applied to their bytes.
        if not array.size and not (all(type(n) is int and n >= 0 for n in shape) and 0 in shape):
            raise InvalidArgumentError(f"an array without bytes has arrived whose shape is {shape}")
        if kind == _TORCH:
            return _to_torch(array, name, shape)
        # NumPy has no bfloat16.
        dtype = np.dtype(np.uint16 if name == "bfloat16" else name)
        if dtype.hasobject:
            raise InvalidArgumentError(f"an array of dtype {dtype} has arrived, which holds addresses of another process")
        return array.view(dtype).reshape(shape) if array.size else np.empty(shape, dtype)


def _to_torch(array: np.ndarray, name: str, shape: Any) -> Any:
    try:
        import torch
    except ImportError:
        raise InvalidArgumentError("a tensor of PyTorch has arrived, and PyTorch is not installed here: send .numpy()") from None
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(f"{name} is no dtype of PyTorch")
    if not array.size:
        return torch.empty(tuple(shape), dtype=dtype)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array).view(dtype).reshape(tuple(shape))
