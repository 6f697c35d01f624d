# SPDX-License-Identifier: Apache-2.0
"""Pulls the rows of the next batches while the program computes with this one."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
import warnings
from typing import Any, Callable, Generic, Iterable, Iterator, Mapping, TypeVar

from tandem.errors import InvalidArgumentError

T = TypeVar("T")

# A loader that blocks is left to itself when the loop ends; its thread is a daemon.
_JOIN_SECONDS = 2.0

# Mean row staleness above which a table loses quality (docs/hybrid_quality.md).
_HIGH_ROW_STALENESS = 1.0


@dataclasses.dataclass
class PrefetchStats:
    """What a Prefetch has done since it was made.

    staleness: of a batch, the number of this worker's pushes between the pull of its rows and their use.
    """

    batches: int = 0  # whose rows were pulled ahead and used
    unused: int = 0  # whose rows were pulled ahead for nothing
    staleness_sum: int = 0
    staleness_max: int = 0
    wait_seconds: float = 0.0  # that the loop has waited for rows that were on their way
    loader_seconds: float = 0.0  # that the loop has waited for the loader
    start_batches: int = 0  # of the synchronous start, whose rows were not pulled ahead

    @property
    def staleness_mean(self) -> float:
        return self.staleness_sum / self.batches if self.batches else 0.0


class Prefetch(Generic[T]):
    """Iterates over the batches of a loader, and pulls the rows of the next ones meanwhile.

        loader = tandem.data.Prefetch(DataLoader(...), emb, depth=2)
        for batch in loader:
            loss = lossf(model(batch), batch.y)      # emb(batch.sparse) finds its rows here
            loss.backward()
            optimizer.step()

    emb: a module of tandem.nn. depth: the number of batches whose rows are pulled ahead.
    sparse: returns of a batch what the program passes to `emb`; several arguments as a tuple. The default is batch.sparse or
        batch["sparse"].

    The first `start` batches that are trained are synchronous: nothing is pulled ahead of them. Late gradients do the most harm
    there: a model that starts near zero is thrown off its way, and optimizers such as Adagrad keep the oscillations in their state
    for ever. It starts again after a checkpoint was loaded.

    Rows that are pulled ahead lack the updates of at most `depth` pushes of this worker: the pull of batch t + depth begins when
    the loop asks for batch t, and all pushes before are acknowledged. `stats` has what was measured. Tables in sync mode allow no
    staleness: with them `depth` is 0, and a warning says so. So it is with clients that only read.

    A module that gets other ids than those of the batch pulls their rows itself. The loader is read on a thread of its own. Its
    errors, and those of pulls, are raised where the loop asks for the batch. A warning at the end of a pass names tables whose rows
    are updated more than once on average between the pull and the push of a gradient, which costs quality.
    """

    def __init__(
        self, loader: Iterable[T], emb: Any, depth: int = 2, *, sparse: Callable[[T], Any] | None = None, start: int = 20
    ) -> None:
        if not hasattr(emb, "_engine"):
            raise InvalidArgumentError(f"emb is a {type(emb).__name__}; it must be a module of tandem.nn, without a wrapper around it")
        if not isinstance(depth, int) or depth < 0:
            raise InvalidArgumentError(f"depth is {depth!r}; it must be a number, 0 or more")
        if not isinstance(start, int) or start < 0:
            raise InvalidArgumentError(f"start is {start!r}; it must be a number of batches, 0 or more")
        self._loader = loader
        self._emb = emb
        self._wanted = depth
        self._start_batches = start
        self._started = 0  # batches of the start that were trained
        self._generation = -1  # of the rows with which they were
        self._warned: set[str] = set()
        self._sparse = _sparse_of if sparse is None else sparse
        self.stats: PrefetchStats = PrefetchStats()
        self._lock = threading.Lock()

    @property
    def depth(self) -> int:
        """The depth in force: 0 if a table of the module is in sync mode now."""
        return 0 if self.reason else self._wanted

    @property
    def reason(self) -> str:
        """Why `depth` is not the one that was asked for; empty if it is."""
        if self._wanted == 0:
            return ""
        client = self._emb.client
        if client.read_only:
            return "the client only reads"
        sharded = [table for table in self._emb.tables if not table.replicated]
        if not sharded:
            return "all tables of the module are replicated"
        tables = client.tables()
        for table in sharded:
            if tables[table.name].config["update_mode"]["kind"] == "SYNC":
                return f"table '{table.name}' is in sync mode, which allows no staleness"
        return ""

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        depth, reason = self._wanted, self.reason
        if reason:
            warnings.warn(f"Prefetch pulls nothing ahead, because {reason}: depth is 0 instead of {depth}", stacklevel=2)
            depth = 0
        synchronous = self._begin_start() if depth > 0 and self._emb._trains else 0
        run = _Run(iter(self._loader), self, depth, synchronous)
        try:
            while True:
                began = time.monotonic()
                item = run.next()
                with self._lock:
                    self.stats.loader_seconds += time.monotonic() - began
                if item is None:
                    if depth > 0 and self._emb._trains:
                        self._warn()
                    return
                if synchronous > 0:
                    synchronous -= 1
                    self._started += 1
                    with self._lock:
                        self.stats.start_batches += 1
                try:
                    yield item.batch
                finally:
                    if item.ahead is not None and self._emb._engine.session.drop_ahead(item.ahead):
                        with self._lock:
                            self.stats.unused += 1
        finally:
            run.close()

    def _begin_start(self) -> int:
        """Returns how many of the next batches belong to the synchronous start."""
        generation = self._emb._engine.session._generation
        if generation != self._generation:
            self._generation, self._started = generation, 0
        return self._start_batches - self._started

    def _warn(self) -> None:
        tables = self._emb.client.tables()
        for table in self._emb.tables:
            if table.replicated or table.name in self._warned:
                continue
            measured = tables[table.name].stats.get("row_staleness") or {}
            rows = float(measured.get("rows", 0))
            mean = float(measured.get("sum", 0)) / rows if rows > 0 else 0.0
            if mean > _HIGH_ROW_STALENESS:
                self._warned.add(table.name)
                warnings.warn(
                    f"table '{table.name}' loses quality: its rows are updated {mean:.1f} times on average between the pull and the push "
                    f"of a gradient; set a smaller depth (now {self._wanted}), or placement='replicated' if it is small",
                    stacklevel=3,
                )

    def _start(self, batch: T) -> Any:
        return self._emb._engine.start_ahead(self._batch_of(batch), self._used)

    def _batch_of(self, batch: T) -> Any:
        return self._emb._batch(self._sparse(batch), self._emb._engine.features)

    def _used(self, staleness: int, waited: float) -> None:
        with self._lock:
            self.stats.batches += 1
            self.stats.staleness_sum += staleness
            self.stats.staleness_max = max(self.stats.staleness_max, staleness)
            self.stats.wait_seconds += waited


@dataclasses.dataclass
class _Item:
    batch: Any
    ahead: Any


class _Run:
    """One pass over the loader, on a thread."""

    def __init__(self, iterator: Iterator[Any], owner: Prefetch[Any], depth: int, synchronous: int) -> None:
        self._iterator = iterator
        self._owner = owner
        self._depth = depth
        self._synchronous = synchronous  # first batches, for which the depth is 0
        self._changed = threading.Condition()
        self._asked = -1  # the batch for which the loop has asked last
        self._items: collections.deque[_Item] = collections.deque()
        self._ended: BaseException | bool = False  # True: at the loader's end
        self._push_failed = False  # `_ended` is the error of a push. The session has it, too
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="tandem-prefetch", daemon=True)
        self._thread.start()

    def next(self) -> _Item | None:
        """Returns the next batch, or None at the end. Blocks; raises the loader's error."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
            while not self._items and self._ended is False:
                self._changed.wait()
            if self._items:
                return self._items.popleft()
            ended = self._ended
        if self._push_failed:
            self._owner._emb._engine.session.wait()  # raises the error, which nobody else raises then
        if isinstance(ended, BaseException):
            raise ended
        return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)
        with self._changed:
            items = list(self._items)
            self._items.clear()
        for item in items:
            if item.ahead is not None:
                self._owner._emb._engine.session.drop_ahead(item.ahead)

    def _read(self) -> None:
        session = self._owner._emb._engine.session
        ended: BaseException | bool = True
        try:
            index = 0
            for batch in self._iterator:
                depth = 0 if index < self._synchronous else self._depth
                with self._changed:
                    while not self._closed and index > self._asked + depth:
                        self._changed.wait()
                    if self._closed:
                        return
                ahead = None
                if depth < self._depth and self._owner._emb._trains:
                    self._owner._batch_of(batch)  # raises now if the batch cannot be looked up
                elif depth > 0 and self._owner._emb._trains:
                    # The pushes of all batches that the loop has done. If the loop is left early, the session still has their
                    # error for the next lookup, flush() or close().
                    failure = session.wait_quietly()
                    if failure is not None:
                        self._push_failed = True
                        raise failure
                    ahead = self._owner._start(batch)
                with self._changed:
                    if self._closed:
                        if ahead is not None:
                            session.drop_ahead(ahead)
                        return
                    self._items.append(_Item(batch, ahead))
                    self._changed.notify_all()
                index += 1
        except BaseException as error:
            ended = error
        finally:
            with self._changed:
                self._ended = ended
                self._changed.notify_all()


def _sparse_of(batch: Any) -> Any:
    if isinstance(batch, Mapping) and "sparse" in batch:
        return batch["sparse"]
    if hasattr(batch, "sparse"):
        return batch.sparse
    raise InvalidArgumentError(
        f"a batch of the loader is a {type(batch).__name__} without `sparse`; give Prefetch a function that returns what the module "
        f"is called with: sparse=lambda batch: batch[0]"
    )
