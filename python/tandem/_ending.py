# SPDX-License-Identifier: Apache-2.0
"""How this program ends, for handlers of atexit."""

from __future__ import annotations

import sys


def fatal_error() -> BaseException | None:
    """Returns the exception that ends the program; None if it ends otherwise, also by sys.exit()."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    # An interactive interpreter remembers the last error although it goes on.
    return None if hasattr(sys, "ps1") or sys.flags.interactive else error


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
