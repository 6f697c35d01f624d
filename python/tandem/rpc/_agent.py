# SPDX-License-Identifier: Apache-2.0
"""The RPC agent of this process: start, calls, shutdown."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import threading
from typing import Any, Callable, Mapping, Sequence

from tandem._futures import COMPLETER, Future
from tandem._load import load_core
from tandem.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, TandemError
from tandem.rpc import _errors, _functions
from tandem.rpc._codec import Decoder, Encoder

_core = load_core()
_logger = logging.getLogger("tandem")
# The time-out of calls without one.
_DEFAULT = 0.0


class _State:
    """The agent of this process. A forked child begins without one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.agent: Any = None
        self.allow_pickle = False
        self.forked = False
        self.used = False
        self.starts = 0  # in which the ranks waited for each other
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._forget)

    def get(self) -> Any:
        agent = self.agent
        if agent is None:
            # A call may arrive, and its function may call, before start() has returned.
            with self.lock:
                agent = self.agent
        if agent is None:
            self.check_process()
            raise FailedPreconditionError("tandem.rpc.start() has not been called, or tandem.rpc.shutdown() has")
        return agent

    def check_process(self) -> None:
        if self.forked:
            raise FailedPreconditionError(
                "this process was forked after tandem.rpc.start(), and threads do not survive a fork; start processes that use "
                "tandem.rpc by multiprocessing's method 'spawn'"
            )

    def _end(self) -> None:
        """Before the interpreter ends: functions must not need it afterwards."""
        agent, self.agent = self.agent, None
        if agent is not None and (late := agent.shutdown_now()):
            _logger.warning("the process ends although %s", late)

    def _forget(self) -> None:
        self.lock = threading.Lock()
        # gRPC cannot be used in the child of a process that used it.
        self.forked = self.forked or self.agent is not None or self.used
        self.agent = None


_STATE = _State()


class RpcFuture(Future[Any]):
    """The result of call_async(). Can be awaited. Thread-safe."""

    def __init__(self, call: Any) -> None:
        super().__init__(call, lambda outcome: outcome, COMPLETER)
        self._value_lock = threading.Lock()
        self._over = False
        self._value: Any = None
        self._error: TandemError | None = None

    def result(self, timeout: float | None = None) -> Any:
        """Blocks until the call has ended and returns its result. Raises its error, or TimeoutError after `timeout` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Blocks like result(); returns the call's error, or None."""
        if not self._over:
            self._wait(timeout)
            with self._value_lock:
                if not self._over:
                    self._take(self._call.outcome())
        return self._error

    def cancel(self) -> None:
        """Ends the call with CancelledError and tells the process that runs it. No effect on a call that has ended."""
        self._call.cancel()

    def _take(self, outcome: tuple[Any, ...]) -> None:
        if outcome[0] > 0:
            self._error = _errors.from_status(outcome[0], outcome[1])
        elif outcome[0] < 0:
            self._value = outcome[1]
        else:
            try:
                self._value = Decoder(outcome[2], outcome[3], Reference, _STATE.allow_pickle).decode(outcome[1])
            except TandemError as error:
                self._error = error
        self._over = True


class Reference:
    """A value that its owner keeps while a reference to it exists: torch.distributed.rpc's RRef.

    Made by remote() and own(). References can be arguments and results of remote functions. The owner keeps the value until all
    references are gone, or their processes have been silent for 10 s. Thread-safe.
    """

    def __init__(self, core: Any) -> None:
        self._core = core

    @property
    def owner(self) -> str:
        """The name of the process that has the value."""
        return self._core.owner

    @property
    def is_owner(self) -> bool:
        """Whether this process has the value."""
        return self._core.is_owner

    def to_here(self, timeout: float | None = None) -> Any:
        """Blocks until the value exists and has arrived, and returns the copy. Raises the error of the call that makes it."""
        return _finish(self.to_here_async(timeout))

    def to_here_async(self, timeout: float | None = None) -> RpcFuture:
        """Starts to_here() and returns a future."""
        return _fetch(self, timeout)

    def local_value(self, timeout: float | None = None) -> Any:
        """Returns the value itself, at its owner. Blocks until it exists."""
        return _local(self, timeout)

    def call(self, method: Any, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """Calls a method of the value at its owner and returns the result.

        `method` is the name of a public method, if the value's class is registered by @tandem.rpc.function. Otherwise it is a
        registered function, which gets this reference as its first argument.
        """
        return _finish(self.call_async(method, *args, timeout=timeout, **kwargs))

    def call_async(self, method: Any, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> RpcFuture:
        """Starts call() and returns a future."""
        if isinstance(method, str):
            return call_async(self.owner, _functions.METHOD, self, method, *args, timeout=timeout, **kwargs)
        return call_async(self.owner, method, self, *args, timeout=timeout, **kwargs)

    def __repr__(self) -> str:
        return f"<Reference to a value at {self.owner}>"

    def __reduce__(self) -> Any:
        raise TypeError("a tandem.rpc.Reference cannot be pickled; pass it as an argument of a remote function")


def _seconds(timeout: float | None, default: float = _DEFAULT) -> float:
    if timeout is None:
        return default
    if not timeout > 0 or math.isinf(timeout):
        raise InvalidArgumentError(f"timeout is {timeout}; it must be a number of seconds above 0")
    return float(timeout)


def start(
    name: str | None = None, *, store: str | None = None, peers: Mapping[str, str] | None = None, listen: str | None = None,
    wait_for: Sequence[str] | None = None, timeout: float = 60.0, call_timeout: float = 60.0, threads: int = 16,
    transport: str = "auto", pickle: bool = False,
) -> str:  # fmt: skip
    """Starts to serve the registered functions, so that others can call them and this process can call others. Returns its name.

    name          the name of this process, unique in the job. Under a launcher the default is its role and rank, "worker/0".
    store, peers  how the processes find each other outside of `tandem run`: the address of a `tandem store`, or the names and
                  addresses ("host:port") of all processes, this one among them. Without either, torch.distributed's default group
                  is used if there is one (torchrun, mpirun).
    listen        "host:port"; default: the interface that reaches the store, at a port that the kernel picks.
    wait_for      the names to wait for, at most `timeout` seconds. Default: all ranks of the job's main role, or all peers, so
                  every one of them has to call start(); with store=, nobody. [] waits for nobody.
    call_timeout  the time-out of calls that give none.
    threads       the number of functions that can run at a time.
    transport     "auto", "shm" or "grpc".
    pickle        allows objects that have no other encoding, both ways. Unpickling runs what the other process wants, and only
                  processes with this one's key can call it.

    Blocks until the others are there. Raises DeadlineExceededError, which names those that are not.
    """
    _STATE.check_process()
    with _STATE.lock:
        if _STATE.agent is not None:
            raise FailedPreconditionError(f"tandem.rpc has been started already, as {_STATE.agent.name}; call shutdown() first")
        if store is not None and peers is not None:
            raise InvalidArgumentError("give either store= or peers=")
        if transport not in ("auto", "shm", "grpc"):
            raise InvalidArgumentError(f"transport is {transport!r}; it must be 'auto', 'shm' or 'grpc'")
        if threads < 1:
            raise InvalidArgumentError(f"threads is {threads}; it must be at least 1")
        launched, job_store, member, rank, world_size, main_role, run_id, epoch = _core.rpc_job()
        prefix = "rpc"
        waits_for_all = wait_for is None
        if store is not None or peers is not None:
            waits_for_all = False
            run_id, epoch = "", 0
        elif launched and job_store:
            store = job_store
            waits_for_all = waits_for_all and main_role
        else:
            store, rank, world_size = _store_of_torch(timeout)
            member, run_id, epoch, launched = f"worker/{rank}", "", 0, True
        if name is None:
            if not launched:
                raise InvalidArgumentError("this process was not started by a launcher, so it needs a name: start('worker/0', ...)")
            name = member
        if peers is not None and wait_for is None:
            wait_for = [other for other in peers if other != name]
        if peers is not None and name not in peers and listen is None:
            raise InvalidArgumentError(f"peers has no address of {name}, this process; it has {', '.join(sorted(peers))}")
        if waits_for_all:
            # The ranks' names of an earlier start are still in the store.
            prefix = "rpc" if _STATE.starts == 0 else f"rpc~{_STATE.starts}"
        served = _functions.REGISTRY.all()
        server = _functions.Server(served, pickle, Reference)
        described = [(each.name, each.batched, each.max_batch, each.max_delay, each.exclusive) for each in served]
        _STATE.allow_pickle = pickle
        _STATE.used = True
        _STATE.agent = _core.start_rpc(
            name, store or "", sorted((peers or {}).items()), prefix, listen or "", transport, threads,
            _seconds(call_timeout), _seconds(timeout), rank, world_size if waits_for_all else 0, list(wait_for or []), run_id, epoch, member if epoch else "",
            [*described, (_functions.METHOD, False, 1, 0.0, "")], server.serve, server.serve_batch, server.encode,
        )  # fmt: skip
        _STATE.starts += waits_for_all
        return name


def _store_of_torch(timeout: float) -> tuple[str, int, int]:
    """Returns the address of a store that rank 0 serves, and announces through torch's store; this rank; the number of ranks."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        raise FailedPreconditionError(
            "there is no job in whose store the processes could find each other: start them by `tandem run`, call "
            "torch.distributed.init_process_group() first, or give store= or peers="
        )
    from tandem.torch import _rendezvous

    store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    return _rendezvous.job_store(store, rank, size, timeout), rank, size


def _encode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return Encoder(Reference, _STATE.allow_pickle).encode([list(args), kwargs] if kwargs else [list(args)])


def _name_of(function: Any) -> tuple[str, bool]:
    if isinstance(function, str):
        return function, False
    served = getattr(function, "__tandem_rpc__", None)
    if not isinstance(served, _functions.Served):
        raise InvalidArgumentError(f"{function!r} is not registered; decorate it with @tandem.rpc.function, or give its name")
    return served.name, served.idempotent


def call_async(to: str, function: str | Callable[..., Any], /, *args: Any, timeout: float | None = None, **kwargs: Any) -> RpcFuture:
    """Starts call() and returns a future. Arrays and tensors must not change until the call has ended."""
    agent = _STATE.get()
    called, idempotent = _name_of(function)
    started = agent.start(to, called, *_encode(args, kwargs), _seconds(timeout), idempotent)
    return RpcFuture(started)


def call(to: str, function: str | Callable[..., Any], /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
    """Calls a function of the process `to`, given as a registered function or by its name, and returns its result.

    Blocks for at most `timeout` seconds (default: start()'s `call_timeout`). Raises

    - RemoteError: the function has raised an exception
    - UnavailableError: the process is dead or has left
    - DeadlineExceededError: it did not answer in time, or did not start in time
    - UnimplementedError: it has no such function; the text names those it has
    - InvalidArgumentError: an argument cannot be sent
    """
    return _finish(call_async(to, function, *args, timeout=timeout, **kwargs))


def _finish(future: RpcFuture) -> Any:
    """Returns the result of a call. Ctrl-C ends the call where it runs, too."""
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def remote(to: str, function: str | Callable[..., Any], /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Reference:
    """Calls a function, or makes an object of a registered class, and leaves the result there. Returns a reference at once."""
    agent = _STATE.get()
    return Reference(agent.remote(to, _name_of(function)[0], *_encode(args, kwargs), _seconds(timeout)))


def own(value: Any) -> Reference:
    """Returns a reference to a value of this process."""
    return Reference(_STATE.get().own(value))


def _fetch(reference: Reference, timeout: float | None) -> RpcFuture:
    agent = _STATE.get()
    if reference.is_owner:
        return RpcFuture(agent.local(reference._core))
    return RpcFuture(agent.fetch(reference._core, _seconds(timeout)))


def _local(reference: Reference, timeout: float | None) -> Any:
    agent = _STATE.get()
    future = RpcFuture(agent.local(reference._core))
    try:
        return future.result(60.0 if timeout is None else timeout)
    except TimeoutError as error:
        if isinstance(error, TandemError):
            raise
        raise DeadlineExceededError(f"the value does not exist after {timeout or 60.0:g} s") from None


def workers() -> dict[str, str]:
    """Returns the names and addresses of the processes that have started."""
    return _STATE.get().workers()


def name() -> str:
    """Returns the name of this process."""
    return _STATE.get().name


def current() -> _functions.Context:
    """Returns the call that this thread's function serves."""
    context = getattr(_functions.CURRENT, "context", None)
    if context is None:
        raise FailedPreconditionError("this thread runs no remote function (batched functions serve many calls)")
    return context


def shutdown(timeout: float = 60.0, *, graceful: bool = True) -> None:
    """Waits until every process has called shutdown() and no call is under way, at most `timeout` seconds; then stops to serve.

    Raises DeadlineExceededError with the names of the processes that are not ready; this one has left all the same. With
    graceful=False it leaves at once: calls to this process end with UnavailableError, calls from it with CancelledError.
    """
    seconds = _seconds(timeout)
    agent = _STATE.get()
    try:
        if graceful:
            agent.shutdown(seconds)
    finally:
        late = agent.shutdown_now()
        with _STATE.lock:
            if _STATE.agent is agent:
                _STATE.agent = None
        if late:
            _logger.warning("%s", late)
