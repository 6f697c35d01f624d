# SPDX-License-Identifier: Apache-2.0
"""A rank that a launcher starts: launched_program.py TRANSPORT [INIT_METHOD]. Prints what the group computes."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

import tandem.torch


def compute(transport: str, **arguments: Any) -> None:
    torch.set_num_threads(1)
    options = tandem.torch.Options(transport=transport) if transport else None
    dist.init_process_group("tandem", pg_options=options, **arguments)
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(1000.0) + rank
    dist.all_reduce(tensor)
    assert torch.equal(tensor, size * torch.arange(1000.0) + sum(range(size))), tensor
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert [each["rank"] for each in gathered] == list(range(size))
    if rank + 1 < size:
        dist.send(torch.tensor([rank]), rank + 1)
    if rank > 0:
        received = torch.zeros(1, dtype=torch.int64)
        dist.recv(received, rank - 1)
        assert received.item() == rank - 1
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    model(torch.full((1, 4), rank + 1.0)).sum().backward()
    assert torch.equal(model.module.weight.grad, torch.full((1, 4), (size + 1) / 2)), model.module.weight.grad
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    used = getattr(backend, "transport", "a backend that torch wraps")
    os.write(1, f"rank {rank} of {size} over {used}\n".encode())  # in one piece: the ranks share the output
    dist.destroy_process_group()


def spawned(rank: int, size: int, init_method: str) -> None:
    """A process that torch.multiprocessing.spawn has started."""
    compute("", init_method=init_method, rank=rank, world_size=size)


if __name__ == "__main__":
    transport = sys.argv[1] if sys.argv[1] != "default" else ""
    if len(sys.argv) > 2:
        # torch reads no variables of mpirun.
        rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
        compute(transport, init_method=sys.argv[2], rank=rank, world_size=size)
    else:
        compute(transport)
