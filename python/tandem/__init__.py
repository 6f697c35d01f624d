# SPDX-License-Identifier: Apache-2.0
"""Tandem: embedding tables on parameter servers, and collectives, for Python.

    import numpy as np, tandem

    client = tandem.local(servers=2)
    client.create_table("user", dim=8, optimizer=tandem.optim.Adagrad(lr=0.05))
    rows, version = client.pull("user", np.array([3, 14, 15]))
    client.push("user", np.array([3, 14, 15]), np.ones_like(rows), version=version)
"""

import importlib as _importlib
import sys as _sys
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING

from tandem._load import load_core as _load_core

__version__: str = _load_core().__version__

from tandem import admission, errors, eviction, init, optim, wire  # noqa: E402
from tandem._futures import Future  # noqa: E402
from tandem._storage import export_checkpoint  # noqa: E402
from tandem._tables import TableInfo  # noqa: E402
from tandem.client import Client  # noqa: E402
from tandem._changes import follow, subscribe  # noqa: E402
from tandem._connect import connect, local  # noqa: E402
from tandem.errors import TandemError  # noqa: E402

__all__ = [
    "Client", "Future", "TableInfo", "TandemError", "admission", "connect", "errors", "eviction", "export_checkpoint", "follow", "init",
    "local", "optim", "subscribe", "wire",
]


def _make_known_to_older_torch() -> None:
    """Registers the backend "tandem" with torch before 2.15, which looks for no entry point, if it was imported before."""
    torch = _sys.modules.get("torch")
    if torch is None or "torch.distributed" not in _sys.modules or not torch.distributed.is_available():
        return
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
        try:
            _importlib.import_module("tandem.torch")
        except ImportError:  # a torch that is older still; the rest of the package works with it
            pass


_make_known_to_older_torch()


if _TYPE_CHECKING:  # mypy knows nothing of what __getattr__ returns
    from tandem import data as data, nn as nn, replay as replay, rpc as rpc, torch as torch, weights as weights

# Some of these import torch or msgpack, which programs with NumPy alone need not have.
_WHEN_USED = ("data", "nn", "replay", "rpc", "torch", "weights")


def __dir__() -> list[str]:
    return sorted({*__all__, *_WHEN_USED, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> _ModuleType:
    if name in _WHEN_USED:
        return _importlib.import_module(f"tandem.{name}")
    raise AttributeError(f"module 'tandem' has no attribute '{name}'")
