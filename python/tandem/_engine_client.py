# SPDX-License-Identifier: Apache-2.0
"""What clients of replay and weight servers have in common."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from tandem.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self


def seconds_of(timeout: Any, default: float) -> float:
    """Returns a time limit in seconds, or raises."""
    if timeout is None:
        return default
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.integer, np.floating)) or not timeout >= 0:
        raise InvalidArgumentError(f"timeout is {timeout!r}; it must be a number of seconds, 0 or more")
    # A wait of more than a year is one without end.
    return min(float(timeout), 365 * 86400.0)


class EngineClient:
    """A connection with its life: close(), the context manager, and the end with the last reference. Thread-safe."""

    #: Names the client in errors: "a replay client".
    _WHAT = "a client"

    def __init__(self, core: Any, timeout: float, server: Any = None) -> None:
        self._core = core
        self._timeout = timeout
        self._server = server  # of local(): ends with the client
        self._finalizer = weakref.finalize(self, _close, core, server)

    def close(self) -> None:
        """Ends waiting calls, also of what was made from this client, and refuses later ones by CancelledError. Idempotent.

        What local() has made ends.
        """
        self._finalizer.detach()
        _close(self._core, self._server)

    @property
    def closed(self) -> bool:
        return self._core.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self._WHAT} cannot be pickled: connect in the process that uses it")

    def _seconds(self, timeout: Any) -> float:
        return seconds_of(timeout, self._timeout)


def _close(core: Any, server: Any) -> None:
    core.close()
    if server is not None:
        server.stop()
