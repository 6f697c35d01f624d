# SPDX-License-Identifier: Apache-2.0
"""torch.compile of functions and models that use torch.distributed: the same values as without it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def make_ddp() -> DistributedDataParallel:
    """A model of several buckets, for each of which torch.compile makes a graph of its own."""
    torch.manual_seed(1)
    return DistributedDataParallel(nn.Sequential(nn.Linear(8, 600), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 600)), bucket_cap_mb=1)


def compiled_ddp_trains_like_plain_ddp() -> None:
    rank = dist.get_rank()
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        plain, other = make_ddp(), make_ddp()
        compiled = torch.compile(other, backend=backend)
        for step in range(2):
            x = torch.full((4, 8), rank + 1.0 + step)
            plain(x).sum().backward()
            compiled(x).sum().backward()
        for mine, expected in zip(other.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad)


def broadcast(x: torch.Tensor) -> torch.Tensor:
    dist.broadcast(x, 0)
    return x + 1


def reduce(x: torch.Tensor) -> torch.Tensor:
    dist.reduce(x, 0)
    return x + 1 if dist.get_rank() == 0 else torch.zeros(3)


def barrier(x: torch.Tensor) -> torch.Tensor:
    dist.barrier()
    return x + 1


def all_gather(x: torch.Tensor) -> torch.Tensor:
    outputs = [torch.zeros(3) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, x)
    return sum(outputs)


def all_gather_into_tensor(x: torch.Tensor) -> torch.Tensor:
    output = torch.zeros(3 * dist.get_world_size())
    dist.all_gather_into_tensor(output, x)
    return output * 2


def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    output = torch.zeros(3)
    dist.reduce_scatter_tensor(output, torch.cat([x] * dist.get_world_size()))
    return output


def all_to_all(x: torch.Tensor) -> torch.Tensor:
    size = dist.get_world_size()
    output = torch.zeros(size)
    dist.all_to_all_single(output, x[:1].repeat(size))
    return output


def gather(x: torch.Tensor) -> torch.Tensor:
    outputs = [torch.zeros(3) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(x, outputs, 0)
    return x if outputs is None else sum(outputs)


def scatter(x: torch.Tensor) -> torch.Tensor:
    output = torch.zeros(3)
    dist.scatter(output, [x + rank for rank in range(dist.get_world_size())] if dist.get_rank() == 0 else None, 0)
    return output


def send_and_receive(x: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 0:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(x, 0)
    return x + 1


def isend_and_irecv(x: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 0:
        dist.isend(x, 1).wait()
    elif dist.get_rank() == 1:
        dist.irecv(x, 0).wait()
    return x + 1


def asynchronous_all_reduce(x: torch.Tensor) -> torch.Tensor:
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x + 1


def asynchronous_broadcast(x: torch.Tensor) -> torch.Tensor:
    work = dist.broadcast(x, 0, async_op=True)
    work.wait()
    assert work.is_completed()
    return x + 1


def average_of_all_reduces(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x / dist.get_world_size()


FUNCTIONS = [
    broadcast, reduce, barrier, all_gather, all_gather_into_tensor, reduce_scatter, all_to_all, gather, scatter, send_and_receive,
    isend_and_irecv, asynchronous_all_reduce, asynchronous_broadcast, average_of_all_reduces,
]  # fmt: skip


def compiled_functions_compute_like_plain_ones(name: str) -> None:
    function = next(each for each in FUNCTIONS if each.__name__ == name)
    expected = function(torch.full((3,), dist.get_rank() + 1.0))
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        for _ in range(2):
            torch.testing.assert_close(compiled(torch.full((3,), dist.get_rank() + 1.0)), expected)


def test_compiled_ddp(ranks):
    ranks(2).run(compiled_ddp_trains_like_plain_ddp)


@pytest.mark.parametrize("name", [each.__name__ for each in FUNCTIONS])
def test_compiled_functions(ranks, name):
    ranks(2).run(compiled_functions_compute_like_plain_ones, name)
