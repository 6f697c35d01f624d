# SPDX-License-Identifier: Apache-2.0
"""The ways in which a program reaches parameter servers."""

from __future__ import annotations

from typing import Any, Sequence

from tandem import wire as _wire
from tandem._load import load_core
from tandem._paths import local_path
from tandem.client import Client
from tandem.errors import InvalidArgumentError

_core = load_core()


def connect(
    servers: Sequence[str] | None = None,
    *,
    rank: int | None = None,
    world_size: int = 1,
    read_only: bool = False,
    wire: str = "f32",
    cache_bytes: int = 0,
    cache_seconds: float = 10.0,
    max_lag: float = 0.0,
    timeout: float = 60.0,
    checkpoint_timeout: float = 600.0,
    max_bytes_in_flight: int = 1 << 30,
    pinned_bytes: int = 64 << 20,
) -> Client:
    """Connects to the parameter servers of the job that `tandem run` has started this process in.

    servers: addresses ("host:port") of servers, in order, to connect to them from outside of their job, as a notebook does.
    rank, world_size: this process's rank among the workers, and their number, if `servers` is given. The first push fences off
        an earlier client of the rank: the servers refuse that client's pushes from then on. The default is 0, or, if `tandem run`
        has started the servers, a rank that neither its workers nor another open client of this process have. Without a rank the
        client may push to the job's async tables, read all others (read_only), and create tables of its own in any mode, of which
        it is the only worker.
    read_only: for serving and evaluation. The client creates no row and changes nothing, needs no rank of its own, and reads rows
        that do not exist as their initial values.
    wire: how rows travel to a read-only client: "f32", "f16", "bf16" or "int8" (a quarter of the bytes).
    cache_bytes, cache_seconds: give each table that a read-only client uses a read cache (Client.set_read_cache).
    max_lag: if the servers have followers, these may answer read-only pulls, with rows that contain every update that the server had
        `max_lag` seconds before the pull. Pulls are then spread over the copies of each server (Client.follower_reads). A pull may
        return older rows than the one before. The default 0 asks the servers themselves.
    timeout: of each pull and push, in seconds, including waits for other workers; and of connecting.
    max_bytes_in_flight: limits the memory of calls under way; a call that exceeds it waits.
    pinned_bytes: the pinned host memory for rows on GPUs, and as much again for gradients on GPUs, 64 KiB to 16 GiB. Each is allocated
        when it is first used. Calls that find no room in it take a little longer.
    """
    if wire not in _wire.FORMATS:
        raise InvalidArgumentError(f"wire is {wire!r}; it must be one of {', '.join(_wire.FORMATS)}")
    if wire != "f32" and not read_only:
        raise InvalidArgumentError("wire belongs to read_only=True; other clients choose it for each table by set_wire()")
    if cache_bytes and not read_only:
        raise InvalidArgumentError(
            "cache_bytes belongs to read_only=True; other clients have set_read_cache() for evaluation, and set_cache() for training"
        )
    if not 0 <= max_lag < float("inf"):
        raise InvalidArgumentError(f"max_lag is {max_lag}; it must be a number of seconds, or 0")
    options: dict[str, Any] = {"read_only": read_only, "wire": wire, "read_cache": (cache_bytes, cache_seconds) if cache_bytes else None}
    if servers is None:
        return Client(_core.connect_job(timeout, checkpoint_timeout, max_bytes_in_flight, max_lag, pinned_bytes), **options)
    if isinstance(servers, str):
        raise InvalidArgumentError(f"servers is the text {servers!r}; it must be a list of addresses: servers=[{servers!r}]")
    if rank is not None and not 0 <= rank < world_size and not read_only:
        raise InvalidArgumentError(f"rank is {rank} of world_size {world_size}; it must be at least 0 and less than world_size")
    core = _core.connect_servers(
        list(servers), rank, read_only, timeout, checkpoint_timeout, max_bytes_in_flight, max_lag, pinned_bytes
    )
    # A process from outside is the only worker of the tables that it creates, whatever its rank.
    alone = rank is None and world_size == 1 and not read_only
    return Client(core, world_size=world_size, first_worker=core.rank if alone else 0, **options)


def local(
    servers: int = 1,
    *,
    spill_directory: str = "",
    timeout: float = 60.0,
    checkpoint_timeout: float = 600.0,
    max_bytes_in_flight: int = 1 << 30,
    pinned_bytes: int = 64 << 20,
) -> Client:
    """Starts parameter servers in this process, for notebooks and tests, and returns a client of them.

    spill_directory: where tables with spill=True keep the rows that do not fit their byte budget.
    pinned_bytes: as in connect().
    """
    if spill_directory:
        spill_directory = local_path(spill_directory)
    return Client(_core.connect_local(servers, spill_directory, timeout, checkpoint_timeout, max_bytes_in_flight, pinned_bytes))
