# SPDX-License-Identifier: Apache-2.0
"""Notices programs whose tables do not follow the optimizer, although torch's protocol (accumulation, GradScaler) needs it."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Iterable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tandem.errors import FailedPreconditionError

if TYPE_CHECKING:
    from tandem.nn.handle import Handle
    from tandem.nn.session import Session

_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


class Protocol:
    """What was noticed about one session."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._looked_for_scaler = False
        self._warned = False
        if not _SESSIONS:
            _register_once()
        _SESSIONS.add(session)

    def check_push_of_pass(self, handles: Iterable[Handle]) -> None:
        """Is called before the end of a backward pass pushes the gradients of tables that follow no optimizer."""
        session = self._session()
        assert session is not None
        if not self._looked_for_scaler:
            # The scaler of a loss exists before the first backward pass.
            self._looked_for_scaler = True
            scaler = _scaler_in_use()
            if scaler is not None:
                session._drop(handles)
                self._looked_for_scaler = False
                raise FailedPreconditionError(
                    f"a GradScaler multiplies losses by {scaler.get_scale():g} in this process, and the tables "
                    f"{_names(handles)} follow no optimizer, so that backward() would push gradients that are too large: call "
                    f"follow(optimizer) of their module, with the optimizer that the scaler steps"
                )
        session.pushes_of_passes += 1
        if session.followers and not self._warned:
            self._warned = True
            warnings.warn(
                f"backward() has pushed the gradients of {_names(handles)}, which follow no optimizer, while other tables of the "
                f"client wait for step() of theirs: call follow(optimizer) of every module",
                stacklevel=3,
            )

    def after_step(self) -> None:
        """Is called after the step of any optimizer."""
        session = self._session()
        if session is None or session._client() is None:
            return
        pushes, session.pushes_of_passes = session.pushes_of_passes, 0
        if pushes > 1 and not self._warned and not session._use().closed:
            self._warned = True
            warnings.warn(
                f"{pushes} backward passes have each pushed gradients of tables before one step() of an optimizer, which adds up "
                f"those of its parameters: call follow(optimizer) of the module if the tables belong to this optimizer",
                stacklevel=4,
            )


def _names(handles: Iterable[Handle]) -> str:
    return ", ".join(sorted({f"'{handle.table}'" for handle in handles}))


def _scaler_in_use() -> Any:
    """Returns a GradScaler of this process that has scaled a loss, or None."""
    scaler = torch.amp.GradScaler
    for each in gc.get_objects():
        if issubclass(type(each), scaler) and each.is_enabled() and each._scale is not None:
            return each
    return None


_registered: list[Any] = []


def _register_once() -> None:
    if not _registered:
        _registered.append(register_optimizer_step_post_hook(_after_step))


def _after_step(*_: Any) -> None:
    for session in list(_SESSIONS):
        session._protocol.after_step()
