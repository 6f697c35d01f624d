# SPDX-License-Identifier: Apache-2.0
"""Changes of tables, for programs that serve a model."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Sequence

import numpy as np

from tandem._load import load_core
from tandem._paths import local_path
from tandem.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

_core = load_core()

# How long a wait goes on before Python looks for Ctrl-C.
_TICK_S = 0.2


class Change(NamedTuple):
    """How the rows of one bucket of a table have changed. Buckets divide the ids of a table.

    whole: drop all rows of the bucket first. removed: uint64 [n], ids of rows to drop. ids: uint64 [n]. rows: float32 [n, dim].
    A row that is absent reads as its initial value.
    """

    table: str
    bucket: int
    whole: bool
    removed: np.ndarray
    ids: np.ndarray
    rows: np.ndarray

    def apply_to(self, copy: dict[int, dict[int, np.ndarray]]) -> None:
        """Applies the change to a copy of the table: {bucket: {id: row}}."""
        bucket = copy.setdefault(self.bucket, {})
        if self.whole:
            bucket.clear()
        for id in self.removed:
            bucket.pop(int(id), None)
        for id, row in zip(self.ids, self.rows):
            bucket[int(id)] = row.copy()  # a view would keep the whole batch in memory


class Batch(NamedTuple):
    """Changes, to be applied in their order.

    position: where a later subscription goes on once these changes are applied. Store it with the copy.
    caught_up: the copy now has every change that was acknowledged when the last round of questions began.
    """

    changes: list[Change]
    position: bytes
    caught_up: bool


class Subscription:
    """An iterator over the changes of tables that never ends by itself. Made by tandem.subscribe()."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        while True:
            batch = self.next(_TICK_S)
            if batch is not None:
                return batch

    def next(self, timeout: float | None = None) -> Batch | None:
        """Returns the next changes, or None if nothing has changed for `timeout` seconds. None: waits.

        Raises UnavailableError if a server is away for longer than the subscription's timeout; the call may be repeated.
        """
        if timeout is None:
            return self.__next__()
        if not 0 <= timeout < float("inf"):
            raise InvalidArgumentError(f"timeout is {timeout}; it must be a number of seconds, or None")
        until = time.monotonic() + timeout
        while True:
            found = self._core.next(min(_TICK_S, max(0.0, until - time.monotonic())))
            if found is not None:
                _, _, changes, position, caught_up = found
                return Batch([Change(*one) for one in changes], position, caught_up)
            if time.monotonic() >= until:
                return None

    def close(self) -> None:
        """Ends the calls under way; a waiting next() raises CancelledError."""
        self._core.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def subscribe(
    servers: Sequence[str], *, tables: Sequence[str] = (), position: bytes = b"", interval: float = 0.05, timeout: float = 30.0
) -> Subscription:
    """Follows the tables of parameter servers: first every row, then what changes.

        copy = {}
        for batch in tandem.subscribe(["127.0.0.1:7000"], tables=["user"]):
            for change in batch.changes:
                change.apply_to(copy)

    servers: addresses ("host:port"), in order. tables: their names; none: all tables. position: that of the last batch which an
    earlier subscription to the same tables has given. interval: least seconds between two questions to a server. timeout: how long
    a server may be away, in seconds.

    Rows have no optimizer state. A batch has only updates that are as safe as acknowledged pushes: if the servers have followers,
    all followers in sync have them.
    """
    if isinstance(servers, str) or not servers:
        raise InvalidArgumentError(f"servers is {servers!r}; it must be a list of addresses, such as ['127.0.0.1:7000']")
    if isinstance(tables, str):
        raise InvalidArgumentError(f"tables is the text {tables!r}; it must be a list of names: tables=[{tables!r}]")
    if not 0 <= interval < float("inf"):
        raise InvalidArgumentError(f"interval is {interval}; it must be a number of seconds")
    if not 0 < timeout < float("inf"):
        raise InvalidArgumentError(f"timeout is {timeout}; it must be a number of seconds larger than 0")
    return Subscription(_core.Subscription(list(servers), list(tables), position, interval, timeout))


def follow(directory: str | os.PathLike[str], *, poll: float = 1.0) -> Iterator[list[Change]]:
    """Follows a directory that `tandem ps subscribe --out` writes: first every row, then what changes. Never ends by itself.

        for changes in tandem.follow("copies/user"):
            for change in changes:
                change.apply_to(copy)

    poll: seconds between two looks at the directory, which may not exist yet. Each list takes the copy to one checkpoint.
    """
    if not 0 < poll < float("inf"):
        raise InvalidArgumentError(f"poll is {poll}; it must be a number of seconds larger than 0")
    return _follow(_core.DirectoryFollower(local_path(directory)), poll)


def _follow(core: Any, poll: float) -> Iterator[list[Change]]:
    while True:
        found = core.next()
        if found is None:
            time.sleep(poll)
        else:
            yield [Change(*one) for one in found[1]]
