# SPDX-License-Identifier: Apache-2.0
"""The collectives of torch.distributed over a process group of the C++ library."""

from __future__ import annotations

import atexit
import datetime
import functools
import sys
import threading
import weakref
from typing import Any, Callable, Sequence, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ErrorType

from tandem._ending import describe, fatal_error
from tandem.errors import AbortedError, InvalidArgumentError, TandemError, UnavailableError, UnimplementedError
from tandem.torch import _failure, _rendezvous, _sparse
from tandem.torch._compiled import not_compiled
from tandem.torch._tensors import Buffers, flat, moved, only, reduced, same_dtype
from tandem.torch._work import TandemWork, as_torch_error

F = TypeVar("F", bound=Callable[..., Any])

# The longest text of an exception that the other ranks get.
_LONGEST_REASON = 200


class Options(Backend.Options):
    """Options of the backend, for init_process_group(pg_options=...) and new_group.

    transport: "auto", or a backend of docs/collectives.md, such as "shm". Empty: TANDEM_BACKEND, or "auto".
    """

    def __init__(self, transport: str = "", timeout: datetime.timedelta = datetime.timedelta(minutes=30)) -> None:
        super().__init__("tandem", timeout)
        self.transport = transport


class _Made(threading.local):
    """The last work that a backend has made in this thread, while its process group asks for it (_group.py)."""

    wanted = False
    work: TandemWork | None = None


made = _Made()


def _translated(function: F) -> F:
    """Turns Tandem's errors into torch's."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TandemError as error:
            raise as_torch_error(error) from error

    return call  # type: ignore[return-value]


_backends: weakref.WeakSet[Collectives] = weakref.WeakSet()


@atexit.register
def _leave_groups() -> None:
    """Leaves the groups that the program has not destroyed. Operations that still run are aborted.

    If an exception ends the program, it is reported to the launcher first, and the other ranks get its text.
    """
    error = fatal_error()
    backends = list(_backends)
    for backend in backends:
        backend._note_failure()
    if error is not None:
        _failure.ENDING.report(error)
    elif any(backend.size() > 1 and not backend.connection.closed for backend in backends):
        _failure.ENDING.report_exit()
    for backend in backends:
        if error is not None:
            backend.connection.abort(_one_line(error))
        elif backend.connection.running > 0:
            backend.connection.abort("the process ends")
        backend.connection.close()
    if not isinstance(error, KeyboardInterrupt):
        _failure.ENDING.outlive_the_cause()


def _one_line(error: BaseException) -> str:
    lines = describe(error).splitlines()
    return lines[0][:_LONGEST_REASON] if lines else ""


@not_compiled
class Collectives:
    """What torch.distributed calls for CPU tensors; classes of torch's kind derive from it.

    Calls whose options say async_op=False block; all others return at once, and run in their order.
    """

    rank: Callable[[], int]  # of the class of torch's
    size: Callable[[], int]

    @_translated
    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: datetime.timedelta,
        group: str,
        options: Backend.Options | None = None,
        global_ranks: Sequence[int] = (),
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        if options is not None and not isinstance(options, Backend.Options):
            raise InvalidArgumentError(f"pg_options is a {type(options).__name__}; it must be tandem.torch.Options")
        self._options = Options(getattr(options, "transport", ""), timeout)
        self._options.group_name = group
        self._options.global_ranks_in_group = list(global_ranks) or list(range(size))
        self._timeout = timeout.total_seconds()
        self._sequence = 0
        self._aborted = False
        first = size > 1 and not global_ranks
        if first:
            _failure.announce(store, rank)
        self.connection: Any = _rendezvous.connect(
            store, group if global_ranks else "default", rank, self._options.global_ranks_in_group, self._timeout,
            self._options.transport, default=not global_ranks,
        )  # fmt: skip
        _failure.ENDING.begin(_failure.processes_here(store, rank, size) if first else ())
        _backends.add(self)

    # What torch asks of a backend.

    @property
    def options(self) -> Any:
        return self._options

    @property
    def transport(self) -> str:
        """The backend of the C++ library that carries the data, such as "shm"."""
        return self.connection.backend

    def getBackendName(self) -> str:
        return "tandem"

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout.total_seconds()
        self._options._timeout = timeout

    _set_default_timeout = set_timeout

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Does nothing: ranks connect when the group is made."""

    def perform_nocolor_split(self, device: torch.device | None) -> None:
        """Does nothing: ranks outside of a new group take no part in it."""

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def get_error(self) -> ErrorType:
        try:
            self.connection.check()
        except TandemError:
            return ErrorType.COMM_ERROR
        return ErrorType.SUCCESS

    def abort(self) -> None:
        self._aborted = True
        self.connection.abort("abort() was called")

    def shutdown(self) -> None:
        self._note_failure()
        # `finally: destroy_process_group()` leaves the group before the exception ends the program.
        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            _failure.ENDING.report(error)
        self.connection.close()

    # Helpers.

    def _note_failure(self) -> None:
        """Remembers whether another rank has broken this group."""
        if self.connection.closed or self._aborted:
            return
        try:
            self.connection.check()
        except (AbortedError, UnavailableError):
            _failure.ENDING.failed_by_peer = True
        except TandemError:
            pass

    def _seconds(self, options: Any) -> float:
        seconds = options.timeout.total_seconds()
        return seconds if seconds > 0 else self._timeout

    def _work(self, calls: list[Any], outputs: list[torch.Tensor], buffers: Buffers | None = None) -> TandemWork:
        """Returns the work of `calls`; None among them stands for a call that is completed."""
        self._sequence += 1
        running = [call for call in calls if call is not None]
        finish = buffers.finish if buffers is not None else None
        if not running and finish is not None:
            finish()
            finish = None
        work = TandemWork(running, outputs, finish)
        if made.wanted:
            made.work = work
        return work

    # Collectives.

    @_translated
    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> TandemWork:
        tensor = only(tensors, "all_reduce")
        if tensor.layout is torch.sparse_coo:
            return self.allreduce_sparse(tensors, opts)
        buffers = Buffers()
        memory = buffers.update(tensor, "all_reduce")
        dtype, count, op, factor = reduced(tensor.dtype, opts.reduceOp)
        call = self.connection.all_reduce(
            memory.data_ptr(), memory.numel() * count, dtype, op, factor, opts.asyncOp, self._seconds(opts), memory
        )
        return self._work([call], tensors, buffers)

    @_translated
    def allreduce_sparse(self, tensors: list[torch.Tensor], opts: Any) -> TandemWork:
        """Blocks, also if asked not to: the number of rows is known only after a first exchange."""
        tensor = only(tensors, "all_reduce")
        _sparse.all_reduce(self.connection, tensor, opts.reduceOp, self.rank(), self.size(), self._seconds(opts))
        return self._work([], tensors)

    @_translated
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> TandemWork:
        buffers = Buffers()
        memory = [buffers.update(tensor, "all_reduce_coalesced") for tensor in tensors]
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in memory:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        kinds = [(reduced(dtype, opts.reduceOp), group) for dtype, group in by_dtype.items()]
        calls = [
            self.connection.all_reduce_coalesced(
                flat(group, count), dtype, op, factor, opts.asyncOp, self._seconds(opts), group
            )
            for (dtype, count, op, factor), group in kinds
        ]
        return self._work(calls, tensors, buffers)

    @_translated
    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> TandemWork:
        tensor = only(tensors, "reduce")
        buffers = Buffers()
        memory = buffers.update(tensor, "reduce") if opts.rootRank == self.rank() else buffers.read(tensor, "reduce")
        dtype, count, op, factor = reduced(tensor.dtype, opts.reduceOp)
        call = self.connection.reduce(
            memory.data_ptr(), memory.numel() * count, dtype, opts.rootRank, op, factor, opts.asyncOp, self._seconds(opts), memory
        )
        return self._work([call], tensors, buffers)

    @_translated
    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> TandemWork:
        tensor = only(tensors, "broadcast")
        buffers = Buffers()
        root = opts.rootRank == self.rank()
        memory = buffers.read(tensor, "broadcast") if root else buffers.write(tensor, "broadcast")
        dtype, count = moved(tensor.dtype)
        call = self.connection.broadcast(
            memory.data_ptr(), memory.numel() * count, dtype, opts.rootRank, opts.asyncOp, self._seconds(opts), memory
        )
        return self._work([call], tensors, buffers)

    def _all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, opts: Any, buffers: Buffers) -> Any:
        same_dtype(outputs, tensor.dtype, "all_gather")
        memory = buffers.read(tensor, "all_gather")
        targets = [buffers.write(output, "all_gather") for output in outputs]
        dtype, count = moved(tensor.dtype)
        return self.connection.all_gather(
            memory.data_ptr(), memory.numel() * count, flat(targets, count), dtype, opts.asyncOp, self._seconds(opts), (memory, targets)
        )

    @_translated
    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> TandemWork:
        buffers = Buffers()
        tensors = only(outputs, "all_gather")
        return self._work([self._all_gather(tensors, only(inputs, "all_gather"), opts, buffers)], tensors, buffers)

    @_translated
    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> TandemWork:
        buffers = Buffers()
        # outputs[rank][i] is input i of that rank.
        if len(outputs) != self.size() or any(len(tensors) != len(inputs) for tensors in outputs):
            raise InvalidArgumentError(
                f"all_gather_coalesced needs one output list for each of the {self.size()} ranks, with {len(inputs)} tensors each"
            )
        calls = [
            self._all_gather([tensors[i] for tensors in outputs], tensor, opts, buffers) for i, tensor in enumerate(inputs)
        ]
        return self._work(calls, [tensor for tensors in outputs for tensor in tensors], buffers)

    def _all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any, buffers: Buffers) -> Any:
        same_dtype([output], tensor.dtype, "all_gather_single")
        memory, target = buffers.read(tensor, "all_gather_single"), buffers.write(output, "all_gather_single")
        dtype, count = moved(tensor.dtype)
        return self.connection.all_gather_single(
            memory.data_ptr(), memory.numel() * count, target.data_ptr(), target.numel() * count, dtype, opts.asyncOp,
            self._seconds(opts), (memory, target),
        )  # fmt: skip

    @_translated
    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> TandemWork:
        buffers = Buffers()
        return self._work([self._all_gather_single(output, tensor, opts, buffers)], [output], buffers)

    @_translated
    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> TandemWork:
        buffers = Buffers()
        calls = [self._all_gather_single(output, tensor, opts, buffers) for output, tensor in zip(outputs, inputs, strict=True)]
        return self._work(calls, outputs, buffers)

    @_translated
    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> TandemWork:
        tensor = only(inputs, "gather")
        tensors = only(outputs, "gather") if opts.rootRank == self.rank() else []
        same_dtype(tensors, tensor.dtype, "gather")
        buffers = Buffers()
        memory = buffers.read(tensor, "gather")
        targets = [buffers.write(output, "gather") for output in tensors]
        dtype, count = moved(tensor.dtype)
        call = self.connection.gather(
            memory.data_ptr(), memory.numel() * count, flat(targets, count), dtype, opts.rootRank, opts.asyncOp,
            self._seconds(opts), (memory, targets),
        )  # fmt: skip
        return self._work([call], tensors, buffers)

    @_translated
    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> TandemWork:
        output = only(outputs, "scatter")
        tensors = only(inputs, "scatter") if opts.rootRank == self.rank() else []
        same_dtype(tensors, output.dtype, "scatter")
        buffers = Buffers()
        sources = [buffers.read(tensor, "scatter") for tensor in tensors]
        memory = buffers.write(output, "scatter")
        dtype, count = moved(output.dtype)
        call = self.connection.scatter(
            flat(sources, count), memory.data_ptr(), memory.numel() * count, dtype, opts.rootRank, opts.asyncOp,
            self._seconds(opts), (memory, sources),
        )  # fmt: skip
        return self._work([call], outputs, buffers)

    @_translated
    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> TandemWork:
        output, tensors = only(outputs, "reduce_scatter"), only(inputs, "reduce_scatter")
        same_dtype(tensors, output.dtype, "reduce_scatter")
        buffers = Buffers()
        sources = [buffers.read(tensor, "reduce_scatter") for tensor in tensors]
        memory = buffers.write(output, "reduce_scatter")
        dtype, count, op, factor = reduced(output.dtype, opts.reduceOp)
        call = self.connection.reduce_scatter(
            flat(sources, count), memory.data_ptr(), memory.numel() * count, dtype, op, factor, opts.asyncOp,
            self._seconds(opts), (memory, sources),
        )  # fmt: skip
        return self._work([call], outputs, buffers)

    def _reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any, buffers: Buffers) -> Any:
        same_dtype([output], tensor.dtype, "reduce_scatter_single")
        memory, target = buffers.read(tensor, "reduce_scatter_single"), buffers.write(output, "reduce_scatter_single")
        dtype, count, op, factor = reduced(tensor.dtype, opts.reduceOp)
        return self.connection.reduce_scatter_single(
            memory.data_ptr(), memory.numel() * count, target.data_ptr(), target.numel() * count, dtype, op, factor, opts.asyncOp,
            self._seconds(opts), (memory, target),
        )  # fmt: skip

    @_translated
    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> TandemWork:
        buffers = Buffers()
        return self._work([self._reduce_scatter_single(output, tensor, opts, buffers)], [output], buffers)

    @_translated
    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> TandemWork:
        buffers = Buffers()
        calls = [
            self._reduce_scatter_single(output, tensor, opts, buffers) for output, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._work(calls, outputs, buffers)

    def _parts(self, tensor: torch.Tensor, sizes: list[int], count: int, what: str) -> list[int]:
        """Returns the addresses and elements of the parts of a contiguous tensor, by rank."""
        rows = tensor.size(0) if tensor.dim() > 0 else 0
        if not sizes:
            if rows % self.size() != 0:
                raise InvalidArgumentError(f"{what} has {rows} rows, which {self.size()} ranks cannot share evenly; give split sizes")
            sizes = [rows // self.size()] * self.size()
        if len(sizes) != self.size() or sum(sizes) != rows or min(sizes) < 0:
            raise InvalidArgumentError(f"the split sizes of {what}, {sizes}, must be one for each rank and add up to its {rows} rows")
        row = tensor.numel() // rows if rows > 0 else 0
        address = tensor.data_ptr()
        parts = []
        for size in sizes:
            parts += [address, size * row * count]
            address += size * row * tensor.element_size()
        return parts

    @_translated
    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any
    ) -> TandemWork:
        same_dtype([output], tensor.dtype, "all_to_all_single")
        buffers = Buffers()
        memory, target = buffers.read(tensor, "all_to_all_single"), buffers.write(output, "all_to_all_single")
        dtype, count = moved(tensor.dtype)
        sources, targets = self._parts(memory, input_sizes, count, "input"), self._parts(target, output_sizes, count, "output")
        if input_sizes or output_sizes:
            call = self.connection.all_to_all(sources, targets, dtype, opts.asyncOp, self._seconds(opts), (memory, target))
        else:
            call = self.connection.all_to_all_single(
                memory.data_ptr(), target.data_ptr(), memory.numel() * count, target.numel() * count, dtype, opts.asyncOp,
                self._seconds(opts), (memory, target),
            )  # fmt: skip
        return self._work([call], [output], buffers)

    @_translated
    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> TandemWork:
        same_dtype([*outputs, *inputs], outputs[0].dtype if outputs else torch.uint8, "all_to_all")
        buffers = Buffers()
        sources = [buffers.read(tensor, "all_to_all") for tensor in inputs]
        targets = [buffers.write(tensor, "all_to_all") for tensor in outputs]
        dtype, count = moved(outputs[0].dtype) if outputs else moved(torch.uint8)
        call = self.connection.all_to_all(
            flat(sources, count), flat(targets, count), dtype, opts.asyncOp, self._seconds(opts), (sources, targets)
        )
        return self._work([call], outputs, buffers)

    @_translated
    def barrier(self, opts: Any) -> TandemWork:
        return self._work([self.connection.barrier(opts.asyncOp, self._seconds(opts))], [])

    @_translated
    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Names every rank that did not come, on every rank that did; the group stays usable."""
        seconds = opts.timeout.total_seconds()  # 0: does not wait
        self.connection.monitored_barrier(seconds if seconds >= 0 else self._timeout)

    # Point to point. These never block, and have the group's timeout.

    @_translated
    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> TandemWork:
        tensor = only(tensors, "send")
        buffers = Buffers()
        memory = buffers.read(tensor, "send")
        dtype, count = moved(tensor.dtype)
        call = self.connection.send(memory.data_ptr(), memory.numel() * count, dtype, rank, tag, self._timeout, memory)
        return self._work([call], tensors, buffers)

    def _receive(self, tensors: list[torch.Tensor], rank: int, tag: int) -> TandemWork:
        tensor = only(tensors, "recv")
        buffers = Buffers()
        memory = buffers.write(tensor, "recv")
        dtype, count = moved(tensor.dtype)
        call = self.connection.receive(memory.data_ptr(), memory.numel() * count, dtype, rank, tag, self._timeout, memory)
        return self._work([call], tensors, buffers)

    @_translated
    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> TandemWork:
        if rank < 0:
            raise InvalidArgumentError(f"recv from rank {rank}: there is no such rank")
        return self._receive(tensors, rank, tag)

    @_translated
    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> TandemWork:
        if not made.wanted:
            # torch 2.15 would report the sender as -1.
            raise UnimplementedError("recv from any rank needs a group of the backend \"tandem\" alone, without other devices")
        return self._receive(tensors, -1, tag)

    # Names of torch before 2.15.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


@not_compiled
class TandemBackend(Collectives, Backend):
    """The backend of a group, for torch 2.15 and later. Made by create_group (_group.py)."""

    # True in a TandemProcessGroup. Elsewhere torch 2.15 crashes on a split without this rank.
    splits = False

    @property
    def supports_splitting(self) -> bool:
        return self.splits

    # torch 2.15 calls the properties of Python backends without end unless they are overridden.
    supports_coalescing: property = property(lambda self: False)
    _supports_time_estimate: property = property(lambda self: False)
    supports_shrinking: property = property(lambda self: False)
    supports_reconfigure: property = property(lambda self: False)
    supports_window: property = property(lambda self: False)
