# SPDX-License-Identifier: Apache-2.0
"""Tables that are divided among several replay servers."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from typing import Any, Sequence

import numpy as np

from tandem._engine_client import EngineClient
from tandem._load import load_core
from tandem.errors import InvalidArgumentError
from tandem.replay._batch import Batch
from tandem.replay._client import Client, Sampler, priorities_of, unique_name
from tandem.replay._tables import Columns, RateLimit, Table, count
from tandem.replay._writer import Writer

_core = load_core()


class _Shards:
    """The clients of the servers, closed together."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients = tuple(clients)
        self.samplers: weakref.WeakSet[ShardedSampler] = weakref.WeakSet()
        self.drawing: dict[str, Any] = {}  # by table: draws without prefetch
        self.lock = threading.Lock()

    @property
    def closed(self) -> bool:
        return any(client.closed for client in self.clients)

    def close(self) -> None:
        for client in self.clients:  # first: from now on nothing is opened
            client.close()
        for sampler in list(self.samplers):
            sampler.close()
        with self.lock:
            drawing, self.drawing = list(self.drawing.values()), {}
        for core in drawing:
            core.close()


class ShardedClient(EngineClient):
    """A table of random samples that is divided among several servers. Made by tandem.replay.connect() with several addresses. Thread-safe.

    Each server, a shard, has a table of the same name with other items. A writer writes its episodes to one of them. Draws choose among the
    items of all shards, by their priorities, and all shards are asked at once (docs/replay.md). Queues are not divided. `shards` are the
    clients of the servers, for what is not here.
    """

    _WHAT = "a replay client"

    def __init__(self, clients: Sequence[Client], timeout: float) -> None:
        self._shards = _Shards(clients)
        super().__init__(self._shards, timeout)
        # Actors that have one writer each are spread over the servers.
        self._writers = itertools.count(int(os.environ.get("ROLE_RANK", "") or os.getpid()))

    @property
    def shards(self) -> tuple[Client, ...]:
        return self._shards.clients

    def create_table(self, table: Table) -> None:
        """Creates a table on each server, with these budgets and limits for each. Client.create_table() says more."""
        for client in self.shards:
            client.create_table(table)

    def tables(self) -> list[str]:
        """Returns the names of the tables that all servers have."""
        names = [set(client.tables()) for client in self.shards]
        return sorted(set.intersection(*names))

    def info(self, table: str) -> list[dict[str, Any]]:
        """Returns the state of each server's table, as Client.info() does."""
        return [client.info(table) for client in self.shards]

    def why(self, table: str, *, timeout: float | None = None) -> list[list[str]]:
        """Returns sentences for each server: why inserts or samples of its table wait. `timeout` is that of each question."""
        return [client.why(table, timeout=timeout) for client in self.shards]

    def set_limits(
        self, table: str, *, limit: RateLimit | None = None, max_items: int | None = None, max_bytes: int | None = None
    ) -> None:
        """Changes limit and budgets of each server's table, to the same ones. Client.set_limits() says more."""
        for client in self.shards:
            client.set_limits(table, limit=limit, max_items=max_items, max_bytes=max_bytes)

    def save_checkpoint(self, *, timeout: float = 600.0) -> list[str]:
        """Writes all tables of each server to its checkpoint directory, one server after the other, and returns the paths."""
        return [client.save_checkpoint(timeout=timeout) for client in self.shards]

    def writer(
        self,
        name: str | None = None,
        *,
        shard: int | None = None,
        columns: Columns | None = None,
        chunk_steps: int = 8,
        history_steps: int = 128,
        max_pending_items: int = 4096,
    ) -> Writer:
        """Returns a writer of the steps of one environment to one server. The other arguments are those of Client.writer().

        shard: which one; None: the next one in turn, so that writers are spread evenly.
        """
        at = next(self._writers) % len(self.shards) if shard is None else shard
        if not 0 <= at < len(self.shards):
            raise InvalidArgumentError(f"shard is {shard}; there are {len(self.shards)}, from 0")
        return self.shards[at].writer(
            name, columns=columns, chunk_steps=chunk_steps, history_steps=history_steps, max_pending_items=max_pending_items
        )

    def sample(self, table: str, batch: int = 1, *, timeout: float | None = None) -> Batch:
        """Draws a batch from all servers, in the place of Client.sample(). Waits until those that were chosen give their parts.

        The items of one server follow each other; Batch.shards says which are whose.
        """
        seconds = self._seconds(timeout)
        began = time.monotonic()
        core = self._drawing(table, seconds)
        return _sharded_batch(core.sample(count(batch, "batch", 32), max(0.0, seconds - (time.monotonic() - began))))

    def sampler(
        self, table: str, batch: int = 1, *, prefetch: int = 2, prefetch_bytes: int = 64 << 20, name: str | None = None
    ) -> ShardedSampler:
        """Returns an iterator over batches of all servers, which are drawn ahead of their use. The arguments are those of Client.sampler()."""
        name = name or unique_name("sampler")
        core = self._open(
            table, name, count(batch, "batch", 32), count(prefetch, "prefetch", 32), count(prefetch_bytes, "prefetch_bytes"), self._timeout
        )
        sampler = ShardedSampler(self, core, name, table)
        self._shards.samplers.add(sampler)
        if self.closed:  # meanwhile
            sampler.close()
        return sampler

    def update_priorities(self, table: str, batch: Batch, priorities: Any) -> int:
        """Changes the priorities of the items of a batch of this table, and returns how many were still there.

        It takes the batch, not its keys: those of two servers may be equal.
        """
        if not isinstance(batch, Batch) or batch.shards is None:
            raise InvalidArgumentError(
                f"priorities of table '{table}' on {len(self.shards)} servers need the Batch that sample() or a sampler has returned"
            )
        keys, values = priorities_of(table, batch.keys, priorities)
        return self._drawing(table, self._timeout).update_priorities(keys, np.ascontiguousarray(batch.shards), values, self._timeout)

    def _open(self, table: str, name: str, batch: int, prefetch: int, prefetch_bytes: int, seconds: float) -> Any:
        cores = [client._core for client in self.shards]
        seed = int.from_bytes(os.urandom(8), "little")
        return _core.open_sharded_sampler(cores, name, table, batch, prefetch, prefetch_bytes, seed, seconds)

    def _drawing(self, table: str, seconds: float) -> Any:
        """Returns what draws from a table without prefetch. The first call for the table asks all servers, for about `seconds` at most."""
        with self._shards.lock:
            core = None if self.closed else self._shards.drawing.get(table)
        if core is not None:
            return core
        # Without the lock: a server that hangs must hold up neither other tables nor close().
        opened = self._open(table, unique_name("client"), 0, 1, 0, seconds)
        with self._shards.lock:
            core = opened if self.closed else self._shards.drawing.setdefault(table, opened)
        if core is not opened or self.closed:
            opened.close()
        return core


class ShardedSampler(Sampler):
    """Batches of a table of several servers, drawn ahead. Made by ShardedClient.sampler(). It is used as Sampler is."""

    def next(self, timeout: float | None = None) -> Batch:
        """Returns the next batch. After DeadlineExceededError the next call goes on waiting."""
        return _sharded_batch(self._core.next(self._client._seconds(timeout)))


def _sharded_batch(core: tuple[Any, Any]) -> Batch:
    batch = Batch(core[0])
    batch.shards = core[1]
    return batch

