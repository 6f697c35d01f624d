# SPDX-License-Identifier: Apache-2.0
"""Steps that the ranks of a process group take together, with one outcome for all of them."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException

from tandem.errors import AbortedError, FailedPreconditionError, TandemError

T = TypeVar("T")


class Ranks:
    """The ranks of a process group; a single one if torch.distributed is not initialized.

    Every rank makes the same calls in the same order. Each call blocks until all ranks have made it, and raises on all of them
    if it fails on one.
    """

    def __init__(self, process_group: Any, workers: int) -> None:
        self.group = process_group
        self.distributed = dist.is_available() and dist.is_initialized()
        if not self.distributed and workers > 1:
            raise FailedPreconditionError(
                f"the client is one of {workers} workers, but torch.distributed is not initialized, so this rank cannot meet the "
                f"others; call torch.distributed.init_process_group() first"
            )
        self.rank: int = dist.get_rank(process_group) if self.distributed else 0
        self.size: int = dist.get_world_size(process_group) if self.distributed else 1

    def together(self, what: str, function: Callable[[], T]) -> T:
        """Runs a function on every rank and returns this rank's result. `what` is for errors of other ranks."""
        result, error = _attempt(function)
        if self.size > 1:
            errors: list[Any] = [None] * self.size
            dist.all_gather_object(errors, None if error is None else _text(error), group=self.group)
            failed = [(rank, text) for rank, text in enumerate(errors) if text is not None]
            if failed and error is None:
                raise AbortedError(f"{what}: rank {failed[0][0]} failed: {failed[0][1]}")
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Returns the values of all ranks."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def on_first(self, function: Callable[[], T]) -> T:
        """Runs a function on rank 0 and returns its result, or raises its error, on every rank."""
        outcome: list[Any] = [None, None]
        error = None
        if self.rank == 0:
            outcome[0], error = _attempt(function)
            outcome[1] = error if error is None or isinstance(error, TandemError) else TandemError(_text(error))
        if self.size > 1:
            dist.broadcast_object_list(outcome, group=self.group, group_src=0)
        if error is not None:
            raise error
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]


def _attempt(function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return function(), None
    except (Exception, CheckpointException) as error:
        return None, error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
