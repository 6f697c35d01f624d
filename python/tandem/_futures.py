# SPDX-License-Identifier: Apache-2.0
"""Futures of pulls and pushes, and the thread that runs their callbacks."""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import logging
import math
import os
import threading
import time
from typing import Any, Callable, Generic, Iterator, TypeVar

from tandem._load import load_core
from tandem.errors import InvalidArgumentError, TandemError

_core = load_core()
_logger = logging.getLogger("tandem")
T = TypeVar("T")


# Tells a thread that waits for finished calls that there are callbacks to run.
_LOOK = (1 << 64) - 1
# Seconds after which a callback counts as one that waits, although it does not say so.
_PATIENCE = 1.0


class Completer:
    """Fulfils the futures of this process to which somebody has attached a callback, in the order in which their calls end.

    Callbacks run one after the other on a thread of their own, which is started when first needed. While a callback waits for a call of
    Tandem (`blocking`), another thread runs the callbacks that follow. Another thread also runs them if a callback takes longer than
    `_PATIENCE`, because it may wait by means that this class does not see, as by torch.futures.Future.wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._next = 0
        self._queue: Any = None
        self._threads: list[threading.Thread] = []
        self._reading = threading.Lock()  # held by the thread that reads the queue, so that the order stays
        self._changed = threading.Condition(self._lock)
        self._finished: collections.deque[int] = collections.deque()  # calls whose callbacks have not begun
        self._runner: object | None = None  # names the callback that runs, and does not wait
        self._guard: threading.Thread | None = None  # looks for callbacks that run too long
        self._busy = threading.Event()  # set while there may be such callbacks
        self._stopped = False
        self._resuming = 0  # callbacks whose wait has ended, and which go on before others begin
        self._readers = 0  # threads that read the queue, or wait to
        self._local = threading.local()
        atexit.register(self._stop)
        # A child has no thread of its parent, and the lock may be held there for good.
        os.register_at_fork(after_in_child=self._forget)

    def watch(self, future: Future[Any]) -> None:
        with self._lock:
            if self._queue is None:
                self._queue = _core.FinishedCalls()
                self._start_thread()
                self._guard = threading.Thread(target=self._relieve, name="tandem-completer-guard", daemon=True)
                self._guard.start()
            number = self._next
            self._next += 1
            self._waiting[number] = future
            self._busy.set()
            queue = self._queue
        try:
            future._call.when_finished(queue, number)
        except TandemError:
            with self._lock:
                del self._waiting[number]
            raise

    @property
    def serves_here(self) -> bool:
        """Whether this thread runs a callback now."""
        return getattr(self._local, "callback", None) is not None

    def wait(self, call: Any, seconds: float) -> bool:
        """Returns call.wait(seconds). A callback that waits lets the callbacks that follow run meanwhile."""
        if not self.serves_here or call.done():
            return call.wait(seconds)
        with self.blocking():
            return call.wait(seconds)

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """To be held by a callback while it waits for a call: the callbacks that follow, for which the call may wait, run meanwhile."""
        if not self.serves_here:
            yield
            return
        callback = self._local.callback
        with self._lock:
            self._hand_over(callback)
        self._local.callback = None
        try:
            yield
        finally:
            with self._changed:
                self._resuming += 1
                while self._runner is not None:
                    self._changed.wait()
                self._resuming -= 1
                self._runner = callback
                self._changed.notify_all()
            self._local.callback = callback

    def _hand_over(self, callback: object) -> None:
        """Lets another thread run the callbacks that follow `callback`. The lock is held."""
        if self._runner is not callback:
            return  # another thread does already
        self._runner = None
        self._changed.notify_all()
        if self._readers == 0:
            self._start_thread()
        elif self._finished:
            self._queue.add(_LOOK)

    def _relieve(self) -> None:
        """Hands over for callbacks that run longer than _PATIENCE."""
        seen: object | None = None
        while True:
            self._busy.wait()
            time.sleep(_PATIENCE)
            with self._lock:
                if self._stopped:
                    return
                if self._runner is None and not self._waiting:
                    self._busy.clear()
                elif self._runner is not None and self._runner is seen:
                    self._hand_over(seen)
                seen = self._runner

    def _start_thread(self) -> None:
        # A daemon, because the interpreter joins other threads before it runs atexit functions.
        thread = threading.Thread(target=self._run, args=(self._queue,), name="tandem-completer", daemon=True)
        self._threads.append(thread)
        self._readers += 1  # from now on: nobody else needs to start one
        thread.start()

    def _run(self, queue: Any) -> None:
        while True:
            self._run_callbacks()
            with self._reading:
                numbers = queue.take()
                with self._lock:
                    self._finished.extend(number for number in numbers if number != _LOOK)
            if not numbers:
                return

    def _run_callbacks(self) -> None:
        """Runs the callbacks of all calls that have ended, unless another thread does."""
        while True:
            with self._changed:
                while self._resuming:
                    self._changed.wait()
                if self._runner is not None or not self._finished:
                    return
                callback = self._runner = object()
                self._readers -= 1
                future = self._waiting.pop(self._finished.popleft())
            self._local.callback = callback
            try:
                future._run_callbacks()
            except Exception:  # the other futures must not wait for ever
                logging.getLogger("tandem").exception("completing %r failed", future)
            finally:
                self._local.callback = None
                with self._changed:
                    if self._runner is callback:
                        self._runner = None
                    self._readers += 1
                    self._changed.notify_all()
            del future  # its arrays must not live until the next call ends

    def _stop(self) -> None:
        with self._lock:
            queue, threads, self._stopped = self._queue, list(self._threads), True
        self._busy.set()
        if queue is not None:
            queue.close()
            for thread in threads:
                thread.join()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._reading = threading.Lock()
        self._local = threading.local()
        self._waiting = {}
        self._finished.clear()
        self._threads = []
        self._queue = self._guard = self._runner = None
        self._busy = threading.Event()
        self._resuming, self._readers = 0, 0


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
        seconds = -1.0 if timeout is None else max(0.0, timeout)
        if not self._completer.wait(self._call, seconds):
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
