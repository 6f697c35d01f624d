# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Tandem. Each is also the conventional Python exception for its kind of error."""

from __future__ import annotations


class TandemError(RuntimeError):
    """Base class of all errors that Tandem reports. The text says what was wrong and what to do."""


class InvalidArgumentError(TandemError, ValueError):
    """An argument, a configuration or a file is wrong."""


class NotFoundError(TandemError, LookupError):
    """A table, file or key does not exist."""


class AlreadyExistsError(TandemError):
    """Something of this name exists with another configuration."""


class DeadlineExceededError(TandemError, TimeoutError):
    """Another process did not respond in time. The text names it."""


class UnavailableError(TandemError, ConnectionError):
    """Another process cannot be reached, or the job has failed."""


class FailedPreconditionError(TandemError):
    """The call is not possible in the present state, for example in a forked child."""


class ResourceExhaustedError(TandemError, MemoryError):
    """A limit of memory or of calls under way is reached."""


class AbortedError(TandemError):
    """The operation was ended on purpose, for example by abort() of a process group."""


class CancelledError(TandemError):
    """The client was closed, or the server stopped, before the call ended."""


class OutOfRangeError(TandemError, IndexError):
    """A position is outside its range."""


class UnimplementedError(TandemError, NotImplementedError):
    """This backend or server does not have the operation."""


class DataLossError(TandemError, OSError):
    """A file or message is damaged."""


class PermissionDeniedError(TandemError, PermissionError):
    """The server does not allow the call."""


class InternalError(TandemError):
    """A bug of Tandem."""


# By absl::StatusCode.
_BY_CODE: dict[int, type[TandemError]] = {
    1: CancelledError,
    3: InvalidArgumentError,
    4: DeadlineExceededError,
    5: NotFoundError,
    6: AlreadyExistsError,
    7: PermissionDeniedError,
    8: ResourceExhaustedError,
    9: FailedPreconditionError,
    10: AbortedError,
    11: OutOfRangeError,
    12: UnimplementedError,
    13: InternalError,
    14: UnavailableError,
    15: DataLossError,
    16: PermissionDeniedError,
}


def from_status(code: int, message: str) -> TandemError:
    """Returns the exception for a status of the C++ libraries."""
    return _BY_CODE.get(code, TandemError)(message)
