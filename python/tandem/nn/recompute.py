# SPDX-License-Identifier: Apache-2.0
"""Keeps the lookups that activation checkpointing asks for again in the backward pass."""

from __future__ import annotations

import collections
import dataclasses
import enum
import threading
import warnings
import weakref
from typing import Any

# Bytes of rows that are kept for recomputations, at most.
_LIMIT = 256 << 20
# Pushes after which a lookup is dropped that no backward pass has asked for: it was not made for a recomputation.
_LIMIT_PUSHES = 16


class Keep(enum.Enum):
    """How long a lookup is kept."""

    BY_GRAPH = 1  # as long as the graph of its forward pass: checkpoint(use_reentrant=False)
    UNTIL_RECOMPUTED = 2  # the forward pass ran without a graph: checkpoint(use_reentrant=True)
    UNTIL_PUSH = 3  # a compiled graph, which may compute it again and does not say so


@dataclasses.dataclass
class _Kept:
    key: bytes
    lookup: Any
    keep: Keep
    pushes: int  # before the forward pass


class KeptLookups:
    """The lookups of forward passes whose backward pass is to come, by their contents. Thread-safe."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._lock = threading.RLock()
        self._number = 0  # of the latest lookup
        self._pushes = 0
        self._kept: collections.OrderedDict[int, _Kept] = collections.OrderedDict()
        self._by_key: dict[bytes, list[int]] = {}
        self._bytes = 0
        self._alive: dict[bytes, list[tuple[int, weakref.ref[Any]]]] = {}
        self._dropped: set[bytes] = set()  # keys of lookups that the limit has removed

    def add(self, key: bytes, lookup: Any, keep: Keep) -> None:
        with self._lock:
            self._number += 1
            if keep is Keep.BY_GRAPH:
                self._alive.setdefault(key, []).append((self._number, weakref.ref(lookup, lambda ref: self._died(key, ref))))
                return
            self._kept[self._number] = _Kept(key, lookup, keep, self._pushes)
            self._by_key.setdefault(key, []).append(self._number)
            self._bytes += lookup.bytes
            while self._bytes > self._limit and len(self._kept) > 1:
                oldest = next(iter(self._kept))
                if len(self._dropped) < 1024 and self._kept[oldest].keep is Keep.UNTIL_RECOMPUTED:
                    self._dropped.add(self._kept[oldest].key)
                self._remove(oldest)

    def find(self, key: bytes, last: bool) -> Any:
        """Returns the latest lookup with these contents, or None. `last`: nobody will ask for this one again.

        The backward pass asks in the reverse order of the forward pass.
        """
        with self._lock:
            numbers = self._by_key.get(key)
            latest = numbers[-1] if numbers else 0
            for number, ref in reversed(self._alive.get(key, ())):
                lookup = ref()
                if lookup is not None and number > latest:
                    return lookup
            if latest:
                kept = self._kept[latest]
                if last and kept.keep is Keep.UNTIL_RECOMPUTED:
                    self._remove(latest)
                return kept.lookup
            if key in self._dropped:
                self._dropped.discard(key)
                warnings.warn(
                    f"activation checkpointing computes a lookup again whose rows were dropped, because more than "
                    f"{self._limit >> 20} MiB of rows wait for their backward passes. They are pulled again, and may have changed "
                    f"since the forward pass. Leave the embeddings out of checkpoint(), or pass use_reentrant=False",
                    stacklevel=2,
                )
            return None

    def end_step(self) -> None:
        """Drops the lookups that are kept until a push, and those for which no backward pass has asked for many pushes."""
        with self._lock:
            self._pushes += 1
            oldest = self._pushes - _LIMIT_PUSHES
            for number in [n for n, kept in self._kept.items() if kept.keep is Keep.UNTIL_PUSH or kept.pushes < oldest]:
                self._remove(number)

    def clear(self) -> None:
        """Drops all lookups: the rows have changed."""
        with self._lock:
            self._kept.clear()
            self._by_key.clear()
            self._bytes = 0
            self._alive.clear()
            self._dropped.clear()

    def _remove(self, number: int) -> None:
        kept = self._kept.pop(number)
        self._bytes -= kept.lookup.bytes
        numbers = self._by_key[kept.key]
        numbers.remove(number)
        if not numbers:
            del self._by_key[kept.key]

    def _died(self, key: bytes, ref: weakref.ref[Any]) -> None:
        with self._lock:
            alive = self._alive.get(key)
            if alive is None:
                return
            alive[:] = [each for each in alive if each[1] is not ref]
            if not alive:
                del self._alive[key]
