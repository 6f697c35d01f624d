# SPDX-License-Identifier: Apache-2.0
"""The process group that torch.distributed gets from the backend "tandem"."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, PrefixStore, ProcessGroup, _allow_inflight_collective_as_graph_input

from tandem.torch._backend import TandemBackend, made
from tandem.torch._compiled import not_compiled
from tandem.torch._older_group import OlderProcessGroup, backends_may_be_python
from tandem.torch._work import TandemWork

# With one of these, what torch's dispatcher adds to calls is wanted: its flight recorder, checks, the worker server.
_OBSERVERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_DIST_NAN_CHECK", "TORCH_WORKER_SERVER_SOCKET")

_dispatch_modes = torch._C._len_torch_dispatch_stack
_profiler_enabled = torch.autograd._profiler_enabled

# What ProcessGroup.name() says of a group whose (first) backend is no built-in one.
_CUSTOM = "custom"


def create_group(opts: Any, options: Any) -> Backend | ProcessGroup:
    """Makes the backend of a new group; torch.distributed calls it on every member.

    A group that has only this backend becomes a TandemProcessGroup; before torch 2.15, each one an OlderProcessGroup.
    """
    make = TandemBackend if backends_may_be_python() else OlderProcessGroup
    backend = make(
        opts.store, opts.group_rank, opts.group_size, opts.timeout, opts.group_id, options, opts.global_ranks_in_group
    )
    if isinstance(backend, OlderProcessGroup):
        return backend
    group = getattr(opts, "process_group", None)
    if group is None or group.name() != _CUSTOM:
        return backend  # torch adds the backends of the other devices
    return TandemProcessGroup.of(opts.store, backend)


@not_compiled
class TandemProcessGroup(ProcessGroup):
    """A group with one backend, TandemBackend.

    torch 2.15 wraps the works of a Python backend into objects that say neither is_completed() nor source_rank(). The
    methods of this class take the same way through torch's dispatcher, so that profilers and dispatch modes see the
    calls, and then return the backend's own work.

    Where nothing looks on, frequent calls go to the backend at once, which takes 6 us instead of 18.
    """

    backend: TandemBackend
    _watched = any(os.environ.get(name, "0") != "0" for name in _OBSERVERS)

    @classmethod
    def of(cls, store: Any, backend: TandemBackend) -> TandemProcessGroup:
        group = cls(getattr(store, "underlying_store", store), backend.rank(), backend.size())
        group.backend = backend
        backend.splits = True
        group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, backend)
        return group

    def getBackendName(self) -> str:
        return "tandem"

    def register_pre_hook(self, *args: Any, **kwargs: Any) -> None:
        self._watched = True
        super().register_pre_hook(*args, **kwargs)

    def register_post_hook(self, *args: Any, **kwargs: Any) -> None:
        self._watched = True
        super().register_post_hook(*args, **kwargs)

    def _unwatched(self, tensor: Any) -> bool:
        """Returns whether a call with this tensor may go around torch's dispatcher."""
        return (
            not self._watched
            and type(tensor) is torch.Tensor
            and _dispatch_modes() == 0
            and not _profiler_enabled()
            and not _allow_inflight_collective_as_graph_input()
        )

    def split_group(
        self,
        new_ranks: list[int],
        timeout: datetime.timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> TandemProcessGroup | None:
        """Returns a group of `new_ranks`, which are ranks of this group; None on other ranks."""
        if self.rank() not in new_ranks:
            return None
        name = group_name or f"{self.group_name}:split:{','.join(map(str, new_ranks))}"
        if timeout is None:
            timeout = self.backend.options._timeout
        global_ranks = [self.backend.options.global_ranks_in_group[rank] for rank in new_ranks]
        store = PrefixStore("cpu/", PrefixStore(f"{name}/", self.get_group_store()))
        backend = TandemBackend(
            store, new_ranks.index(self.rank()), len(new_ranks), timeout, name, opts or self.backend.options, global_ranks
        )
        group = TandemProcessGroup.of(store, backend)
        group._set_group_name(name)
        group._set_group_desc(group_desc or f"{self.group_desc}:split")
        return group

    # A method that calls super() must have the name of the C++ method: pybind11 recognises by it that the call shall
    # not come back here.

    def broadcast(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 2 and isinstance(args[0], list) and args[0] and self._unwatched(args[0][0]):
            return self.backend.broadcast(*args)
        with _OwnWork() as own:
            own.wrapped = super().broadcast(*args, **kwargs)
        return own.work

    def allreduce(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 2 and isinstance(args[0], list) and args[0] and self._unwatched(args[0][0]):
            return self.backend.allreduce(*args)
        with _OwnWork() as own:
            own.wrapped = super().allreduce(*args, **kwargs)
        return own.work

    def allreduce_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().allreduce_coalesced(*args, **kwargs)
        return own.work

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().reduce(*args, **kwargs)
        return own.work

    def allgather(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().allgather(*args, **kwargs)
        return own.work

    def allgather_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().allgather_coalesced(*args, **kwargs)
        return own.work

    def all_gather_single(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 3 and self._unwatched(args[0]):
            return self.backend.all_gather_single(*args)
        with _OwnWork() as own:
            own.wrapped = super().all_gather_single(*args, **kwargs)
        return own.work

    def all_gather_single_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().all_gather_single_coalesced(*args, **kwargs)
        return own.work

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().gather(*args, **kwargs)
        return own.work

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().scatter(*args, **kwargs)
        return own.work

    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().reduce_scatter(*args, **kwargs)
        return own.work

    def reduce_scatter_single(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 3 and self._unwatched(args[0]):
            return self.backend.reduce_scatter_single(*args)
        with _OwnWork() as own:
            own.wrapped = super().reduce_scatter_single(*args, **kwargs)
        return own.work

    def reduce_scatter_single_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().reduce_scatter_single_coalesced(*args, **kwargs)
        return own.work

    def all_to_all_single(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 5 and self._unwatched(args[0]):
            return self.backend.all_to_all_single(*args)
        with _OwnWork() as own:
            own.wrapped = super().all_to_all_single(*args, **kwargs)
        return own.work

    def alltoall(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().alltoall(*args, **kwargs)
        return own.work

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().barrier(*args, **kwargs)
        return own.work

    def send(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 3 and isinstance(args[0], list) and args[0] and self._unwatched(args[0][0]):
            return self.backend.send(*args)
        with _OwnWork() as own:
            own.wrapped = super().send(*args, **kwargs)
        return own.work

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 3 and isinstance(args[0], list) and args[0] and self._unwatched(args[0][0]):
            return self.backend.recv(*args)
        with _OwnWork() as own:
            own.wrapped = super().recv(*args, **kwargs)
        return own.work

    def recv_anysource(self, *args: Any, **kwargs: Any) -> Any:
        with _OwnWork() as own:
            own.wrapped = super().recv_anysource(*args, **kwargs)
        return own.work


class _OwnWork:
    """Collects the work that the backend makes in this thread."""

    __slots__ = ("wrapped",)

    def __enter__(self) -> _OwnWork:
        made.wanted, made.work = True, None
        return self

    def __exit__(self, *error: object) -> None:
        made.wanted = False
        if error[0] is not None:
            made.work = None

    @property
    def work(self) -> TandemWork | Any:
        work, made.work = made.work, None
        return self.wrapped if work is None else work
