# SPDX-License-Identifier: Apache-2.0
"""The functions that this process serves, and the calls from C++ that run them."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from typing import Any, Callable, Sequence, TypeVar, overload

import numpy as np

from tandem.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, TandemError
from tandem.rpc._codec import Decoder, Encoder, Message
from tandem.rpc._errors import to_status

F = TypeVar("F", bound=Callable[..., Any])

# The name by which an owner calls a method of an object.
METHOD = "untyped.method"


@dataclasses.dataclass(frozen=True)
class Served:
    """A registered function, or a class whose objects may live here for others."""

    name: str
    body: Callable[..., Any]
    batched: bool = False
    max_batch: int = 32
    max_delay: float = 0.002
    exclusive: str = ""
    idempotent: bool = False


class Registry:
    """The registered functions of this process, by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served: dict[str, Served] = {}

    def add(self, served: Served) -> None:
        with self._lock:
            there = self._served.get(served.name)
            # A module that is read again (a notebook's cell, __main__ in a spawned process) replaces its functions.
            if there is not None and there.body.__qualname__ != served.body.__qualname__:
                raise AlreadyExistsError(
                    f"a function named '{served.name}' is registered already ({there.body.__module__}.{there.body.__qualname__}); "
                    f"give another name: @tandem.rpc.function(name=...)"
                )
            self._served[served.name] = served

    def all(self) -> list[Served]:
        with self._lock:
            return list(self._served.values())

    def class_of(self, value: object) -> bool:
        with self._lock:
            return any(served.body is type(value) for served in self._served.values())


REGISTRY = Registry()


@overload
def function(body: F) -> F: ...
@overload
def function(
    *, name: str | None = ..., batched: bool = ..., max_batch: int = ..., max_delay: float = ..., exclusive: str = ...,
    idempotent: bool = ...,
) -> Callable[[F], F]: ...  # fmt: skip
def function(
    body: Any = None, *, name: str | None = None, batched: bool = False, max_batch: int = 32, max_delay: float = 0.002,
    exclusive: str = "", idempotent: bool = False,
) -> Any:  # fmt: skip
    """Registers a function, which other processes may then call. Returns the function itself. Call it before start().

    name        the name by which it is called; default: __name__. A class is registered like a function: remote() makes an object
                of it, whose public methods Reference.call() can reach.
    batched     the body gets the arguments of up to `max_batch` calls at a time: arrays and tensors stacked along a new first
                dimension, other arguments as lists. It returns the results stacked or listed in the same way; tuples and dicts of
                these too. A call waits at most `max_delay` seconds for others while no batch runs.
    exclusive   functions with the same word here run one at a time in this process.
    idempotent  the call may be repeated while the connection fails.
    """
    if body is None:
        return lambda body: function(
            body, name=name, batched=batched, max_batch=max_batch, max_delay=max_delay, exclusive=exclusive, idempotent=idempotent
        )
    if not callable(body):
        raise InvalidArgumentError(f"{body!r} is not a function; write @tandem.rpc.function, or @tandem.rpc.function(name=...)")
    if inspect.iscoroutinefunction(body):
        raise InvalidArgumentError(f"{body.__qualname__} is a coroutine function; remote functions run on threads: use def")
    if name is None:
        name = body.__name__
    if not name or len(name) > 256 or not name.isprintable() or name.startswith(("tandem.", "untyped.")):
        raise InvalidArgumentError(f"the name {name!r} must have 1 to 256 printable characters, and not begin with 'tandem.' or 'untyped.'")
    if batched and (max_batch < 1 or not max_delay >= 0):
        raise InvalidArgumentError(f"max_batch is {max_batch} and max_delay {max_delay}; they must be at least 1 and 0")
    if batched and exclusive:
        raise InvalidArgumentError(f"{name} is batched, so one batch runs at a time; it cannot be exclusive as well")
    served = Served(name, body, batched, max_batch, max_delay, exclusive, idempotent)
    REGISTRY.add(served)
    try:
        body.__tandem_rpc__ = served
    except AttributeError:  # an object with slots, a built-in function: called by its name
        pass
    return body


class Context:
    """The call that a function serves: current() returns it."""

    def __init__(self, core: Any) -> None:
        self._core = core

    @property
    def caller(self) -> str:
        """The name of the process that calls."""
        return self._core.caller

    @property
    def seconds_left(self) -> float:
        """The time until the caller's deadline."""
        return self._core.seconds_left

    def cancelled(self) -> bool:
        """Returns whether nobody needs the result any more. Long functions look now and then, and return."""
        return self._core.cancelled()


CURRENT = threading.local()


class Server:
    """Runs registered functions for calls that arrive. Its methods are called by threads of C++."""

    def __init__(self, served: Sequence[Served], allow_pickle: bool, reference_type: type) -> None:
        self._bodies = [each.body for each in served] + [self._call_method]
        self._names = [each.name for each in served] + [METHOD]
        self._allow_pickle = allow_pickle
        self._reference_type = reference_type

    def serve(self, number: int, data: bytes, tensors: list[Any], references: list[Any], keep: bool, context: Any) -> tuple[Any, ...]:
        """Returns (0, data, tensors, references), (-1, object) if the result stays here, or (status code, text)."""
        CURRENT.context = Context(context)
        try:
            args, kwargs = self.arguments(data, tensors, references)
            result = self._bodies[number](*args, **kwargs)
            return (-1, result) if keep else self.encode(result)
        except BaseException as error:
            return to_status(error)
        finally:
            CURRENT.context = None

    def serve_batch(self, number: int, calls: list[Message]) -> list[tuple[Any, ...]]:
        """Runs a batched function. Calls whose arguments have equal shapes share a run."""
        outcomes: list[tuple[Any, ...]] = [()] * len(calls)
        groups: dict[Any, list[tuple[int, list[Any], dict[str, Any]]]] = {}
        for position, call in enumerate(calls):
            try:
                args, kwargs = self.arguments(*call)
                shape = tuple(_shape_of(value) for value in args), tuple((key, _shape_of(kwargs[key])) for key in sorted(kwargs))
                groups.setdefault(shape, []).append((position, args, kwargs))
            except BaseException as error:
                outcomes[position] = to_status(error)
        for group in groups.values():
            results: list[Any]
            try:
                stacked = [_stack([args[i] for _, args, _ in group]) for i in range(len(group[0][1]))]
                named = {key: _stack([kwargs[key] for _, _, kwargs in group]) for key in group[0][2]}
                results = _split(self._bodies[number](*stacked, **named), len(group), self._names[number])
            except BaseException as error:
                status = to_status(error)
                for position, _, _ in group:
                    outcomes[position] = status
                continue
            for (position, _, _), result in zip(group, results, strict=True):
                try:
                    outcomes[position] = self.encode(result)
                except BaseException as error:
                    outcomes[position] = to_status(error)
        return outcomes

    def encode(self, value: Any) -> tuple[Any, ...]:
        """Encodes a value that is sent."""
        try:
            return (0, *Encoder(self._reference_type, self._allow_pickle).encode(value))
        except TandemError as error:
            error.args = (f"its result cannot be sent: {error}",)
            return to_status(error)

    def arguments(self, data: bytes, tensors: list[Any], references: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        content = Decoder(tensors, references, self._reference_type, self._allow_pickle).decode(data)
        if not isinstance(content, list) or not content or not isinstance(content[0], list) or len(content) > 2:
            raise InvalidArgumentError("the arguments are not those of tandem.rpc")
        kwargs = content[1] if len(content) > 1 else {}
        if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
            raise InvalidArgumentError("the names of arguments must be strings")
        return content[0], kwargs

    def _call_method(self, reference: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        target = reference.local_value()
        if not REGISTRY.class_of(target):
            raise InvalidArgumentError(
                f"the value is a {type(target).__qualname__}, which is not registered here: decorate the class with "
                f"@tandem.rpc.function, or call a registered function with the reference as argument"
            )
        found = None if method.startswith("_") else getattr(type(target), method, None)
        if not callable(found):
            public = [key for key in dir(type(target)) if not key.startswith("_") and callable(getattr(type(target), key))]
            raise NotFoundError(f"a {type(target).__qualname__} has no method {method!r}; it has {', '.join(public)}")
        return getattr(target, method)(*args, **kwargs)


def _is_tensor(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and type(value).__module__.startswith("torch") and hasattr(value, "data_ptr")


def _shape_of(value: Any) -> Any:
    if isinstance(value, np.ndarray) or _is_tensor(value):
        return type(value).__name__, tuple(value.shape), str(value.dtype)
    return None


def _stack(values: list[Any]) -> Any:
    if isinstance(values[0], np.ndarray):
        return np.stack(values)
    if _is_tensor(values[0]):
        import torch

        return torch.stack(values)
    return values


def _split(result: Any, count: int, name: str) -> list[Any]:
    """Returns the results of `count` calls, which one result has stacked or listed."""
    if isinstance(result, tuple):
        return list(zip(*(_split(part, count, name) for part in result), strict=True)) if result else [()] * count
    if isinstance(result, dict):
        parts = {key: _split(part, count, name) for key, part in result.items()}
        return [{key: part[i] for key, part in parts.items()} for i in range(count)]
    if result is None:
        return [None] * count
    if isinstance(result, list) or ((isinstance(result, np.ndarray) or _is_tensor(result)) and result.ndim > 0):
        if len(result) == count:
            return list(result)
        raise InvalidArgumentError(f"{name} has returned {len(result)} results for a batch of {count} calls")
    raise InvalidArgumentError(
        f"{name} has returned a {type(result).__qualname__} for a batch of {count} calls; a batched function returns an array or "
        f"tensor with one row a call, a list with one item a call, or tuples and dicts of these"
    )
