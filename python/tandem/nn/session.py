# SPDX-License-Identifier: Apache-2.0
"""What the modules of one client share: the gradients of a backward pass, and the one push that sends them."""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Iterator

import torch

from tandem.client import Client
from tandem.errors import InvalidArgumentError

# Lookups of a step that a recomputation may ask for again, at most.
_KEPT_LOOKUPS = 32


class Ahead:
    """A lookup that Prefetch has started, until the module asks for its rows."""

    def __init__(self, key: bytes, lookup: Any, call: Any, step: int, used: Callable[[int, float], None]) -> None:
        self.key = key
        self.lookup = lookup
        self.call = call
        self.step = step  # the client's step when the pull began
        self.used = used  # is told the steps since then, and the seconds of waiting


class Session:
    """Collects the lookups of a backward pass and pushes their gradients at its end.

    Other threads may look up without training meanwhile. Forward passes in training and backward passes belong to one
    thread at a time. A backward pass that raises must be followed by a forward pass, which drops what it has collected.
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
        self._pool_of_step: collections.OrderedDict[bytes, Any] = collections.OrderedDict()
        self._ahead: dict[bytes, collections.deque[Ahead]] = {}
        self._running: list[Any] = []  # lookups with gradients, of the backward pass that runs
        self._pending: list[Any] = []  # of those that have ended
        self._armed = False
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

    def look_up(self, engine: Any, request: Any, training: bool) -> Any:
        """Returns a lookup with the rows of `request`. Blocks until they are there."""
        client = self._use()
        if not training:
            self.wait()
            lookup = engine.prepare(request)
            client._core.pull_lookup(client.step, True, lookup)
            return lookup
        key = request.key()
        if torch._C._current_graph_task_id() != -1:
            # A recomputation: it must see the rows that the forward pass saw, and its graph belongs to this backward.
            self._arm()
            with self._lock:
                lookup = self._pool_of_step.get(key)
            if lookup is not None:
                return lookup
        else:
            self._forget_failed_backward()
        lookup = self._redeem(client, key)
        if lookup is None:
            self.wait()
            lookup = engine.prepare(request)
            client._core.pull_lookup(client.step, False, lookup)
        with self._lock:
            self._pool_of_step[key] = lookup
            while len(self._pool_of_step) > _KEPT_LOOKUPS:
                self._pool_of_step.popitem(last=False)
        return lookup

    def start_ahead(self, engine: Any, request: Any, used: Callable[[int, float], None]) -> Ahead:
        """Starts the pull of a batch to come. look_up() finds it by its contents."""
        client = self._use()
        key = request.key()
        lookup = engine.prepare(request)
        step = client.step
        ahead = Ahead(key, lookup, client._core.start_lookup(step, False, lookup), step, used)
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
            if not waiting:
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
        """Adds a lookup, to whose rows a backward pass has just added gradients."""
        with self._lock:
            if not any(lookup is other for other in self._running):
                self._running.append(lookup)
        self._arm()

    def _arm(self) -> None:
        with self._lock:
            if self._armed:
                return
            self._armed = True
        # Belongs to the outermost backward pass: a nested one (reentrant checkpointing) begins after a forward pass inside of
        # the outer one, which has armed the session.
        torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        with self._lock:
            self._armed = False
            for lookup in self._running:
                if not any(lookup is other for other in self._pending):
                    self._pending.append(lookup)
            self._running.clear()
            if not self._pending or self._holds > 0:
                return
            if self._scaler is not None:
                self._awaits_optimizer = True
                return
        self.push()

    def _forget_failed_backward(self) -> None:
        # A backward pass that raised has not run its callbacks.
        with self._lock:
            if self._armed:
                self._armed = False
                for lookup in self._running:
                    lookup.drop_gradients()
                self._running.clear()

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
            self._pool_of_step.clear()
            self._awaits_optimizer = False
            tables = list(self.tables.items())
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
