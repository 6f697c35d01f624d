# SPDX-License-Identifier: Apache-2.0
"""Trains a network whose layers are on two or more ranks, by torch.distributed.pipelining.

  tandem run --nproc-per-node 2 examples/python/pipeline.py --steps 100

Each rank has one stage. A batch is cut into micro-batches, so that the stages compute at the same time.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, MICRO_BATCHES, BATCH = 32, 4, 64


def make_stage(index, stages):
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1)) if index == stages - 1 else nn.Sequential(*layers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    dist.init_process_group("tandem")
    rank, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = make_stage(rank, stages)
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.MSELoss())
    optimizer = torch.optim.Adam(module.parameters(), lr=0.003)
    random = torch.Generator().manual_seed(7)            # the same on the first rank, which has x, and on the last, which has y
    for step in range(1, args.steps + 1):
        x = torch.randn(BATCH, WIDTH, generator=random)
        y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2]
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(x)
        elif rank == stages - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        if losses and (step == 1 or step % 20 == 0):
            print(f"step {step}: loss {torch.stack(losses).mean():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
