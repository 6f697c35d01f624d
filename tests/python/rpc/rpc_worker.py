# SPDX-License-Identifier: Apache-2.0
"""A process that serves functions for the tests: rpc_worker.py NAME STORE."""

from __future__ import annotations

import builtins
import os
import sys
import threading
import weakref
from typing import Any

import numpy as np

from tandem import rpc

running = 0
cancelled = 0
held: list[rpc.Reference] = []
batches: list[int] = []
changed = threading.Lock()


@rpc.function
def empty() -> None:
    pass


@rpc.function
def echo(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


@rpc.function(idempotent=True)
def add(a: Any, b: Any) -> Any:
    return a + b


@rpc.function
def describe(value: Any) -> str:
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"


@rpc.function
def negate_in_place(array: np.ndarray) -> np.ndarray:
    np.negative(array, out=array)
    return array


@rpc.function(name="who calls")
def caller() -> str:
    return rpc.current().caller


class Strange(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@rpc.function
def fail(kind: str, text: str) -> None:
    raise (Strange if kind == "Strange" else getattr(builtins, kind))(text)


@rpc.function
def relay(to: str, name: str, *args: Any) -> Any:
    return rpc.call(to, name, *args)


@rpc.function
def block() -> None:
    """Returns when the call is cancelled."""
    global running, cancelled
    call = rpc.current()
    with changed:
        running += 1
    while not call.cancelled():
        threading.Event().wait(0.005)
    with changed:
        running -= 1
        cancelled += 1


@rpc.function
def counts() -> dict[str, int]:
    return {"running": running, "cancelled": cancelled, "alive": len(Counter.alive)}


@rpc.function
def give(what: str) -> Any:
    return {"object": object(), "set": {1}, "lock": threading.Lock(), "large": 2**70}[what]


@rpc.function
class Counter:
    alive: weakref.WeakSet[Counter] = weakref.WeakSet()

    def __init__(self, value: int) -> None:
        self.value = value
        Counter.alive.add(self)

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def _private(self) -> None:
        pass


class Plain:
    def method(self) -> None:
        pass


@rpc.function
def make_plain() -> Plain:
    return Plain()


@rpc.function
def add_to(counter: rpc.Reference, amount: int) -> int:
    return counter.local_value().add(amount)


@rpc.function
def hold(reference: rpc.Reference) -> None:
    held.append(reference)


@rpc.function
def use_held(amount: int) -> int:
    return held[-1].call("add", amount)


@rpc.function
def let_go() -> None:
    held.clear()


@rpc.function
def own_list() -> rpc.Reference:
    return rpc.own([1, 2, 3])


@rpc.function(batched=True, max_batch=4, max_delay=60)
def squares(values: Any, names: Any) -> Any:
    """Runs when four calls have come."""
    batches.append(len(values))
    return values * values, names


@rpc.function(batched=True, max_batch=2, max_delay=60)
def sums(values: Any) -> dict[str, Any]:
    return {"sum": values.sum(1), "dims": [values.ndim] * len(values)}


@rpc.function(batched=True, max_batch=2, max_delay=60)
def too_few(values: Any) -> Any:
    return values[:1]


@rpc.function(batched=True, max_batch=2, max_delay=60)
def batch_fails(values: Any) -> Any:
    raise ValueError("the batch is bad")


@rpc.function
def batch_sizes() -> list[int]:
    return batches


if __name__ == "__main__":
    rpc.start(sys.argv[1], store=sys.argv[2], wait_for=[], timeout=200, call_timeout=200)
    print("ready", os.getpid(), flush=True)
    threading.Event().wait()
