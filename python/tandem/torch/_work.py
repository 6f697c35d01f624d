# SPDX-License-Identifier: Apache-2.0
"""The operations of process groups, as torch.distributed sees them."""

from __future__ import annotations

import datetime
import sys
import threading
import time
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

from tandem._futures import COMPLETER
from tandem.errors import TandemError
from tandem.torch._compiled import not_compiled


def as_torch_error(error: Exception) -> Exception:
    """Returns torch's exception with the text of Tandem's. Other exceptions stay as they are."""
    if not isinstance(error, TandemError):
        return error
    return dist.DistBackendError(str(error))


class _InnerFuture(torch.futures.Future[Any]):
    """A future of an operation for a callback of another one, which may wait for it, as communication hooks of DDP do."""

    def wait(self) -> Any:
        if not COMPLETER.serves_here or self.done():
            return super().wait()
        with COMPLETER.blocking():
            return super().wait()


def _asked_by_cpp() -> bool:
    """Returns whether C++ code, not a Python function, has called the method from which this function is called."""
    try:
        caller = sys._getframe(2)
    except ValueError:
        return True  # a thread of autograd
    return sys._getframe(1).f_code.co_name not in caller.f_code.co_names


@not_compiled
class TandemWork(dist.Work):
    """An operation. Thread-safe."""

    def __init__(self, calls: Sequence[Any], outputs: list[torch.Tensor], finish: Callable[[], None] | None) -> None:
        """calls: those of the C++ library that are under way. finish: what to do when they are completed."""
        super().__init__()
        self._calls = calls
        self._outputs = outputs
        self._finish = finish
        self._lock = threading.Lock()
        self._inner: _InnerFuture | None = None
        self._future: Any = None
        self._settled = False  # whether a thread completes the futures, or has done so
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
        if self._future is not None:
            self._settle()
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
        """Returns a future of the output tensors. It is completed before wait() returns."""
        if len(self._outputs) == 1 and self._outputs[0].dtype is torch.float16 and _asked_by_cpp():
            # DDP's built-in hook for half precision takes only a future whose C++ type is a list of tensors. In Python
            # such a future can be made only once its value is there.
            self.wait()
            return torch._C.fork(lambda: self._outputs)
        with self._lock:
            made = self._future is None
            if made:
                self._inner = _InnerFuture()
                # In C++, a future to which set_exception() was applied has the exception as its value. One whose callback
                # has raised is a failed one there too.
                self._future = self._inner.then(lambda inner: inner.value())
        if made:
            if self._calls:
                COMPLETER.watch(self)  # type: ignore[arg-type]
            else:
                self._run_callbacks()
        return self._inner if COMPLETER.serves_here else self._future

    def _run_callbacks(self) -> None:
        self._complete()
        self._settle()

    def _settle(self) -> None:
        """Completes the futures of a completed operation, if no other thread does, and waits until they are."""
        with self._lock:
            first, self._settled = not self._settled, True
        if not first:
            while not self._future.done():
                time.sleep(0)  # the other thread runs no callback before
        elif self._error is None:
            self._inner.set_result(self._outputs)
        else:
            self._inner.set_exception(as_torch_error(self._error))

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
