# SPDX-License-Identifier: Apache-2.0
"""The operations of process groups, as torch.distributed sees them."""

from __future__ import annotations

import datetime
import threading
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

from tandem._futures import COMPLETER
from tandem.errors import TandemError


def as_torch_error(error: Exception) -> Exception:
    """Returns torch's exception with the text of Tandem's. Other exceptions stay as they are."""
    if not isinstance(error, TandemError):
        return error
    return dist.DistBackendError(str(error))


class _WorkFuture(torch.futures.Future[Any]):
    """A future of an operation. A callback of another future may wait for it, as communication hooks of DDP do."""

    def wait(self) -> Any:
        if not COMPLETER.serves_here or self.done():
            return super().wait()
        with COMPLETER.blocking():
            return super().wait()


class TandemWork(dist.Work):
    """An operation. Thread-safe."""

    def __init__(self, calls: Sequence[Any], outputs: list[torch.Tensor], finish: Callable[[], None] | None) -> None:
        """calls: those of the C++ library that are under way. finish: what to do when they are completed."""
        super().__init__()
        self._calls = calls
        self._outputs = outputs
        self._finish = finish
        self._lock = threading.Lock()
        self._future: Any = None
        self._error: Exception | None = None

    # With this name COMPLETER finds what to wait for: calls of one group end in order.
    @property
    def _call(self) -> Any:
        return self._calls[-1]

    def is_completed(self) -> bool:
        if any(not call.done() for call in self._calls):
            return False
        self._complete()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Returns the error of a completed operation, or None."""
        return as_torch_error(self._error) if self.is_completed() and self._error is not None else None

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Blocks until the operation is completed. Raises its error, or DistBackendError after `timeout`."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        for call in self._calls:
            try:
                finished = COMPLETER.wait(call, seconds if seconds > 0 else -1.0)
            except TandemError as error:  # in a forked child
                raise as_torch_error(error) from error
            if not finished:
                raise dist.DistBackendError(f"the operation still runs after {seconds:g} s; wait() can be called again")
        self._complete()
        if self._error is not None:
            raise as_torch_error(self._error) from self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """Returns the rank of the sender, after a receive from any rank is completed."""
        self.wait()
        return self._calls[-1].source_rank() if self._calls else -1

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Returns a future of the output tensors."""
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = _WorkFuture()
        if self._calls:
            COMPLETER.watch(self)  # type: ignore[arg-type]
        else:
            self._run_callbacks()
        return future

    def _run_callbacks(self) -> None:
        self._complete()
        if self._error is None:
            self._future.set_result(self._outputs)
        else:
            self._future.set_exception(as_torch_error(self._error))

    def _complete(self) -> None:
        """Finishes an operation whose calls are completed."""
        if not self._calls and self._finish is None:
            return
        with self._lock:
            try:
                for call in self._calls:
                    call.check()
            except TandemError as error:
                self._error = error
                return
            finish, self._finish = self._finish, None
            try:
                if finish is not None:
                    finish()
            except Exception as error:  # for example, an output that may not be written
                self._error = error
