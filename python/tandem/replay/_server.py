# SPDX-License-Identifier: Apache-2.0
"""Replay tables and weights that this process serves, and the ways to reach those of others."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Sequence, overload

from tandem._engine_client import seconds_of
from tandem._load import load_core
from tandem._paths import local_path
from tandem.errors import InvalidArgumentError, TandemError
from tandem.replay._client import Client, connected, unique_name
from tandem.replay._sharded import ShardedClient
from tandem.replay._tables import Table, count

if TYPE_CHECKING:
    from tandem import weights as _weights

_core = load_core()

# The servers of this process that the job knows.
_of_job: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """Replay tables, and weights, that other processes reach. Made by tandem.replay.serve()."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._finalizer = weakref.finalize(self, core.stop)

    @property
    def address(self) -> str:
        """ "host:port", for connect()."""
        return self._core.address

    def replay(self, *, timeout: float = 60.0) -> Client:
        """Returns a client of the tables for this process, which needs no network."""
        return Client(self._core.replay(unique_name("client"), seconds_of(timeout, 60.0)), timeout)

    def weights(self, *, timeout: float = 60.0) -> _weights.Client:
        """Returns a tandem.weights.Client for this process."""
        from tandem import weights

        return weights.Client(self._core.weights(seconds_of(timeout, 60.0)), timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until stop() is called, or until this process gets SIGTERM, which then stops it. Returns whether it has stopped.

        This is what a process of role `replay` does under `tandem run`. SIGTERM is awaited in the main thread only.
        """
        seconds = -1.0 if timeout is None else seconds_of(timeout, 0.0)
        if threading.current_thread() is not threading.main_thread():
            return self._core.wait(seconds)
        terminated = threading.Event()
        # Stops by another thread: a signal handler must not wait.
        before = signal.signal(signal.SIGTERM, lambda *_: (terminated.set(), threading.Thread(target=self._stop_quietly).start()))
        try:
            stopped = self._core.wait(seconds)
        finally:
            signal.signal(signal.SIGTERM, before)
        if terminated.is_set():
            self.stop()  # waits for the last checkpoint
        return stopped

    def stop(self) -> None:
        """Ends waiting calls so that clients repeat them at a server that follows, writes a last checkpoint, and stops. Idempotent."""
        self._finalizer.detach()
        _of_job.discard(self)
        self._core.stop()

    def _stop_quietly(self) -> None:
        with contextlib.suppress(TandemError):  # stop() raises the error again
            self._core.stop()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __reduce__(self) -> Any:
        raise TypeError("a Server cannot be pickled: connect to its address")


def _serve(
    tables: Sequence[Table], listen: str, advertise: str, in_job: bool, weights: bool, replay: bool, max_memory: int, max_parked: int,
    checkpoint_directory: str | os.PathLike[str] | None, checkpoint_seconds: float, keep: int, max_weight_bytes: int, timeout: float,
) -> Any:  # fmt: skip
    wrong = next((table for table in tables if not isinstance(table, Table)), None)
    if wrong is not None:
        raise InvalidArgumentError(f"a table is {wrong!r}; it must be a tandem.replay.Table")
    return _core.serve_engines(
        replay, weights, [table.to_json() for table in tables], listen, advertise, in_job, count(max_memory, "max_memory"),
        count(max_parked, "max_parked"),
        local_path(checkpoint_directory) if checkpoint_directory else "", float(checkpoint_seconds), count(keep, "keep", 32),
        count(max_weight_bytes, "max_weight_bytes"), seconds_of(timeout, 60.0),
    )  # fmt: skip


def serve(
    tables: Sequence[Table] = (),
    *,
    listen: str | None = None,
    advertise: str | None = None,
    weights: bool = True,
    max_memory: int = 0,
    max_parked: int = 0,
    checkpoint_directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    keep: int = 4,
    max_weight_bytes: int = 0,
    timeout: float = 60.0,
) -> Server:
    """Serves replay tables, and weights, to other processes. `tandem replay serve` does so without Python.

    tables: created at the start; clients can create more.
    listen: "host:port", where port 0 lets the kernel choose, or "unix:/path". None: for the first server of a process of `tandem run` an
        address that the other processes of the job reach; else "127.0.0.1:0".
    advertise: the host, or "host:port", under which others reach the server, which then listens at `listen` on any interface; for
        containers, whose addresses change.
    weights: serve weights as well (tandem.weights).
    max_memory: limits the chunks in memory, in bytes. Inserts beyond it wait if items leave their table by samples or by age; else they
        are refused. 0: no limit.
    max_parked: limits the requests of calls that wait, in bytes. 0: 256 MiB.
    checkpoint_directory: where checkpoints are written every `checkpoint_seconds` (0: only by save_checkpoint()) and at the end. The newest
        one is restored at the start. None: there are none.
    keep, max_weight_bytes: how many versions of each model are kept, and the bytes of all (0: no limit).

    In a process of `tandem run` the first server is one of the job's, which other processes find by connect() without an address. Later
    ones are not, until it is closed.
    """
    launched = bool(os.environ.get("TANDEM_STORE") and os.environ.get("TANDEM_ROLE"))
    in_job = launched and not _of_job
    if listen is None and advertise is not None:
        raise InvalidArgumentError("advertise needs listen, with the port at which others arrive")
    if listen is None:
        listen = "" if in_job else "127.0.0.1:0"
    server = Server(
        _serve(
            tables, listen, advertise or "", in_job, weights, True, max_memory, max_parked, checkpoint_directory, checkpoint_seconds, keep,
            max_weight_bytes, timeout,
        )
    )  # fmt: skip
    if in_job:
        _of_job.add(server)
    return server


def local(
    tables: Sequence[Table] = (),
    *,
    max_memory: int = 0,
    checkpoint_directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    timeout: float = 60.0,
) -> Client:
    """Returns a client of tables in this process, for notebooks, tests, and actors that are threads. close() ends them.

    The arguments are those of serve() and connect().
    """
    server = _serve(tables, "", "", False, False, True, max_memory, 0, checkpoint_directory, checkpoint_seconds, 4, 0, timeout)
    return Client(server.replay(unique_name("client"), seconds_of(timeout, 60.0)), timeout, server)


@overload
def connect(
    address: str | None = None, *, role: str = "replay", index: int | None = None, name: str | None = None, timeout: float = 60.0
) -> Client: ...


@overload
def connect(address: Sequence[str], *, name: str | None = None, timeout: float = 60.0) -> ShardedClient: ...


def connect(
    address: str | Sequence[str] | None = None,
    *,
    role: str = "replay",
    index: int | None = None,
    name: str | None = None,
    timeout: float = 60.0,
) -> Client | ShardedClient:
    """Connects to a replay server: of `tandem replay serve`, serve(), or of this process's job. Waits until it answers.

    address: "host:port" or "unix:/path". None: a server of the job in which `tandem run` has started this process. Several addresses: a
        ShardedClient of a table that is divided among these servers; connect_all() finds those of a job.
    role, index: which server of the job; index None: this process's rank in its role modulo their number, so that an episode stays on one.
    name: of this client, in reports of the server.
    timeout: of each call and wait, in seconds, unless the call has one of its own.

    By shared memory if the server is on this host.
    """
    seconds = seconds_of(timeout, 60.0)
    name = name or unique_name("client")
    if address is None:
        return connected(lambda: _core.connect_replay_in_job(role, -1 if index is None else index, name, seconds), seconds)
    if isinstance(address, str):
        return connected(lambda: _core.connect_replay(address, name, seconds), seconds)
    if not address:
        raise InvalidArgumentError("connect() got an empty list of addresses; give one address for each server")
    return _sharded([lambda one=one: connect(one, name=name, timeout=timeout) for one in address], seconds)


def connect_all(*, role: str = "replay", name: str | None = None, timeout: float = 60.0) -> ShardedClient:
    """Connects to all replay servers of this process's job, for a table that is divided among them. The arguments are those of connect()."""
    seconds = seconds_of(timeout, 60.0)
    servers = _core.count_servers_in_job(role, seconds)
    return _sharded([lambda i=i: connect(role=role, index=i, name=name, timeout=timeout) for i in range(servers)], seconds)


def _sharded(make: Sequence[Callable[[], Client]], timeout: float) -> ShardedClient:
    clients: list[Client] = []
    try:
        for one in make:
            clients.append(one())
    except BaseException:
        for client in clients:
            client.close()
        raise
    return ShardedClient(clients, timeout)
