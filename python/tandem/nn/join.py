# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.algorithms.Join for tables: a worker that has no more data pushes empty steps for those that have."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook
from torch.nn.parallel import DistributedDataParallel

from tandem.nn import across

if TYPE_CHECKING:
    from tandem.nn.modules import _Module
    from tandem.nn.session import Session


class TablesJoinHook(JoinHook):
    """Pushes for a worker that has joined. Of several modules of a client, one hook does it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        leader = session.join_leader() if session.join_leader is not None else None
        if leader is None:
            session.join_leader = weakref.ref(self)

    def _leads(self) -> bool:
        return self._session.join_leader is not None and self._session.join_leader() is self

    def main_hook(self) -> None:
        if self._leads():
            for _ in range(max(1, len(self._session.followers))):
                self._session.push([])

    def post_hook(self, is_last_joiner: bool) -> None:
        if not self._leads():
            return
        self._session.join_leader = None
        client = self._session._use()
        # The workers may have pushed different numbers of steps: those that joined early one for each batch of the others.
        last = across.largest(client.step) if across.connects(client) else client.step
        while client.step < last:
            self._session.push([])


class _JoinHooks(JoinHook):
    """Several hooks as one."""

    def __init__(self, hooks: list[JoinHook]) -> None:
        self._hooks = hooks

    def main_hook(self) -> None:
        for hook in self._hooks:
            hook.main_hook()

    def post_hook(self, is_last_joiner: bool) -> None:
        for hook in self._hooks:
            hook.post_hook(is_last_joiner)


def join_device() -> torch.device:
    return across.device() if dist.is_initialized() else torch.device("cpu")


def make_ddp_join_tables(module_class: type[_Module]) -> None:
    """Makes join() of DistributedDataParallel, which asks the wrapped model for nothing, include the tables inside of it."""
    own_hook = DistributedDataParallel.join_hook
    if hasattr(own_hook, "_includes_tables"):
        return

    def join_hook(self: DistributedDataParallel, **kwargs: Any) -> JoinHook:
        sessions = {id(m._engine.session): m._engine.session for m in self.module.modules() if isinstance(m, module_class)}
        hook = own_hook(self, **kwargs)
        return _JoinHooks([hook, *(TablesJoinHook(session) for session in sessions.values())]) if sessions else hook

    join_hook._includes_tables = True  # type: ignore[attr-defined]
    DistributedDataParallel.join_hook = join_hook  # type: ignore[method-assign]
