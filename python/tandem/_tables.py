# SPDX-License-Identifier: Apache-2.0
"""The part of a Client that creates tables and tells their configuration and statistics."""

from __future__ import annotations

import json
from typing import Any

from tandem import wire as _wire
from tandem._kinds import Kind, make_functions
from tandem._load import load_core
from tandem.errors import InvalidArgumentError, NotFoundError

_core = load_core()

_DEFAULT_INIT = make_functions("initializer")["Normal"]()


class TableInfo:
    """A table's configuration and statistics over all servers."""

    def __init__(self, message: dict[str, Any]) -> None:
        self._message = message
        self.config: dict[str, Any] = message["config"]
        self.stats: dict[str, Any] = {k: _number(v) for k, v in message.get("statistics", {}).items()}
        self.name: str = self.config["name"]
        self.dim: int = self.config["dim"]
        self.elements: int = int(self.config["elements"])
        self.dense: bool = self.config["kind"] == "DENSE"

    def __repr__(self) -> str:
        return f"TableInfo(name={self.name!r}, dim={self.dim}, rows={self.stats.get('rows', 0)})"


def _number(value: Any) -> Any:
    # In protobuf's JSON mapping 64-bit integers are strings.
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    if isinstance(value, list):
        return [_number(v) for v in value]
    if isinstance(value, dict):
        return {k: _number(v) for k, v in value.items()}
    return value


def _check_kind(value: Any, group: str, what: str, module: str) -> dict[str, Any]:
    if isinstance(value, Kind) and value.group == group:
        return value.message
    raise InvalidArgumentError(f"{what} is {value!r}; it must be made by a function of tandem.{module}")


def _mode_message(text: str) -> dict[str, Any]:
    return json.loads(_core.parse_update_mode(text))


def initializer_message(init: Kind | None) -> dict[str, Any]:
    """Returns the wire message of an embedding table's initializer; the default is that of a job file, Normal() (stddev 0.01)."""
    return _check_kind(_DEFAULT_INIT if init is None else init, "initializer", "init", "init")


class Tables:
    """The tables of the servers, as a Client sees them."""

    _core: Any
    _lock: Any
    _wire: str
    _dims: dict[str, int]
    _elements: dict[str, tuple[int, int]]
    _read_cache: tuple[int, float] | None  # bytes and seconds, of every table
    _cached: frozenset[str]  # tables with a read cache
    step: int
    _first_worker: int  # the rank of the first worker of tables that this client creates

    @property
    def world_size(self) -> int:
        raise NotImplementedError

    def _check_writable(self, what: str) -> None:
        raise NotImplementedError

    def create_table(
        self,
        name: str,
        dim: int,
        optimizer: Kind | None = None,
        init: Kind | None = None,
        *,
        mode: str = "async",
        num_workers: int | None = None,
        seed: int = 0,
        row_type: str = "f32",
        stochastic_rounding: bool = False,
        admission: Kind | None = None,
        eviction: Kind | None = None,
        byte_budget: int = 0,
        spill: bool = False,
    ) -> None:
        """Creates an embedding table on all servers. Does nothing if it exists with the same configuration.

        optimizer: of tandem.optim. There is no default: an error tells which exist.
        init: of tandem.init; the default is Normal(stddev=0.01), as in a job file.
        mode: "sync", "bounded:K", "async", "gba:STALENESS" or "gba:STALENESS:GLOBAL_BATCH"; docs/parameter_server.md says what they
            mean.
        num_workers: the number of workers that push; the default is the job's, and 1, this one, for a client from outside of the job
            (connect(servers=...) without a rank).
        row_type: "f32", "f16" or "bf16", of the stored rows.
        """
        self._check_writable("create a table")
        message = self._table_message(name, optimizer, mode, num_workers, seed)
        message["initializer"] = initializer_message(init)
        row_types = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
        if row_type not in row_types:
            raise InvalidArgumentError(f"row_type is {row_type!r}; it must be one of {', '.join(row_types)}")
        message.update(
            dim=dim, row_type=row_types[row_type], stochastic_rounding=stochastic_rounding, byte_budget=byte_budget, spill=spill
        )
        if admission is not None:
            message["admission"] = _check_kind(admission, "admission", "admission", "admission")
        if eviction is not None:
            message["eviction"] = _check_kind(eviction, "eviction", "eviction", "eviction")
        self._core.create_table(json.dumps(message), self.step)
        with self._lock:
            self._dims[name] = dim

    def create_dense(
        self,
        name: str,
        elements: int,
        optimizer: Kind | None = None,
        init: Kind | None = None,
        *,
        mode: str = "async",
        num_workers: int | None = None,
        seed: int = 0,
    ) -> None:
        """Creates a table of `elements` numbers that are pulled and pushed as one array; the default initial value is 0."""
        self._check_writable("create a table")
        message = self._table_message(name, optimizer, mode, num_workers, seed)
        message.update(kind="DENSE", dim=min(1024, elements), elements=elements)
        message["initializer"] = {"kind": "zeros"} if init is None else _check_kind(init, "initializer", "init", "init")
        self._core.create_table(json.dumps(message), self.step)
        with self._lock:
            self._elements[name] = (elements, min(1024, elements))

    def drop_table(self, name: str) -> None:
        """Removes a table from all servers, with its rows, its waiting pushes and its steps.

        Calls for the table that are under way, and later ones, raise NotFoundError, also those of other processes, until
        create_table() makes the table again; it then starts anew. Raises NotFoundError if there is no such table.
        """
        self._check_writable("drop a table")
        self._core.drop_table(name)
        with self._lock:
            self._dims.pop(name, None)
            self._elements.pop(name, None)
            self._cached = self._cached - {name}

    def _table_message(
        self, name: str, optimizer: Kind | None, mode: str, num_workers: int | None, seed: int
    ) -> dict[str, Any]:
        if optimizer is None:
            from tandem import optim

            raise InvalidArgumentError(
                f"table '{name}' has no optimizer; give one of tandem.optim ({', '.join(optim.__all__)}), "
                f"for example optimizer=tandem.optim.Adagrad(lr=0.05)"
            )
        update_mode = _mode_message(mode)
        # Every process may push to async tables. That their configuration does not depend on the rank lets a notebook that was
        # started again create them again.
        own = num_workers is None and update_mode.get("kind", "SYNC") != "ASYNC"
        return {
            "name": name,
            "optimizer": _check_kind(optimizer, "optimizer", "optimizer", "optim"),
            "seed": seed,
            "update_mode": update_mode,
            "num_workers": self.world_size if num_workers is None else num_workers,
            "first_worker": self._first_worker if own else 0,
        }

    def tables(self, hottest: int = 0) -> dict[str, TableInfo]:
        """Returns all tables by name, with statistics summed over the servers and the `hottest` most pulled ids of each."""
        infos = [TableInfo(json.loads(text)) for text in self._core.list_tables(hottest)]
        return {info.name: info for info in infos}

    def stats(self, table: str) -> dict[str, Any]:
        """Returns a table's statistics over all servers: rows, bytes, pulled_rows, staleness_mean, ...

        "read_cache" has those of this client's read cache, if the table has one (set_read_cache).
        """
        stats = self._info(table).stats
        if table in self._cached:
            stats["read_cache"] = self._core.read_cache_statistics(table)
        return stats

    def follower_reads(self) -> dict[str, Any]:
        """Returns who has answered this client's read-only pulls: requests, by_followers, last_lag, largest_lag (seconds).

        A pull is one request for each server. All are 0 without connect(max_lag=...).
        """
        return self._core.follower_reads()

    def servers(self) -> list[dict[str, Any]]:
        """Returns the statistics of each server."""
        return [{k: _number(v) for k, v in json.loads(text).items()} for text in self._core.list_servers()]

    def _info(self, table: str) -> TableInfo:
        tables = self.tables()
        if table not in tables:
            known = ", ".join(sorted(tables)) or "none"
            raise NotFoundError(f"there is no table '{table}'; the servers have: {known}. create_table() makes one")
        return tables[table]

    def _open(self, table: str) -> TableInfo:
        # Tells this client of a table that another process has created.
        info = self._info(table)
        self._core.open_table(table)
        if self._wire != "f32" and not info.dense:
            self._core.set_wire(table, _wire.FORMATS[self._wire], _wire.FORMATS["f32"])
        with self._lock:
            if info.dense:
                self._elements[table] = (info.elements, info.dim)
            else:
                self._dims[table] = info.dim
        if self._read_cache is not None and not info.dense:
            self.set_read_cache(table, self._read_cache[0], seconds=self._read_cache[1])
        return info

    def _dim(self, table: str) -> int:
        dim = self._dims.get(table)
        if dim is not None:
            return dim
        info = self._open(table)
        if info.dense:
            raise InvalidArgumentError(f"table '{table}' is dense; use pull_dense() and push_dense()")
        return info.dim

    def set_mode(self, table: str, mode: str) -> None:
        """Changes a table's update mode on all servers; create_table() lists the modes."""
        self._check_writable("change a table's mode")
        self._core.set_update_mode(table, mode)

    def set_wire(self, table: str, pull: str = "f32", push: str = "f32") -> None:
        """Sets how this client's pulls and pushes of a table encode numbers: "f32", "f16", "bf16" or "int8"."""
        for what, value in (("pull", pull), ("push", push)):
            if value not in _wire.FORMATS:
                raise InvalidArgumentError(f"{what} is {value!r}; it must be one of {', '.join(_wire.FORMATS)}")
        self._dim(table)
        self._core.set_wire(table, _wire.FORMATS[pull], _wire.FORMATS[push])

    def set_cache(self, table: str, bytes: int, *, max_uses: int = 8, max_age: int = 10000, push_bound: int = 1) -> None:
        """Gives the table a cache of hot rows in this process; docs/parameter_server.md says what pulls then return.

        bytes: memory of the cache; 0 removes it.
        """
        self._dim(table)
        self._core.set_cache(table, bytes, max_uses, max_age, push_bound)

    def set_read_cache(self, table: str, bytes: int, *, seconds: float = 10.0) -> None:
        """Gives the table a cache for read-only pulls in this process, for serving and evaluation.

        bytes: memory of the cache; 0 removes it. seconds: the time for which a copy of a row serves.

        A pull returns rows that lack only updates of the last `seconds`; one whose rows all have copies sends no request.
        Copies are dropped earlier when a response shows that a server restarted or loaded a checkpoint, by assign() and
        load_checkpoint() of this client, and by clear_read_cache(). Pushes drop none. Pooled pulls go around the cache.
        stats(table)["read_cache"] counts lookups, hits, expired copies, ...
        """
        self._dim(table)
        if not isinstance(bytes, int) or bytes < 0:
            raise InvalidArgumentError(f"bytes is {bytes!r}; it must be a number of bytes, 0 or more")
        if not seconds > 0:
            raise InvalidArgumentError(f"table '{table}': read cache: the time to live is {seconds} s, must be more than 0")
        self._core.set_read_cache(table, bytes, seconds)
        with self._lock:
            self._cached = self._cached - {table} if bytes == 0 else self._cached | {table}

    def clear_read_cache(self, table: str | None = None) -> None:
        """Drops the copies of a table's read cache, or of all: pulls that begin later see the servers' rows of now."""
        for name in [table] if table is not None else self._cached:
            self._dim(name)
            self._core.clear_read_cache(name)

    def flush(self, table: str) -> None:
        """Applies gradients that a GBA table has accumulated, even if its global batch is incomplete."""
        self._check_writable("flush a table")
        self._core.flush(table)

    def push_deferred(self) -> None:
        """Pushes the gradients that caches of this client have deferred, and blocks until they are applied."""
        self._core.push_deferred()
