# SPDX-License-Identifier: Apache-2.0
"""A rank that torchrun starts: launched_rpc_program.py BACKEND. It finds the others through torch's default group."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from tandem import rpc


@rpc.function
def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor * factor


@rpc.function
class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, number: int) -> int:
        self.count += number
        return self.count


torch.set_num_threads(1)
dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
for _ in range(2):  # a start after a shutdown works as well
    name = rpc.start()
    assert name == f"worker/{rank}" and len(rpc.workers()) == size, rpc.workers()
    other = f"worker/{(rank + 1) % size}"
    assert torch.equal(rpc.call(other, scale, torch.arange(3.0), 2.0), torch.tensor([0.0, 2.0, 4.0]))
    counter = rpc.remote(other, Counter, 10 * rank)
    assert counter.call("add", 1) == 10 * rank + 1
    del counter
    rpc.shutdown()
os.write(1, f"rank {rank} of {size}: {name} has called {other}\n".encode())  # in one piece: the ranks share the output
dist.destroy_process_group()
