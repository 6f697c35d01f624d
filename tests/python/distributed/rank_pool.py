# SPDX-License-Identifier: Apache-2.0
"""Processes that run functions as the ranks of a group: groups that tests share, and jobs whose ranks a test may break."""

from __future__ import annotations

import datetime
import multiprocessing
import pathlib
import time
import traceback
from typing import Any, Callable, Sequence

import pytest

TIMEOUT = datetime.timedelta(seconds=30)
DEADLINE = 100.0  # seconds for one call on all ranks; includes importing torch
JOB_DEADLINE = 90


def _serve(rank: int, size: int, path: str, backend: str, transport: str, pipe: Any) -> None:
    """A rank: makes the default group, then runs the functions that arrive."""
    import torch
    import torch.distributed as dist

    import tandem.torch

    torch.set_num_threads(1)
    options = tandem.torch.Options(transport) if transport else None
    try:
        dist.init_process_group(
            backend, init_method=f"file://{path}", rank=rank, world_size=size, timeout=TIMEOUT, pg_options=options
        )
        pipe.send(None)
    except BaseException:
        pipe.send(traceback.format_exc())
        raise
    while (call := pipe.recv()) is not None:
        function, args = call
        try:
            function(*args)
            pipe.send(None)
        except BaseException:
            pipe.send(traceback.format_exc())
    dist.destroy_process_group()


class Ranks:
    """Processes with a default group of the backend "tandem"."""

    def __init__(self, size: int, path: pathlib.Path, backend: str = "tandem", transport: str = "") -> None:
        self.size = size
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        self.processes = []
        for rank in range(size):
            mine, other = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, str(path), backend, transport, other), daemon=True
            )
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        self.broken = False
        self._collect("init_process_group")

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Runs a module's function on all ranks; raises AssertionError with the tracebacks of those that failed."""
        for pipe in self.pipes:
            pipe.send((function, args))
        self._collect(function.__name__)

    def _collect(self, what: str) -> None:
        end = time.monotonic() + DEADLINE
        failures = []
        for rank, pipe in enumerate(self.pipes):
            try:
                if not pipe.poll(max(0.0, end - time.monotonic())):
                    failures.append(f"rank {rank} has not finished {what} within {DEADLINE} s")
                elif (failure := pipe.recv()) is not None:
                    failures.append(f"rank {rank}: {failure}")
            except EOFError:
                failures.append(f"rank {rank} died in {what}")
        if failures:
            self.broken = True
            raise AssertionError("\n".join(failures))

    def stop(self) -> None:
        if not self.broken:
            for pipe in self.pipes:
                pipe.send(None)
        for process in self.processes:
            process.join(0 if self.broken else 20)
            if process.is_alive():
                process.kill()
                process.join()


class Pool:
    """Groups by their size and transport, which tests share: importing torch takes seconds."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._ranks: dict[tuple[int, str], Ranks] = {}

    def __call__(self, size: int = 2, transport: str = "") -> Ranks:
        ranks = self._ranks.get((size, transport))
        if ranks is None or ranks.broken:
            if ranks is not None:
                ranks.stop()
            path = self._factory.mktemp("ranks") / "store"
            ranks = self._ranks[size, transport] = Ranks(size, path, transport=transport)
        return ranks

    def stop(self) -> None:
        for ranks in self._ranks.values():
            ranks.stop()


def _rank(function: Callable[..., None], rank: int, size: int, path: str, timeout: float, pipe: Any) -> None:
    """A rank of a job."""
    import torch
    import torch.distributed as dist

    import tandem.torch  # noqa: F401 - before torch 2.15 nothing else makes the backend known

    torch.set_num_threads(1)
    dist.init_process_group(
        "tandem", init_method=f"file://{path}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=timeout)
    )
    dist.barrier()
    pipe.send("ready")
    pipe.recv()  # a rank may leave the barrier while others are still in it
    function(rank, pipe)
    pipe.send("done")


class Job:
    """Ranks that a test may kill. Each one runs function(rank, pipe) and sends "done".

    imported: modules. If there are any, the ranks are forked from a process that has imported them: importing torch takes seconds.
    """

    def __init__(
        self, function: Callable[..., None], path: Any, size: int = 2, timeout: float = 30, imported: Sequence[str] = ()
    ) -> None:
        context = multiprocessing.get_context("forkserver" if imported else "spawn")
        context.set_forkserver_preload(list(imported))
        self.pipes, self.processes = [], []
        for rank in range(size):
            mine, other = context.Pipe()
            process = context.Process(target=_rank, args=(function, rank, size, str(path / "store"), timeout, other), daemon=True)
            process.start()
            other.close()
            self.pipes.append(mine)
            self.processes.append(process)
        for rank in range(size):
            assert self.receive(rank) == "ready"
        for pipe in self.pipes:
            pipe.send("go")

    def receive(self, rank: int) -> Any:
        assert self.pipes[rank].poll(JOB_DEADLINE), f"rank {rank} says nothing"
        return self.pipes[rank].recv()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def error_of(call: Callable[[], Any]) -> tuple[str, str, float]:
    begin = time.monotonic()
    try:
        call()
    except BaseException as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "no error", time.monotonic() - begin
