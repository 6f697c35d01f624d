# SPDX-License-Identifier: Apache-2.0
"""What torch.compile does with the methods that torch.distributed calls."""

from __future__ import annotations

import types
from typing import Iterator, TypeVar

import torch

T = TypeVar("T", bound=type)


def not_compiled(cls: T) -> T:
    """Keeps torch.compile from tracing the functions of a class, and what they call. A compiled function that calls one is split
    there, as at the methods of torch's own process groups, which are C++.

    torch.compiler.disable would do the same. But it imports the compiler, which takes seconds, and adds a call to each call.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for function in _functions(cls):
        function._torchdynamo_disable = True  # type: ignore[attr-defined] # for functions that it would inline
        function._torchdynamo_disable_msg = "process groups of Tandem run outside of graphs"  # type: ignore[attr-defined]
        frames.set_code_exec_strategy(function.__code__, skip)
    return cls


def _functions(cls: type) -> Iterator[types.FunctionType]:
    for member in vars(cls).values():
        if isinstance(member, property):
            yield from (each for each in (member.fget, member.fset) if isinstance(each, types.FunctionType))
        elif isinstance(member, (staticmethod, classmethod)):
            yield member.__func__  # type: ignore[misc]
        elif isinstance(member, types.FunctionType):
            yield member
