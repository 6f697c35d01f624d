# SPDX-License-Identifier: Apache-2.0
"""Futures of pulls and pushes, and the thread that runs their callbacks."""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import threading
from typing import Any, Callable, Generic, Iterator, TypeVar

from tandem._load import load_core
from tandem.errors import InvalidArgumentError, TandemError

_core = load_core()
_logger = logging.getLogger("tandem")
T = TypeVar("T")


class Completer:
    """The thread of this process that fulfils futures to which somebody has attached a callback. Started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._next = 0
        self._queue: Any = None
        self._thread: threading.Thread | None = None
        atexit.register(self._stop)
        # A child has no thread of its parent, and the lock may be held there for good.
        os.register_at_fork(after_in_child=self._forget)

    def watch(self, future: Future[Any]) -> None:
        with self._lock:
            if self._thread is None:
                self._queue = _core.FinishedCalls()
                # A daemon, because the interpreter joins other threads before it runs atexit functions.
                self._thread = threading.Thread(target=self._run, args=(self._queue,), name="tandem-completer", daemon=True)
                self._thread.start()
            number = self._next
            self._next += 1
            self._waiting[number] = future
            queue = self._queue
        try:
            future._call.when_finished(queue, number)
        except TandemError:
            with self._lock:
                del self._waiting[number]
            raise

    def _run(self, queue: Any) -> None:
        while numbers := queue.take():
            for number in numbers:
                with self._lock:
                    future = self._waiting.pop(number)
                try:
                    future._run_callbacks()
                except Exception:  # the other futures must not wait for ever
                    logging.getLogger("tandem").exception("completing %r failed", future)

    def _stop(self) -> None:
        with self._lock:
            queue, thread = self._queue, self._thread
        if thread is not None:
            queue.close()
            thread.join()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._waiting = {}
        self._thread = None


COMPLETER = Completer()


class Future(Generic[T]):
    """The result of pull_async or push_async. Can be awaited. Thread-safe."""

    def __init__(self, call: Any, convert: Callable[[list[tuple[int, ...]]], T], completer: Completer) -> None:
        self._call = call
        self._convert = convert
        self._completer = completer
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Future[T]], Any]] = []
        self._watched = False

    def done(self) -> bool:
        """Returns whether the call has ended."""
        return self._call.done()

    def result(self, timeout: float | None = None) -> T:
        """Blocks until the call has ended and returns its result.

        Raises TimeoutError after `timeout` seconds; the call goes on. Raises the call's error if it failed.
        """
        self._wait(timeout)
        return self._convert(self._call.result())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Blocks like result(); returns the call's error, or None. Raises TimeoutError if the call has not ended."""
        self._wait(timeout)
        try:
            self._call.result()
        except TandemError as error:
            return error
        return None

    def _wait(self, timeout: float | None) -> None:
        if timeout is not None and math.isnan(timeout):
            raise InvalidArgumentError("timeout is NaN; it must be a number of seconds, or None for no limit")
        # A negative number means no limit to C++.
        if not self._call.wait(-1.0 if timeout is None else max(0.0, timeout)):
            raise TimeoutError(f"the call has not ended within {timeout} s")

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Calls `callback(self)` on a thread of Tandem when the call has ended, or at once if it has.

        An exception of a callback is logged (logger "tandem") and does not affect others.
        """
        with self._lock:
            self._callbacks.append(callback)
            if self._watched:
                return
            self._watched = True
        try:
            self._completer.watch(self)
        except BaseException:
            with self._lock:
                self._watched = False
                self._callbacks.remove(callback)
            raise

    def _run_callbacks(self) -> None:
        while True:
            with self._lock:
                if not self._callbacks:
                    self._watched = False
                    return
                callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                try:
                    callback(self)
                except BaseException:  # SystemExit too: the thread serves all futures of the process
                    _logger.exception("a callback of %r has raised an exception", self)

    def __await__(self) -> Iterator[Any]:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake(_: Future[T]) -> None:
            def set_result() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            try:
                loop.call_soon_threadsafe(set_result)
            except RuntimeError:  # the loop was closed
                pass

        self.add_done_callback(wake)
        yield from waiter
        return self.result()
