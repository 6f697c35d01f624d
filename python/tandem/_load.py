# SPDX-License-Identifier: Apache-2.0
"""Imports the extension module, beside libraries that export conflicting symbols."""

from __future__ import annotations

import os
import sys
from types import ModuleType


def load_core() -> ModuleType:
    """Imports tandem._core.

    TensorFlow's wheel loads its libraries with RTLD_GLOBAL, and with them thousands of protobuf's and OpenSSL's symbols, to which
    _core's libraries would bind (tensorflow#124205). With RTLD_DEEPBIND they prefer their own.
    """
    if "tensorflow" not in sys.modules:
        from tandem import _core

        return _core
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
    try:
        from tandem import _core
    finally:
        sys.setdlopenflags(flags)
    return _core
