# SPDX-License-Identifier: Apache-2.0
"""A worker of test_lightning.py: Lightning's Trainer with DistributedDataParallel, with a table and with torch.nn.EmbeddingBag."""

import functools
import sys

import torch
import torch.distributed as dist
from bags import bag_of
from lightning.pytorch.strategies import DDPStrategy
from lightning_program import PROGRAMS, compare

import tandem


def main() -> int:
    torch.set_num_threads(1)
    with tandem.connect(timeout=60) as client:
        # Before the first step, because the pull of a step waits for the table's earlier steps.
        tables = {(name, backend): bag_of(client, f"{name}.{backend}", update_mode="sync") for name in PROGRAMS for backend in sys.argv[1:]}
        for backend in sys.argv[1:]:
            for name in PROGRAMS:
                # A strategy belongs to one trainer.
                strategy = functools.partial(DDPStrategy, process_group_backend=backend)
                compare(tables[name, backend], name, devices=client.world_size, strategy=strategy)
                print(f"rank {client.rank}: {name} is equal with {dist.get_backend()}", flush=True)
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
