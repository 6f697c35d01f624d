# SPDX-License-Identifier: Apache-2.0
"""Errors of remote calls: how a function's exception becomes a status, and a status an exception."""

from __future__ import annotations

import builtins
import functools
import re
import traceback

from tandem import errors
from tandem.errors import TandemError

_UNKNOWN = 2
# The end of a status's text, which names the type of the exception.
_TRACEBACK = re.compile(r"\nRemote traceback of (\w+) \(most recent call last\):\n?")
_CODES = {kind: code for code, kind in errors._BY_CODE.items()}
_MAX_TEXT = 16 << 10


class RemoteError(TandemError):
    """A remote function has raised an exception.

    `type_name` is the exception's type and `remote_traceback` where it was raised. If the type is a built-in one, the error is
    also an instance of it: `except ValueError` catches a ValueError of a remote function.
    """

    def __init__(self, text: str, type_name: str = "", remote_traceback: str = "") -> None:
        super().__init__(text)
        self.type_name = type_name
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[object, ...]:
        return _make, (str(self), self.type_name, self.remote_traceback)


@functools.cache
def _class_for(type_name: str) -> type[RemoteError]:
    kind = getattr(builtins, type_name, None)
    # KeyboardInterrupt and SystemExit of another process must not end this one.
    if not isinstance(kind, type) or not issubclass(kind, Exception) or issubclass(RemoteError, kind):
        return RemoteError
    try:
        made = type(f"Remote{type_name}", (RemoteError, kind), {"__module__": __name__})
        made("")
    except TypeError:  # its objects have another layout, or need arguments
        return RemoteError
    return made


def _make(text: str, type_name: str, remote_traceback: str) -> RemoteError:
    return _class_for(type_name)(text, type_name, remote_traceback)


def to_status(error: BaseException) -> tuple[int, str]:
    """Returns the status code and the text of an exception that a function has raised."""
    if type(error) in _CODES:
        # An error of Tandem keeps its kind: it may come from a third process.
        return _CODES[type(error)], str(error)
    where = "".join(traceback.format_tb(error.__traceback__)[1:])  # without the call in tandem.rpc
    # The kind of an exception that came from a third process survives.
    type_name = error.type_name if isinstance(error, RemoteError) and error.type_name else type(error).__name__
    text = f"{type_name}: {_text_of(error)}"[:_MAX_TEXT]
    return _UNKNOWN, f"{text}\nRemote traceback of {type_name} (most recent call last):\n{where[-_MAX_TEXT:]}".rstrip("\n")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be made"


def from_status(code: int, text: str) -> TandemError:
    """Returns the exception for a status of a call."""
    if code != _UNKNOWN:
        return errors.from_status(code, text)
    found = _TRACEBACK.search(text)
    return _make(text[: found.start()], found[1], text[found.end() :]) if found else RemoteError(text)
