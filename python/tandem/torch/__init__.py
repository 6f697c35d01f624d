# SPDX-License-Identifier: Apache-2.0
"""Tandem for PyTorch: the backend "tandem" of torch.distributed.

    import torch.distributed as dist, tandem.torch

    dist.init_process_group("tandem")               # or "cpu:tandem,cuda:nccl"
    model = torch.nn.parallel.DistributedDataParallel(model)

An installed package needs no import: torch finds the backend by its entry point.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch.distributed as dist

from tandem.torch._backend import Options, TandemBackend
from tandem.torch._group import TandemProcessGroup, create_group

__all__ = [
    "Options", "TandemBackend", "TandemProcessGroup", "checkpoint", "export", "load_for_serving", "register",
]


def register() -> None:
    """Makes "tandem" known to torch.distributed. Importing this module calls it."""
    if not hasattr(dist.Backend, "TANDEM"):
        dist.Backend.register_backend("tandem", create_group, extended_api=True, devices=["cpu"])


def __getattr__(name: str) -> Any:
    # The backend alone needs neither tandem.nn nor torch.distributed.checkpoint.
    if name in ("checkpoint", "serving"):
        return importlib.import_module(f"tandem.torch.{name}")
    if name in ("export", "load_for_serving"):
        return getattr(importlib.import_module("tandem.torch.serving"), name)
    raise AttributeError(f"module 'tandem.torch' has no attribute '{name}'")


register()
