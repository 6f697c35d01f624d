# SPDX-License-Identifier: Apache-2.0
"""The process group for torch before 2.15, whose C++ code cannot call a backend that is written in Python."""

from __future__ import annotations

import datetime
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions, AllreduceCoalescedOptions, Backend, BarrierOptions, ProcessGroup, ReduceScatterOptions,
)  # fmt: skip

from tandem.torch._backend import Collectives
from tandem.torch._compiled import not_compiled
from tandem.torch._work import TandemWork


def backends_may_be_python() -> bool:
    """Returns whether this torch lets a Python class derive from its Backend."""

    class Probe(Backend):
        pass

    try:
        Probe(0, 1)
    except TypeError:
        return False
    return True


@not_compiled
class OlderProcessGroup(Collectives, ProcessGroup):
    """A group whose collectives are those of the C++ library. It has no backends, in torch's sense, and CPU tensors only.

    torch's C++ code (DDP, functional collectives) calls the methods that it knows as virtual ones; torch.distributed calls all
    of them from Python. What asks the group for the backend of a device in C++, as FSDP2 does, fails.
    """

    def __init__(self, store: Any, *args: Any) -> None:
        super().__init__(store, *args)
        self._store = getattr(store, "underlying_store", store)
        self._name, self._desc = self._options.group_name, ""
        self._coalesced: list[TandemWork] | None = None

    # torch would ask the backends for these.

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Any:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f'this group of the backend "tandem" has CPU tensors only, none on {device}')
        return self

    supports_splitting = False
    supports_coalescing = False
    _supports_time_estimate = False

    # Calls with other arguments than in torch 2.15.

    def barrier(self, opts: Any = None) -> TandemWork:
        return super().barrier(opts or BarrierOptions())

    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        opts = BarrierOptions()
        opts.timeout = timeout if timeout is not None else datetime.timedelta(seconds=self._timeout)
        super().monitored_barrier(opts, wait_all_ranks)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> TandemWork:
        return super().allreduce_coalesced(tensors, opts or AllreduceCoalescedOptions())

    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> TandemWork:
        return super().all_gather_single_coalesced(outputs, inputs, opts or AllgatherOptions())

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> TandemWork:
        return super().reduce_scatter_single_coalesced(outputs, inputs, opts or ReduceScatterOptions())

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> TandemWork:
        return self._receive(tensors, -1, tag)

    # Coalesced calls run one after the other, as they come.

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> TandemWork:
        works, self._coalesced = self._coalesced or [], None

        def finish() -> None:
            for work in works:
                work._complete()

        calls = [call for work in works for call in work._calls]
        return TandemWork(calls, [tensor for work in works for tensor in work._outputs], finish)

    def _work(self, *args: Any) -> TandemWork:
        work = super()._work(*args)
        if self._coalesced is not None:
            # If a coalesced call raises, torch does not end the coalescing; works that have succeeded must not pile up.
            self._coalesced = [earlier for earlier in self._coalesced if not earlier.is_success()] + [work]
        return work
