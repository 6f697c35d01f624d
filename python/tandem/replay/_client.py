# SPDX-License-Identifier: Apache-2.0
"""Clients of replay servers."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import socket
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

import numpy as np

from tandem import _arrays
from tandem._engine_client import EngineClient, seconds_of
from tandem._load import load_core
from tandem.errors import DeadlineExceededError, InvalidArgumentError, TandemError
from tandem.replay._batch import Batch
from tandem.replay._tables import Columns, RateLimit, Table, count, to_json
from tandem.replay._writer import Ticket, Writer

if TYPE_CHECKING:
    from typing_extensions import Self

_core = load_core()
_numbers = itertools.count(1)

# Fields of messages whose values are text, even if they look like numbers.
_TEXTS = frozenset({"name", "last_inserter", "last_sampler", "why_no_insert", "why_no_sample", "oldest_actor", "why_not_admitted", "directory"})


def unique_name(prefix: str) -> str:
    """Returns a name that no other writer, sampler or client has, also in other processes."""
    return f"{prefix}/{socket.gethostname()[:60]}/{os.getpid()}/{next(_numbers)}"


def plain(value: Any, name: str = "") -> Any:
    """Returns a message that came as JSON with numbers where protobuf has text for them."""
    if isinstance(value, dict):
        return {k: plain(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v, name) for v in value]
    if isinstance(value, str) and name not in _TEXTS:
        if value.lstrip("-").isdigit():
            return int(value)
        if value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
    return value


def priorities_of(table: str, keys: Any, priorities: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns keys and priorities as contiguous arrays, or raises."""
    items = _arrays.as_ids(keys, f"keys of table '{table}'").astype(np.uint64, copy=False)
    values = np.asarray(priorities.detach().cpu().numpy() if _arrays._is_tensor(priorities) else priorities, dtype=np.float64)
    if values.shape != items.shape:
        raise InvalidArgumentError(f"priorities of table '{table}' have shape {values.shape}; keys have {items.shape}, and they must be equal")
    return items, np.ascontiguousarray(values)


@contextlib.contextmanager
def reasons(client: Client, *tables: str) -> Iterator[None]:
    """Adds to a DeadlineExceededError why calls of the tables wait, if its text does not say so.

    The server says so a moment before the deadline, which is too late if the machine is busy.
    """
    try:
        yield
    except DeadlineExceededError as error:
        text = str(error)
        if any(said in text for said in ("takes no inserts", "gives no", "admits no", "has not ended")):
            raise
        try:
            why = [reason for table in tables for reason in client.why(table, timeout=2.0) if " no " in reason or "wait" in reason]
        except TandemError:
            raise error from None
        raise DeadlineExceededError(f"{text}: {'; '.join(why)}" if why else text) from None


class Client(EngineClient):
    """The replay tables of a server, or of this process. Made by tandem.replay.connect() or local(). Thread-safe.

    Waits end by their time limit (`timeout`, in seconds; None: that of the client) with DeadlineExceededError, whose text says why the
    table takes no inserts or gives no samples; by Ctrl-C; and by close(). A call to a server that does not answer may take a few seconds
    more. Calls are repeated after a broken connection, also to a server
    that has started again: inserts take effect once, and a repeated sample gives the same items.

    close() ends the calls of its writers and samplers as well. What writers have not delivered is lost; Writer.flush() delivers it. The
    tables of local() end, after a last checkpoint if there is a directory for it.
    """

    _WHAT = "a replay client"

    def _reasons(self, *tables: str) -> contextlib.AbstractContextManager[None]:
        return reasons(self, *tables)

    def _call(self, method: str, request: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        return plain(json.loads(self._core.call(method, to_json(request), self._seconds(timeout))))

    # Tables

    def create_table(self, table: Table) -> None:
        """Creates a table. Does nothing if it was created with the same options; AlreadyExistsError if with others."""
        if not isinstance(table, Table):
            raise InvalidArgumentError(f"the table is {table!r}; it must be a tandem.replay.Table")
        self._core.create_table(table.to_json())

    def tables(self) -> list[str]:
        """Returns the names of the tables."""
        return [table["options"]["name"] for table in self._call("ListTables", {})["tables"]]

    def table(self, name: str) -> Table:
        """Returns a table's configuration, with the limits that set_limits() has changed."""
        message = json.loads(self._core.call("ListTables", to_json({"table": name}), self._timeout))
        return Table.from_message(message["tables"][0]["options"])

    def info(self, table: str) -> dict[str, Any]:
        """Returns the state of a table: "items", "bytes", "inserts", "samples", "why_no_insert", and so on.

        The keys are the fields of tandem.v1.ReplayTableInfo (proto/tandem/v1/replay.proto), which says what they mean. NotFoundError
        lists the tables if there is none of this name.
        """
        return self._call("ListTables", {"table": table})["tables"][0]

    def server_info(self) -> dict[str, Any]:
        """Returns the state of the server: "chunk_bytes", "parked_calls", "uptime_s", and the "tables"."""
        return self._call("ListTables", {})

    def why(self, table: str, *, timeout: float | None = None) -> list[str]:
        """Returns sentences: why inserts, samples or rollouts of a table wait."""
        return self._call("Explain", {"table": table}, timeout)["reasons"]

    def peek(self, table: str, count: int = 10) -> list[dict[str, Any]]:
        """Returns items without their values, and without counting them as samples: "key", "priority", "times_sampled", ..."""
        items: list[dict[str, Any]] = []
        position = 0
        while len(items) < count:
            page = self._call("Peek", {"table": table, "count": min(1000, count - len(items)), "next": position})
            items += page["items"]
            position = page["next"]
            if position == 0:
                break
        return items

    def set_limits(
        self, table: str, *, limit: RateLimit | None = None, max_items: int | None = None, max_bytes: int | None = None
    ) -> None:
        """Changes limit and budgets of a table that is in use. Calls that wait go on if they may. None: as it is."""
        request: dict[str, Any] = {"table": table}
        if limit is not None:
            request.update(samples_per_insert=limit.samples_per_insert, min_size=limit.min_size)
            # An infinity removes the limit.
            request["min_diff"] = -math.inf if limit.min_diff is None else limit.min_diff
            request["max_diff"] = math.inf if limit.max_diff is None else limit.max_diff
        if max_items is not None:
            request["max_items"] = max_items
        if max_bytes is not None:
            request["max_bytes"] = max_bytes
        self._call("SetLimits", request)

    def reset(self, table: str) -> int:
        """Removes all items of a table, and returns their number. Tickets end, and the committed version is forgotten.

        Made once only: after UnavailableError or DeadlineExceededError the items may have been removed or not.
        """
        return self._call("Reset", {"table": table})["removed"]

    def save_checkpoint(self, *, timeout: float = 600.0) -> str:
        """Writes all tables to the server's checkpoint directory, and returns the path. The server restores it when it starts again."""
        return self._call("SaveCheckpoint", {}, timeout)["directory"]

    # Items

    def writer(
        self,
        name: str | None = None,
        *,
        columns: Columns | None = None,
        chunk_steps: int = 8,
        history_steps: int = 128,
        max_pending_items: int = 4096,
    ) -> Writer:
        """Returns a writer of the steps of one environment.

        name: in reports. Of two writers with the same name, the one that began last replaces the other. None: one that is unique.
        columns: of steps; None: those of the first step.
        chunk_steps: an item is delivered once the chunk of its last step is complete. Items that overlap share chunks.
        history_steps: how far windows reach back.
        max_pending_items: how many items may wait for delivery.
        """
        return Writer(self, name or unique_name("writer"), columns, chunk_steps, history_steps, max_pending_items)

    def sample(self, table: str, batch: int = 1, *, min_batch: int = 0, timeout: float | None = None) -> Batch:
        """Draws a batch. Waits until the table's limiter permits it.

        min_batch: give a smaller batch, of at least so many items, instead of waiting; 0: never.
        """
        size = (count(batch, "batch", 32), count(min_batch, "min_batch", 32))
        with reasons(self, table):
            return Batch(self._core.sample(table, *size, self._seconds(timeout)))

    def sampler(
        self, table: str, batch: int = 1, *, min_batch: int = 0, prefetch: int = 2, prefetch_bytes: int = 64 << 20, name: str | None = None
    ) -> Sampler:
        """Returns an iterator over batches, which are requested ahead of their use.

        prefetch: how many batches are under way, 1 to 16; fewer if they have more than `prefetch_bytes` together. They were drawn before
        priorities changed meanwhile.
        name: in reports; a sampler replaces an earlier one of the same name. None: one that is unique.
        """
        name = name or unique_name("sampler")
        size = (count(batch, "batch", 32), count(min_batch, "min_batch", 32))
        core = self._core.open_sampler(name, table, *size, count(prefetch, "prefetch", 32), count(prefetch_bytes, "prefetch_bytes"))
        return Sampler(self, core, name, table)

    def update_priorities(self, table: str, keys: Any, priorities: Any) -> int:
        """Changes the priorities of items (Batch.keys), and returns how many were still in the table.

        A priority that is NaN, infinite, negative or too large for the table's exponent raises InvalidArgumentError; none has changed then.
        """
        return self._core.update_priorities(table, *priorities_of(table, keys, priorities))

    # Staleness

    def admit(self, table: str, count: int = 1, *, actor: str = "", timeout: float | None = None) -> list[Ticket]:
        """Returns tickets for rollouts, for a table that paces its actors (Table.paced_queue). Waits until they are granted.

        An actor that rolls out several environments asks for all its tickets in one call. It may get fewer, at least one. Tickets of an
        earlier process with the name `actor` end. docs/replay.md describes the pace.
        """
        with reasons(self, table):
            tickets = self._core.admit(table, actor, _count(count, "count"), self._seconds(timeout))
        return [Ticket(*ticket) for ticket in tickets]

    def renew(self, table: str, tickets: Sequence[Ticket]) -> int:
        """Renews the leases of tickets, which Writer.append() does for held ones. Returns how many are in use; the others have ended."""
        return self._core.renew(table, [ticket.id for ticket in tickets], False)

    def return_tickets(self, table: str, tickets: Sequence[Ticket]) -> int:
        """Gives back tickets that will not be used, so that others are granted. Returns how many were in use."""
        return self._core.renew(table, [ticket.id for ticket in tickets], True)

    def commit(self, table: str, version: int, *, epoch: int = 1, items_consumed: int = 0) -> None:
        """Says that actors can get a version of the policy, once for each version: for weights that travel another way.

        A tandem.weights.Publisher with commit_to does so by itself. epoch: grows with each start of the learner.
        items_consumed: how many sampled items of the table the learner is done with, over the whole run: those that updates have used and
            those that it has rejected. Rejected ones that are not counted are taken for items in use, and no rollouts take their places.

        A learner commits the version that it starts from before it samples, and samples by the same client. FailedPreconditionError: an
        older epoch, or a version that is not above the committed one.
        """
        self._core.commit(table, _count(epoch, "epoch"), int(version), _count(items_consumed, "items_consumed"))


# admit() has an argument `count`.
_count = count


class Sampler:
    """Batches of a table, requested ahead. Made by Client.sampler(). Iterating waits for each batch at most the client's timeout.

        for batch in client.sampler("replay", batch=256): ...

    Calls of several threads take turns.
    """

    def __init__(self, client: EngineClient, core: Any, name: str, table: str) -> None:
        self._client: Any = client
        self._core = core
        self.name = name
        self.table = table

    def next(self, timeout: float | None = None) -> Batch:
        """Returns the next batch. After DeadlineExceededError the next call goes on waiting for the same batches."""
        with reasons(self._client, self.table):
            return Batch(self._core.next(self._client._seconds(timeout)))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self.next()

    def close(self) -> None:
        """Cancels the requests that are under way; a next() of another thread raises CancelledError. Idempotent."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connected(make: Callable[[], Any], timeout: float) -> Client:
    """Returns a client whose server answers, or raises within `timeout`."""
    client = Client(make(), timeout)
    try:
        client.server_info()
    except BaseException:
        client.close()
        raise
    return client
