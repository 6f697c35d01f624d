# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a process group find each other: through torch's store they agree on a store of Tandem."""

from __future__ import annotations

import collections
import itertools
import json
import os
import time
from typing import Any, Sequence

import torch.distributed as dist

from tandem._load import load_core
from tandem.errors import DeadlineExceededError

_core = load_core()

_names: dict[str, itertools.count[int]] = collections.defaultdict(itertools.count)


def _wait(store: Any, keys: dict[str, int], group: str, timeout: float, deadline: float) -> None:
    """Waits for the keys, each set by one (global) rank. Asks again and again: torch's own waits do not notice Ctrl-C, and those that
    end without the key print warnings."""
    pause = 0.0005
    while not store.check(list(keys)):
        if time.monotonic() >= deadline:
            absent = [rank for key, rank in keys.items() if not store.check([key])]
            if not absent:
                return
            raise _absent(group, absent, timeout)
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, 0.1)


def _hosts(store: Any, prefix: str, group: str, size: int, timeout: float, deadline: float) -> set[bytes]:
    """Returns the machines of all ranks, each of which has set its key."""
    keys = {f"{prefix}/{rank}": rank for rank in range(size)}
    _wait(store, keys, group, timeout, deadline)
    return {bytes(store.get(key)) for key in keys}


def job_store(store: Any, rank: int, size: int, timeout: float) -> str:
    """Returns the address of a store of Tandem for all ranks, which rank 0 serves. Blocks until they have come, at most `timeout` s."""
    deadline = time.monotonic() + timeout
    store.set(f"tandem/rpc/host/{rank}", _core.host_identity())
    if rank == 0:
        local = len(_hosts(store, "tandem/rpc/host", "tandem.rpc", size, timeout, deadline)) == 1
        store.set("tandem/rpc/store", _core.serve_group_store(local))
    else:
        _wait(store, {"tandem/rpc/store": 0}, "tandem.rpc", timeout, deadline)
    return bytes(store.get("tandem/rpc/store")).decode()


def connect(
    store: Any, group: str, rank: int, global_ranks: Sequence[int], timeout: float, transport: str, default: bool = False
) -> Any:
    """Returns a _core.ProcessGroup of `global_ranks`, whose rank `rank` this process is. Blocks until all ranks have come, at most
    `timeout` seconds.

    Rank 0 serves Tandem's store. It listens at the loopback interface if all ranks are on its machine. default: it is the group
    that init_process_group makes.
    """
    ranks = list(global_ranks)
    if len(ranks) == 1:
        return _core.ProcessGroup.connect("", group, 0, ranks, timeout, transport)
    if default:
        _keep_serving(store)
    deadline = time.monotonic() + timeout
    rendezvous = _Rendezvous(store, group, rank, ranks, timeout, deadline)
    if rank == 0:
        # A group that is destroyed and made again has another name in this process's store.
        number = next(_names[group])
        address, name = rendezvous.serve(group if number == 0 else f"{group}~{number}")
    else:
        address, name = rendezvous.join()
    remaining = max(1.0, deadline - time.monotonic())
    return _core.ProcessGroup.connect(address, name, rank, ranks, remaining, transport)


_kept_store: Any = None


def _keep_serving(store: Any) -> None:
    """Keeps torch's store of the default group until the next default group is made.

    Rank 0 may serve it. If it ended with its group, a rank that makes the next group at once would still reach the old server, and
    lose it. A store that torch makes at the port of one that is still served shares its server.
    """
    global _kept_store
    _kept_store = store


class _Rendezvous:
    """The ranks of one group find rank 0's store.

    torch's store may have the keys of an earlier group of this name: after destroy_process_group(), torch uses its names again. So
    each rank publishes a random token, rank 0 answers with those that it has seen, and a rank accepts only an answer with its own.
    Errors name global ranks.
    """

    def __init__(self, store: Any, group: str, rank: int, global_ranks: list[int], timeout: float, deadline: float) -> None:
        self._store, self._group, self._rank, self._global_ranks = store, group, rank, global_ranks
        self._size = len(global_ranks)
        self._timeout, self._deadline = timeout, deadline
        self._token = os.urandom(8).hex()
        store.set(f"tandem/host/{rank}", f"{self._token} {_core.host_identity()}")

    def serve(self, name: str) -> tuple[str, str]:
        """Serves a store and waits until all ranks know of it. Rank 0's part."""
        keys = {f"tandem/host/{rank}": global_rank for rank, global_rank in enumerate(self._global_ranks)}
        _wait(self._store, keys, self._group, self._timeout, self._deadline)
        came = [self._arrival(rank) for rank in range(self._size)]
        waiting = set(range(1, self._size))
        address, pause, changed = "", 0.0005, True
        while True:
            tokens = [token for token, _ in came]
            if changed:
                address = _core.serve_group_store(len({host for _, host in came}) == 1)
                self._store.set("tandem/store", json.dumps([address, name, tokens]))
            waiting = {rank for rank in waiting if not self._accepted(rank, tokens[rank])}
            if not waiting:
                return address, name
            if time.monotonic() >= self._deadline:
                raise self._error(waiting)
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
            changed = False
            for rank in waiting:
                arrival = self._arrival(rank)
                changed = changed or arrival != came[rank]
                came[rank] = arrival

    def _arrival(self, rank: int) -> tuple[str, str]:
        """Returns the token and the machine that a rank has published last."""
        token, host = bytes(self._store.get(f"tandem/host/{rank}")).decode().split(" ", 1)
        return token, host

    def _accepted(self, rank: int, token: str) -> bool:
        key = f"tandem/accepted/{rank}"
        return self._store.check([key]) and bytes(self._store.get(key)).decode() == f"{self._token} {token}"

    def join(self) -> tuple[str, str]:
        """Waits for rank 0's answer to this rank."""
        pause = 0.0005
        absent = set(range(self._size)) - {self._rank}
        look = time.monotonic() + _LOOK_AFTER
        try:
            while True:
                if self._store.check(["tandem/store"]):
                    address, name, tokens = json.loads(bytes(self._store.get("tandem/store")))
                    if len(tokens) == self._size and tokens[self._rank] == self._token:
                        self._store.set(f"tandem/accepted/{self._rank}", f"{tokens[0]} {self._token}")
                        return address, name
                now = time.monotonic()
                if now >= min(look, self._deadline):
                    absent = {rank for rank in absent if not self._store.check([f"tandem/host/{rank}"])}
                    look = now + max(_LOOK_AFTER, 0.01 * self._size)
                if now >= self._deadline:
                    raise self._error(self._missing(absent))
                time.sleep(min(pause, max(0.0, self._deadline - now)))
                pause = min(2 * pause, 0.1)
        except dist.DistNetworkError as error:
            # Rank 0 serves torch's store, and has given up.
            failed = self._error(self._missing(absent))
            raise DeadlineExceededError(f"{failed}; torch's store has gone ({str(error).splitlines()[0]})") from error

    def _missing(self, absent: set[int]) -> set[int]:
        """Returns the ranks to blame if `absent` have not published a token.

        torch makes rank 0 wait for all other ranks while it makes its TCPStore, before it can publish one. Then rank 0 is blamed only
        if no other rank is absent.
        """
        store = self._store
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        return (absent - {0} if isinstance(store, dist.TCPStore) else absent) or {0}

    def _error(self, ranks: set[int]) -> DeadlineExceededError:
        return _absent(self._group, sorted(self._global_ranks[rank] for rank in ranks), self._timeout)


# Seconds after which a rank that waits for rank 0 looks which others have come.
_LOOK_AFTER = 0.2


def _absent(group: str, ranks: list[int], timeout: float) -> DeadlineExceededError:
    names = ", ".join(map(str, ranks))
    return DeadlineExceededError(
        f"process group '{group}': rank{'s' if len(ranks) > 1 else ''} {names} did not come within {timeout:g} s"
    )
