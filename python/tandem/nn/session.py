# SPDX-License-Identifier: Apache-2.0
"""What the modules of one client share: the gradients of backward passes, and the pushes that send them."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable

import torch

from tandem._load import load_core
from tandem.client import Client
from tandem.errors import InvalidArgumentError
from tandem.nn import across, protocol
from tandem.nn.handle import Handle, TableGradient
from tandem.nn.recompute import Keep, KeptLookups

if TYPE_CHECKING:
    from tandem.nn.engine import Engine
    from tandem.nn.follower import Follower

_core = load_core()

# Lookups whose gradients wait for a step before they are added up, which bounds the memory of long accumulations.
_MANY_LOOKUPS = 16


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
    # Those that have gradients of it, and the modules that have looked them up.
    lookups: list[tuple[Engine, Any]] = dataclasses.field(default_factory=list)
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
    """Collects the lookups of each backward pass, and pushes their gradients: those of tables that follow an optimizer by its
    step(), others at the end of the pass.

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
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()  # that have tables; an optimizer keeps its own alive
        self._pushes: collections.deque[Any] = collections.deque()
        self.skipped_steps: int = 0
        self.join_leader: Any = None  # a weak reference to the hook that pushes for a worker without data
        self.pushes_of_passes: int = 0  # by backward passes, since the last step of any optimizer
        self._protocol = protocol.Protocol(self)

    def _use(self) -> Client:
        client = self._client()
        if client is None:
            raise InvalidArgumentError("the client of this module no longer exists")
        return client

    # Lookups

    def look_up(self, engine: Engine, request: Any, training: bool, keep: Keep) -> Any:
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

    def start_ahead(self, engine: Engine, request: Any, used: Callable[[int, float], None]) -> Ahead:
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

    def collect(self, engine: Engine, lookup: Any) -> None:
        """Adds a lookup, to whose rows the backward pass of this thread has just added gradients."""
        running = self._current_pass(recomputes=False)
        with self._lock:
            if not any(lookup is other for _, other in running.lookups):
                running.lookups.append((engine, lookup))

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
        ready: list[Handle] = []
        with self._lock:
            self._remove(running)
            followers: set[Follower] = set()
            for engine in {id(engine): engine for engine, _ in running.lookups}.values():
                engine.pending += [
                    lookup for one, lookup in running.lookups if one is engine and not any(lookup is old for old in engine.pending)
                ]
                ready += [handle for handle in engine.handles if handle.follower is None]
                followers.update(handle.follower for handle in engine.handles if handle.follower is not None)
                if len(engine.pending) >= _MANY_LOOKUPS:
                    for handle in engine.handles:
                        if handle.follower is not None:
                            self._gather(handle)
            for follower in followers:
                follower.count_pass()
        if ready:
            self._protocol.check_push_of_pass(ready)
            self.push(ready)

    def _forget(self, running: _Pass) -> None:
        """Drops the gradients of a backward pass that has raised."""
        with self._lock:
            self._remove(running)
            shared = [one for engine, one in running.lookups if any(one is other for other in engine.pending)]
            for _, lookup in running.lookups:
                lookup.drop_gradients()
            running.lookups.clear()
        if shared:
            warnings.warn(
                "a backward pass that raised has dropped gradients of an earlier one, which wait for a step: both used the same "
                "graph (retain_graph=True)",
                stacklevel=2,
            )

    def discard(self) -> None:
        """Drops gradients that have not been pushed, and rows that were looked up for later: the rows have been replaced."""
        with self._lock:
            self._generation += 1
            for engine in self.engines:
                self._drop(engine.handles)
            for follower in self.followers:
                follower.unscaled = False
        self._kept.clear()

    def _drop(self, handles: Iterable[Handle]) -> bool:
        """Drops the gradients of these tables. Returns whether there were any."""
        found = False
        for handle in handles:
            engine = handle.engine
            found |= handle.gathered is not None
            handle.forget()
            for lookup in engine.pending:
                if lookup.has_gradients_of(handle.table):
                    found = True
                    lookup.drop_gradients_of(handle.table)
            engine.pending = [lookup for lookup in engine.pending if lookup.has_gradients()]
        return found

    # Gradients, as the parameters of tables show them

    def gradient_of(self, handle: Handle) -> TableGradient | None:
        with self._lock:
            if handle.follower is None:
                return None
            self._gather(handle)
            if handle.tensor is not None:
                return handle.tensor
            # Norms and the check of a GradScaler are collective, so a worker that has looked up no rows takes part in them.
            if handle.parameter.requires_grad and across.connects(self._use()) and handle.follower.reads_no_rows():
                return TableGradient.of(handle, None)
            return None

    def _gather(self, handle: Handle) -> None:
        engine = handle.engine
        lookups = [lookup for lookup in engine.pending if lookup.has_gradients_of(handle.table)]
        if not lookups:
            return
        handle.gathered = _core.take_gradients(handle.table, handle.dim, lookups, handle.gathered)
        handle.tensor = TableGradient.of(handle, handle.gathered)
        engine.pending = [lookup for lookup in engine.pending if lookup.has_gradients()]

    def set_gradient(self, handle: Handle, value: torch.Tensor | None) -> None:
        with self._lock:
            if value is None:
                self.dropped(handle)
                self._drop([handle])
                return
            own = self.gradient_of(handle)
            if value is own:
                return
            if own is not None and value.shape == own.shape:
                own.copy_(value)
            elif handle.gathered is None and value.shape == handle.parameter.shape:
                # torch.distributed.checkpoint does so before a step that makes an optimizer create its state.
                if handle.follower is not None:
                    handle.follower.assigned = True
            else:
                raise InvalidArgumentError(
                    f"the .grad of the parameter of table '{handle.table}' is given a tensor of shape {tuple(value.shape)}; it must "
                    f"be None, or have the shape of the gradients that wait, {'none' if own is None else tuple(own.shape)}"
                )

    def dropped(self, handle: Handle) -> None:
        """Is called when a program drops gradients. If a GradScaler has looked at them, it has skipped the step."""
        with self._lock:
            follower = handle.follower
            if follower is None:
                return
            follower.assigned = follower.steps = follower.passed = False
            if not follower.unscaled:
                return
            follower.unscaled = False
            follower.passes = 0
        self._skip_step()

    def _skip_step(self) -> None:
        # Other workers may have made this step, and tables in sync mode wait for all.
        self.skipped_steps += 1
        self.push([])

    def _has_gradients(self, follower: Follower) -> bool:
        return any(
            handle.gathered is not None or any(lookup.has_gradients_of(handle.table) for lookup in handle.engine.pending)
            for handle in follower.handles
        )

    # Pushes

    def step(self, follower: Follower) -> None:
        """Pushes for the step of an optimizer, which counts even if there are no gradients."""
        if not follower.handles:
            follower.warn_of_tables_that_left()
            return
        with self._lock:
            skips = follower.suspended or follower.assigned
            follower.assigned = follower.unscaled = follower.passed = False
            follower.passes = 0
            follower.steps = True
            if skips:
                return
            scale, overflows = follower.scale()
            if overflows:
                self._drop(follower.handles)
            else:
                groups = follower.groups()
                factors = {id(handle): follower.factor(handle, groups) for handle in follower.handles}
                if scale != 1.0:
                    for handle in follower.handles:
                        self._gather(handle)
                        if handle.tensor is not None:
                            handle.tensor.div_(scale)
        if overflows:
            self._skip_step()
        else:
            self.push(follower.handles, factors)

    def push(self, handles: Iterable[Handle] | None = None, factors: dict[int, float] | None = None) -> None:
        """Starts the push of the gradients of these tables, or of all; it counts as a step even if there are none.

        factors: multiplies the learning rates, by the id of the handle; the default is 1. Raises if it cannot start.
        """
        factors = factors or {}
        with self._lock:
            handles = [handle for engine in self.engines for handle in engine.handles] if handles is None else list(handles)
            still = [handle for handle in handles if factors.get(id(handle), 1.0) == 0.0]
            self._drop(still)
            by_table: dict[str, tuple[list[Any], list[Any]]] = {name: ([], []) for name in self.tables}
            rates: dict[str, float] = {}
            for handle in handles:
                lookups = [lookup for lookup in handle.engine.pending if lookup.has_gradients_of(handle.table)]
                gathered = handle.gathered
                handle.forget()
                if not lookups and gathered is None:
                    continue
                factor = factors.get(id(handle), 1.0)
                if rates.setdefault(handle.table, factor) != factor:
                    raise InvalidArgumentError(
                        f"two modules have table '{handle.table}', and their parameters are in groups with different learning rates"
                    )
                by_table[handle.table][0].extend(lookups)
                by_table[handle.table][1].extend([] if gathered is None else [gathered])
            # One rate of all tables is one of the push, which caches can then defer.
            common = next(iter(rates.values())) if len(set(rates.values())) == 1 else 1.0
            sources = [
                _core.PushSource(name, self.tables[name], rates.get(name, common) / common, *given) for name, given in by_table.items()
            ]
        self._kept.end_step()
        try:
            self._start(sources, common)
        finally:
            with self._lock:
                for engine in {id(handle.engine): handle.engine for handle in handles}.values():
                    engine.pending = [lookup for lookup in engine.pending if lookup.has_gradients()]

    def _start(self, sources: list[Any], factor: float) -> None:
        client = self._use()
        with client._push_step(None) as step:
            call = client._core.start_gradients(step.number, sources, factor, 1.0 / client.world_size)
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

    def warn_of_gradients_left(self) -> None:
        """Warns of gradients that no step has pushed."""
        with self._lock:
            left = sorted({f.names() for f in self.followers if not f.unscaled and self._has_gradients(f)})
        if left:
            warnings.warn(
                f"gradients of tables ({', '.join(left)}) were not pushed: step() of the optimizer that they follow was not called "
                f"after the last backward pass",
                stacklevel=3,
            )
