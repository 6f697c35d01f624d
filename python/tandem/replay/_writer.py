# SPDX-License-Identifier: Apache-2.0
"""Writers of steps and items."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from tandem import _arrays
from tandem.errors import CancelledError, DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, TandemError
from tandem.replay._tables import DTYPES, Column, Columns, column_dtype, count, dtype_name, flatten, numpy_dtype, parse_columns

# The columns that every writer adds.
_OWN_COLUMNS = ("is_first", "policy_version")

# How long close() waits for the server to take back tickets.
_RETURN_S = 1.0


class Window(NamedTuple):
    """Consecutive steps of a writer, from last() or stack(). Falsy if the writer has not so many steps."""

    first: int
    steps: int
    repeat_first: int

    def __bool__(self) -> bool:
        return self.steps > 0


class Ticket(NamedTuple):
    """The permission to roll out one item for a table that paces its actors (Client.admit).

    The policy of every step must have at least `min_version`. `epoch` is that of the commit of min_version. If learners commit by
    Publisher.version.epoch, compare it with Model.version.epoch: weights of an earlier epoch are those of an earlier life of the learner,
    whatever their number. It is 0 if the server does not say.
    """

    id: int
    min_version: int
    lease: float
    epoch: int = 0


#: The columns of an item: by name a Window, or (column of the writer, Window).
ItemColumns = Mapping[str, Any]


class Writer:
    """Writes the steps of one environment and makes items of them. Made by Client.writer(). Calls of several threads take turns.

        with client.writer() as writer:
            writer.append({"observation": observation, "action": action, "reward": reward}, is_first=True)
            writer.create_item("replay", writer.last(1))

    Leaving the `with` block flushes, unless an exception leaves it. `timeout` bounds how long a call waits for a table that takes no
    inserts; None: the client's. After DeadlineExceededError from append() the step has been appended, and after that from create_item()
    by a table that is full the text says whether there is an item; what remains to be delivered is delivered by later calls.
    """

    def __init__(self, client: Any, name: str, columns: Columns | None, chunk_steps: int, history_steps: int, max_pending_items: int) -> None:
        self._client = client
        self.name = name
        self._options = (
            count(chunk_steps, "chunk_steps", 32), count(history_steps, "history_steps", 32), count(max_pending_items, "max_pending_items", 32),
        )  # fmt: skip
        self._what = f"a step of writer '{name}'"
        self._columns: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
        self._core: Any = None
        self._closed = False
        self._opening = threading.Lock()
        self._tables: set[str] = set()  # for which there were items
        if columns is not None:
            self._open_with(parse_columns(columns, f"writer '{name}'"))

    def _open(self, columns: Callable[[], Mapping[str, Column]]) -> None:
        """Opens the writer with these columns, unless it is open."""
        with self._opening:
            if self._core is None:
                if self.closed:
                    raise CancelledError("this writer is closed")
                self._open_with(columns())

    def _open_with(self, columns: Mapping[str, Column]) -> None:
        described = [(name, DTYPES.index(column.dtype), list(column.shape)) for name, column in columns.items()]
        core = self._client._core.open_writer(self.name, described, *self._options)
        self._columns = [(name, numpy_dtype(column.dtype), column.shape) for name, column in columns.items()]
        self._core = core  # last: other threads look at it without the lock

    # Life

    def close(self) -> None:
        """Drops items that were not delivered; flush() delivers them. Gives back the tickets that it holds.

        A call that waits in another thread, and later calls, raise CancelledError. Idempotent.
        """
        self._closed = True
        for table, tickets in self._core.close() if self._core is not None else ():
            # Otherwise they would count until the end of their leases.
            with contextlib.suppress(TandemError):
                self._client._core.call("RenewTickets", json.dumps({"table": table, "tickets": tickets, "end": True}), _RETURN_S)

    @property
    def closed(self) -> bool:
        return self._closed or self._client.closed

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is None and not self._closed:
                self.flush()
        finally:
            self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Writer cannot be pickled: make one in the process that uses it")

    def _opened(self) -> Any:
        if self._core is None:
            if self.closed:
                raise CancelledError("this writer is closed")
            raise FailedPreconditionError(f"writer '{self.name}' has no steps yet; append one, or give its columns")
        return self._core

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of steps, by their paths; empty before they are known."""
        return {name: Column(column_dtype(dtype), shape) for name, dtype, shape in self._columns}

    # Steps

    def append(
        self, step: Mapping[str, Any], *, is_first: bool = False, policy_version: int = 0, timeout: float | None = None
    ) -> None:
        """Appends a step: an array, tensor or number for each column, or nested dicts of them. They are copied.

        The first step decides the columns, unless they were given: their names, dtypes and shapes; later steps must have the same.
        A Python float is f64, an int i64; after that numbers are converted to the column's dtype. Booleans are stored as u8.
        is_first: this step begins an episode; a writer's first step always does.
        policy_version: the version of the policy that acted.

        Raises InvalidArgumentError, naming the column, if a value does not fit; no step has been appended then.
        """
        if self._core is None:
            self._open(lambda: {n: _column_of(v, f"column '{n}' of {self._what}") for n, v in flatten(step, self._what).items()})
        values = self._values(step, ())
        self._deliver(lambda: self._core.append(values, 1, [bool(is_first)], [int(policy_version)], self._client._seconds(timeout)))

    def append_steps(
        self,
        steps: Mapping[str, Any],
        *,
        is_first: bool | Sequence[bool] | np.ndarray = False,
        policy_version: int | Sequence[int] | np.ndarray = 0,
        timeout: float | None = None,
    ) -> None:
        """Appends several steps: arrays [steps, shape...] of each column. Faster than append() for each.

        is_first, policy_version: of each step, or one value: is_first then says whether the first of the steps begins an episode.
        """
        flat = flatten(steps, self._what)
        arrays = {name: _as_array(value, f"column '{name}' of {self._what}") for name, value in flat.items()}
        lengths = {array.shape[0] if array.ndim > 0 else 0 for array in arrays.values()}
        if len(lengths) != 1 or 0 in lengths:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            raise InvalidArgumentError(
                f"{self._what}: the first dimension of all arrays must be the same number of steps, 1 or more; they are {shapes}"
            )
        [length] = lengths
        firsts = [bool(is_first)] if np.ndim(is_first) == 0 else [bool(f) for f in np.asarray(is_first)]
        versions = [int(v) for v in np.asarray(policy_version).reshape(-1)]
        for values, what in ((firsts, "is_first"), (versions, "policy_version")):
            if len(values) not in (1, length):
                raise InvalidArgumentError(f"{what} has {len(values)} values for {length} steps; give one for each, or a single one")
        if self._core is None:
            self._open(lambda: {n: Column(dtype_name(a.dtype, f"column '{n}' of {self._what}"), a.shape[1:]) for n, a in arrays.items()})
        values = self._values(arrays, (length,))
        self._deliver(lambda: self._core.append(values, length, firsts, versions, self._client._seconds(timeout)))

    def _values(self, step: Mapping[str, Any], lead: tuple[int, ...]) -> list[np.ndarray]:
        if any(isinstance(value, Mapping) for value in step.values()):
            step = flatten(step, self._what)
        values = []
        for name, dtype, shape in self._columns:
            if name not in step:
                break
            value = step[name]
            if type(value) is np.ndarray and value.dtype == dtype and value.shape == lead + shape and value.flags.c_contiguous:
                values.append(value)
            else:
                values.append(_convert(value, dtype, lead + shape, f"column '{name}' of {self._what}"))
        if len(values) != len(self._columns) or len(step) != len(self._columns):
            names = {name for name, _, _ in self._columns}
            missing, extra = names - set(step), set(step) - names
            wrong = [f"columns are missing: {', '.join(sorted(missing))}"] if missing else []
            if extra:
                wrong.append(f"there are no columns {', '.join(sorted(map(str, extra)))}")
            raise InvalidArgumentError(f"{self._what}: {'; '.join(wrong)}; the columns are {', '.join(sorted(names))}")
        return values

    # Items

    def last(self, steps: int, skip: int = 0, *, across_episodes: bool = False) -> Window:
        """Returns the last `steps` steps, without the `skip` newest ones: Reverb's history[-steps - skip:-skip].

        The window is falsy if the current episode has not so many steps, or if they are not in reach of history_steps.
        across_episodes: the window may begin in an earlier episode, for unrolls whose columns say where episodes end.
        """
        if self._core is None and not self._closed:
            return Window(0, 0, 0)
        return Window(*self._opened().last(count(steps, "steps", 32), count(skip, "skip", 32), bool(across_episodes)))

    def stack(self, steps: int, skip: int = 0) -> Window:
        """Returns such a window of an episode with fewer steps as well: its first step is repeated, as frame stacks do."""
        if self._core is None and not self._closed:
            return Window(0, 0, 0)
        return Window(*self._opened().stack(count(steps, "steps", 32), count(skip, "skip", 32)))

    def create_item(
        self, table: str, columns: Window | ItemColumns, *, priority: float | None = None, timeout: float | None = None
    ) -> None:
        """Makes an item of one window over all columns, or of a window for each of its columns.

            writer.create_item("replay", writer.last(20))
            writer.create_item("replay", {
                "observation": writer.last(1, skip=1),
                "next_observation": ("observation", writer.last(1)),       # the writer's column, and its window
            })

        A name of nested columns stands for all of them. The writer's columns "is_first" and "policy_version" can be used as well.
        priority: None: the largest one so far given to an item of the table, at first 1.

        The item is delivered when the chunk of its last step is complete, or by flush(). Raises InvalidArgumentError for an unknown
        column, a window without steps or out of reach, or a priority that is negative or not finite; there is no item then. Tables refuse
        items with other columns than theirs when these are delivered: later calls of the writer raise that.
        """
        core = self._opened()
        names = [name for name, _, _ in self._columns]
        if isinstance(columns, Window):
            items = [(name, name, columns) for name in names]
        else:
            items = []
            for name, value in flatten(columns, f"an item of writer '{self.name}'").items():
                source: Any = None
                window: Any = None
                if isinstance(value, Window):  # which is a tuple as well
                    source, window = name, value
                elif isinstance(value, tuple) and len(value) == 2:
                    source, window = value
                if not isinstance(source, str) or not isinstance(window, Window):
                    raise InvalidArgumentError(
                        f"column '{name}' of an item of writer '{self.name}' is {value!r}; it must be a Window, or (column, Window)"
                    )
                nested = [n for n in names if n.startswith(source + "/")]
                if source in names or source in _OWN_COLUMNS or not nested:
                    items.append((name, source, window))
                else:
                    items.extend((name + n[len(source) :], n, window) for n in nested)
        self._tables.add(table)
        made = [(n, s, tuple(w)) for n, s, w in items]
        value_of_priority = None if priority is None else float(priority)
        self._deliver(lambda: core.create_item(table, value_of_priority, made, self._client._seconds(timeout)))

    def hold(self, table: str, ticket: Ticket) -> None:
        """Makes the next item for `table`, which must pace its actors, use this ticket.

        append() renews it until the item is delivered. It raises NotFoundError (a LookupError) if the ticket has ended: the step has been
        appended, but the item of this rollout would be refused. close() gives the ticket back if no item has used it.
        """
        if self._core is None and not self._closed:
            raise FailedPreconditionError(
                f"writer '{self.name}' has no columns yet; give them to Client.writer(columns=...) to hold a ticket before the first step"
            )
        self._opened().hold(table, ticket.id, ticket.min_version, ticket.lease)

    def flush(self, timeout: float | None = None) -> None:
        """Completes the current chunk and delivers all items: at the end of an episode, or before close(). Blocks."""
        if self._core is None and not self._closed:
            return
        core = self._opened()
        self._deliver(lambda: core.flush(self._client._seconds(timeout)))

    def _deliver(self, call: Callable[[], None]) -> None:
        """Makes a call that may wait for tables."""
        try:
            call()
        except DeadlineExceededError as error:
            with self._client._reasons(*self._tables):
                raise error

    @property
    def episode_steps(self) -> int:
        """The number of steps of the current episode."""
        return 0 if self._core is None else self._opened().episode_steps()

    @property
    def pending_items(self) -> int:
        """The number of items that have not been delivered."""
        return 0 if self._core is None else self._opened().pending_items()

    @property
    def dropped_items(self) -> int:
        """The number of items that tables have refused. They are lost; exceptions said why.

        Items of tickets are counted by their table.
        """
        return 0 if self._core is None else self._opened().dropped_items()


def _as_array(value: Any, what: str) -> np.ndarray:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _arrays._from_tensor(value, what)
    return np.asarray(value)


def _column_of(value: Any, what: str) -> Column:
    array = _as_array(value, what)
    return Column(dtype_name(array.dtype, what), array.shape)


def _convert(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> np.ndarray:
    """Returns the value as a contiguous array of this dtype and shape, or raises."""
    array = _as_array(value, what)
    if array.dtype == np.bool_ and dtype == np.uint8:
        array = array.view(np.uint8) if array.flags.c_contiguous else array.astype(np.uint8)
    if array.dtype != dtype:
        if column_dtype(dtype) == "bf16":
            raise InvalidArgumentError(
                f"{what} has dtype {array.dtype}; a bf16 column takes the bits of bfloat16 as an array of uint16, because NumPy has no such dtype"
            )
        # Python's numbers have no dtype of their own: they get the column's, if that can be without a surprise.
        own = isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "device") or array.dtype.kind not in "biuf"
        fits = array.dtype.kind in "biu" or dtype.kind == "f"
        if own or not fits:
            raise InvalidArgumentError(f"{what} has dtype {array.dtype}; it must be {dtype}")
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        if not (np.array_equal(np.isfinite(converted), np.isfinite(array)) if dtype.kind == "f" else np.array_equal(converted, array)):
            raise InvalidArgumentError(f"{what} is {value!r}, which is out of the range of {dtype}")
        array = converted
    if array.shape != shape:
        raise InvalidArgumentError(f"{what} has shape {array.shape}; it must be {shape}")
    return np.ascontiguousarray(array)
