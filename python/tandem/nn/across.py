# SPDX-License-Identifier: Apache-2.0
"""What the workers of a job do together with the gradients of tables, by the default process group of torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tandem.client import Client


def connects(client: Client) -> bool:
    """Returns whether the default process group has more than one rank, and its ranks are the workers of the client's job."""
    if client.world_size == 1 or not dist.is_available() or not dist.is_initialized():
        return False
    return dist.get_world_size() == client.world_size


def device() -> torch.device:
    """Returns a device whose tensors the default process group takes: the CPU, if it can."""
    group: Any = dist.group.WORLD
    try:
        group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def sum_of_rows(ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns the sums over all workers of the rows of each id, [distinct ids of all workers, dim], in host memory. Collective.

    ids: int64 [n], distinct. rows: float32 [n, dim].
    """
    where, world, dim = device(), dist.get_world_size(), rows.shape[1]
    counts = [torch.zeros(1, dtype=torch.int64, device=where) for _ in range(world)]
    dist.all_gather(counts, torch.tensor([ids.numel()], dtype=torch.int64, device=where))
    sizes = [int(count) for count in counts]
    longest = max(sizes)
    if longest == 0:
        return rows

    def gather(mine: torch.Tensor) -> torch.Tensor:
        padded = torch.zeros(longest, *mine.shape[1:], dtype=mine.dtype, device=where)
        padded[: mine.shape[0]] = mine
        parts = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes)]).cpu()

    distinct, index = gather(ids).unique(return_inverse=True)
    return torch.zeros(distinct.numel(), dim, dtype=torch.float32, device="cpu").index_add_(0, index, gather(rows))


def maximum_(value: torch.Tensor) -> None:
    """Replaces a number by the largest one of all workers. Collective."""
    where = device()
    if value.device == where or value.is_cuda:
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return
    moved = value.to(where)
    dist.all_reduce(moved, dist.ReduceOp.MAX)
    value.copy_(moved)


def largest(number: int) -> int:
    """Returns the largest number of all workers. Collective."""
    value = torch.tensor([number], dtype=torch.int64, device=device())
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


def like_gradients_of(norm: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Returns a norm as a replicated DTensor if the optimizer has parameters of fully_shard(), whose norms are DTensors."""
    if not hasattr(dist, "tensor"):
        return norm
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, dist.tensor.DTensor):
                mesh = parameter.device_mesh
                placements = [dist.tensor.Replicate()] * mesh.ndim
                return dist.tensor.DTensor.from_local(norm.to(mesh.device_type), mesh, placements, run_check=False)
    return norm
