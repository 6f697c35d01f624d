# SPDX-License-Identifier: Apache-2.0
"""What the modules of one client share: the gradients of a backward pass, and the one push that sends them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Iterator

import torch

from tandem.client import Client
from tandem.errors import InvalidArgumentError
from tandem.nn.recompute import Keep, KeptLookups


class Ahead:
    """A lookup that Prefetch has started, until the module asks for its rows."""

    def __init__(
        self, key: bytes, lookup: Any, call: Any, step: int, generation: int, used: Callable[[int, float], None]
    ) -> None:
        self.key = key
        self.generation = generation
        self.lookup = lookup
        self.call = call
        self.step = step  # the client's step when the pull began
        self.used = used  # is told the steps since then, and the seconds of waiting


@dataclasses.dataclass(eq=False)
class _Pass:
    """A backward pass that runs, with those that reentrant checkpointing runs inside of it."""

    task: int  # autograd's number of the outermost pass
    thread: list[_Pass]  # the passes that run on the thread in which this one was first seen
    lookups: list[Any] = dataclasses.field(default_factory=list)  # that have gradients of it
    recomputes: bool = False


class _EndOfPass:
    """The callback that autograd runs at the end of a backward pass. If the pass raises, autograd destroys it instead."""

    def __init__(self, session: Session, running: _Pass) -> None:
        self._session = session
        self._running = running
        self._over = False

    def __call__(self) -> None:
        self._over = True
        self._session._end(self._running)

    def __del__(self) -> None:
        if not self._over:
            self._session._forget(self._running)


class Session:
    """Collects the lookups of each backward pass and pushes their gradients at its end.

    Thread-safe. Backward passes of different threads are different pushes. The gradients of a backward pass that raises are
    dropped.
    """

    @staticmethod
    def of(client: Client) -> Session:
        """Returns the session of a client. All modules of the client share it."""
        if client._session is None:
            client._session = Session(client)
        return client._session

    def __init__(self, client: Client) -> None:
        # The client refers to its session.
        self._client = weakref.ref(client)
        self._lock = threading.RLock()
        self.tables: dict[str, int] = {}  # dims of the tables that a push carries
        self._kept = KeptLookups()
        self._ahead: dict[bytes, collections.deque[Ahead]] = {}
        self._generation = 0  # of the rows: how often discard() was called
        self._passes: dict[int, _Pass] = {}  # that run, by autograd's number
        self._local = threading.local()
        self._pending: list[Any] = []  # lookups with gradients, of passes that have ended
        self._holds = 0
        self._pushes: collections.deque[Any] = collections.deque()
        self._scaler: Any = None
        self._awaits_optimizer = False
        self._scheduler: Any = None
        self._base_rate = 1.0
        self.skipped_steps: int = 0

    def _use(self) -> Client:
        client = self._client()
        if client is None:
            raise InvalidArgumentError("the client of this module no longer exists")
        return client

    # Lookups

    def look_up(self, engine: Any, request: Any, training: bool, keep: Keep) -> Any:
        """Returns a lookup with the rows of `request`. Blocks until they are there."""
        client = self._use()
        if not training:
            self.wait()
            lookup = engine.prepare(request)
            client._core.pull_lookup(client.step, True, lookup)
            return lookup
        key = request.key()
        if torch._C._current_graph_task_id() != -1:
            # A recomputation: it must see the rows that the forward pass saw, and its graph belongs to this backward pass.
            self._current_pass(recomputes=True)
            lookup = self._kept.find(key, last=keep is not Keep.UNTIL_RECOMPUTED)
            if lookup is not None:
                return lookup
        lookup = self._redeem(client, key)
        if lookup is None:
            self.wait()
            lookup = engine.prepare(request)
            client._core.pull_lookup(client.step, False, lookup)
        self._kept.add(key, lookup, keep)
        return lookup

    def start_ahead(self, engine: Any, request: Any, used: Callable[[int, float], None]) -> Ahead:
        """Starts the pull of a batch to come. look_up() finds it by its contents."""
        client = self._use()
        key = request.key()
        lookup = engine.prepare(request)
        generation, step = self._generation, client.step
        ahead = Ahead(key, lookup, client._core.start_lookup(step, False, lookup), step, generation, used)
        with self._lock:
            self._ahead.setdefault(key, collections.deque()).append(ahead)
        return ahead

    def drop_ahead(self, ahead: Ahead) -> bool:
        """Forgets a lookup of start_ahead() if nobody has used it, and returns whether that was so."""
        with self._lock:
            waiting = self._ahead.get(ahead.key)
            if waiting is None or ahead not in waiting:
                return False
            waiting.remove(ahead)
            if not waiting:
                del self._ahead[ahead.key]
            return True

    def _redeem(self, client: Client, key: bytes) -> Any:
        with self._lock:
            waiting = self._ahead.get(key)
            # Its rows may be of before a checkpoint was loaded. Then drop_ahead() counts it as unused.
            if not waiting or waiting[0].generation != self._generation:
                return None
            ahead = waiting.popleft()
            if not waiting:
                del self._ahead[key]
        began = time.monotonic()
        ahead.call.wait(-1.0)
        ahead.call.result()
        ahead.used(client.step - ahead.step, time.monotonic() - began)
        return ahead.lookup

    # Gradients

    def collect(self, lookup: Any) -> None:
        """Adds a lookup, to whose rows the backward pass of this thread has just added gradients."""
        running = self._current_pass(recomputes=False)
        with self._lock:
            if not any(lookup is other for other in running.lookups):
                running.lookups.append(lookup)

    def _current_pass(self, recomputes: bool) -> _Pass:
        task = torch._C._current_graph_task_id()
        thread: list[_Pass] = self._local.__dict__.setdefault("passes", [])
        with self._lock:
            running = self._passes.get(task)
            if running is None and thread and thread[-1].recomputes:
                # Reentrant checkpointing runs a backward pass inside of one, after a recomputation in the outer one.
                running = thread[-1]
            if running is not None:
                running.recomputes |= recomputes
                return running
        running = _Pass(task, thread, recomputes=recomputes)
        # Autograd has the only reference to the callback.
        torch.autograd.Variable._execution_engine.queue_callback(_EndOfPass(self, running))
        with self._lock:
            self._passes[task] = running
            thread.append(running)
        return running

    def _remove(self, running: _Pass) -> None:
        self._passes.pop(running.task, None)
        if running in running.thread:
            running.thread.remove(running)

    def _end(self, running: _Pass) -> None:
        with self._lock:
            self._remove(running)
            for lookup in running.lookups:
                if not any(lookup is other for other in self._pending):
                    self._pending.append(lookup)
            if not running.lookups and not self._pending:
                return
            if self._holds > 0:
                return
            if self._scaler is not None:
                self._awaits_optimizer = True
                return
        self.push()

    def _forget(self, running: _Pass) -> None:
        """Drops the gradients of a backward pass that has raised."""
        with self._lock:
            self._remove(running)
            shared = [lookup for lookup in running.lookups if any(lookup is other for other in self._pending)]
            for lookup in running.lookups:
                lookup.drop_gradients()
            running.lookups.clear()
        if shared:
            warnings.warn(
                "a backward pass that raised has dropped gradients of an earlier one, which no_push() had kept: both used the same "
                "graph (retain_graph=True)",
                stacklevel=2,
            )

    def discard(self) -> None:
        """Drops gradients that have not been pushed, and rows that were looked up for later: the rows have been replaced."""
        with self._lock:
            self._generation += 1
            pending, self._pending = self._pending, []
            self._awaits_optimizer = False
        for lookup in pending:
            lookup.drop_gradients()
        self._kept.clear()

    @contextlib.contextmanager
    def no_push(self) -> Iterator[None]:
        with self._lock:
            self._holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1

    def push(self, drop: bool = False) -> None:
        """Starts the push of all collected gradients; it counts as a step even if there are none. Raises if it cannot start."""
        client = self._use()
        with self._lock:
            lookups, self._pending = self._pending, []
            self._awaits_optimizer = False
            tables = list(self.tables.items())
        self._kept.end_step()
        factor = self._learning_rate_factor()
        if self._scaler is not None and not drop and not all(lookup.gradients_are_finite() for lookup in lookups):
            drop = True
        if drop:
            self.skipped_steps += 1
        if drop or factor == 0.0:
            for lookup in lookups:
                lookup.drop_gradients()
            lookups, factor = [], 1.0
        with client._push_step(None) as step:
            call = client._core.start_gradients(step.number, lookups, tables, factor, 1.0 / client.world_size)
            step.started()
        if call.done():
            call.result()
        else:
            with self._lock:
                self._pushes.append(call)

    def wait(self) -> None:
        """Blocks until the servers have acknowledged all pushes. Raises the error of the first that failed."""
        failure: BaseException | None = None
        while True:
            with self._lock:
                if not self._pushes:
                    break
                call = self._pushes[0]
            call.wait(-1.0)
            with self._lock:
                if not self._pushes or self._pushes[0] is not call:
                    continue  # another thread has waited for it too
                self._pushes.popleft()
            try:
                call.result()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def wait_quietly(self) -> BaseException | None:
        """Blocks like wait(). Returns the error of the first push that failed, which the next wait() raises."""
        with self._lock:
            calls = list(self._pushes)
        failure: BaseException | None = None
        for call in calls:
            call.wait(-1.0)
            try:
                call.result()
            except Exception as error:
                failure = failure or error
                continue
            with self._lock:
                if call in self._pushes:
                    self._pushes.remove(call)
        return failure

    # Policies that come from the dense part

    def scale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if self._scaler is not None:
            raise InvalidArgumentError("this client's modules have a GradScaler already")
        self._scaler = scaler
        optimizer.register_step_post_hook(lambda *_: self._after_optimizer())
        update = scaler.update

        def update_and_skip(*args: Any, **kwargs: Any) -> Any:
            # The scaler calls optimizer.step() unless gradients were infinite.
            if self._awaits_optimizer:
                self.push(drop=True)
            return update(*args, **kwargs)

        scaler.update = update_and_skip

    def _after_optimizer(self) -> None:
        if self._awaits_optimizer:
            self.push()

    def gradient_scale(self) -> float:
        """Returns by what backward() has multiplied the gradients."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def schedule(self, scheduler: Any) -> None:
        rates = getattr(scheduler, "base_lrs", None)
        if not rates:
            rates = [group.get("initial_lr", group["lr"]) for group in scheduler.optimizer.param_groups]
        if not rates[0] > 0:
            raise InvalidArgumentError(f"the scheduler's base learning rate is {rates[0]}; it must be more than 0")
        self._scheduler, self._base_rate = scheduler, float(rates[0])

    def _learning_rate_factor(self) -> float:
        if self._scheduler is None:
            return 1.0
        factor = float(self._scheduler.get_last_lr()[0]) / self._base_rate
        if not math.isfinite(factor) or factor < 0:
            warnings.warn(f"the scheduler's learning rate is {factor} times its base rate; the tables use 1", stacklevel=2)
            return 1.0
        return factor
