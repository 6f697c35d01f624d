# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a process group find each other: through torch's store they agree on a store of Tandem."""

from __future__ import annotations

import collections
import itertools
import time
from typing import Any

from tandem._load import load_core
from tandem.errors import DeadlineExceededError

_core = load_core()

_names: dict[str, itertools.count[int]] = collections.defaultdict(itertools.count)


def _wait(store: Any, keys: dict[str, int], group: str, timeout: float, deadline: float) -> None:
    """Waits for the keys, each set by one rank. Asks again and again: torch's own waits do not notice Ctrl-C, and those that end
    without the key print warnings."""
    pause = 0.0005
    while not store.check(list(keys)):
        if time.monotonic() >= deadline:
            absent = [str(rank) for key, rank in keys.items() if not store.check([key])]
            if not absent:
                return
            raise DeadlineExceededError(
                f"process group '{group}': rank{'s' if len(absent) > 1 else ''} {', '.join(absent)} did not come "
                f"within {timeout:g} s"
            )
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


def connect(store: Any, group: str, rank: int, size: int, timeout: float, transport: str) -> Any:
    """Returns a _core.ProcessGroup. Blocks until all ranks have come, at most `timeout` seconds.

    Rank 0 serves Tandem's store. It listens at the loopback interface if all ranks are on its machine.
    """
    if size == 1:
        return _core.ProcessGroup.connect("", group, 0, 1, timeout, transport)
    deadline = time.monotonic() + timeout
    store.set(f"tandem/host/{rank}", _core.host_identity())
    if rank == 0:
        local = len(_hosts(store, "tandem/host", group, size, timeout, deadline)) == 1
        # A group that is destroyed and made again has another name in this process's store.
        number = next(_names[group])
        name = group if number == 0 else f"{group}~{number}"
        store.set("tandem/store", f"{_core.serve_group_store(local)} {name}")
    else:
        _wait(store, {"tandem/store": 0}, group, timeout, deadline)
    address, name = bytes(store.get("tandem/store")).decode().split(" ", 1)
    remaining = max(1.0, deadline - time.monotonic())
    return _core.ProcessGroup.connect(address, name, rank, size, remaining, transport)
