# SPDX-License-Identifier: Apache-2.0
"""A worker of test_hybrid.py: a small DLRM whose embeddings are on servers and whose dense part is DDP's.

The first REPLICATED tables are parameters in DDP. Rank 0 trains the same model with torch alone, on the batches of all workers, and compares.
"""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tandem

FEATURES, DIM, ROWS, BATCH, STEPS = 4, 8, 60, 16, 200
REPLICATED = int(os.environ["REPLICATED"])


class Dense(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bottom = torch.nn.Sequential(torch.nn.Linear(5, DIM), torch.nn.ReLU())
        self.top = torch.nn.Sequential(torch.nn.Linear(DIM + FEATURES * (FEATURES + 1) // 2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def forward(self, x, embedded):
        x = self.bottom(x)
        all_ = torch.stack([x, *embedded], 1)
        i, j = torch.tril_indices(FEATURES + 1, FEATURES + 1, -1)
        return self.top(torch.cat([x, torch.bmm(all_, all_.transpose(1, 2))[:, i, j]], 1)).squeeze(1)


class Model(torch.nn.Module):
    def __init__(self, emb) -> None:
        super().__init__()
        self.emb, self.dense = emb, Dense()

    def forward(self, x, sparse):
        return self.dense(x, list(self.emb(sparse).values()))


def batch_of(step: int, rank: int):
    random = torch.Generator().manual_seed(1000 * step + rank)
    sparse = {f"f{f}": torch.randint(0, ROWS, (BATCH, 1 + f), generator=random) for f in range(FEATURES)}
    return torch.randn(BATCH, 5, generator=random), sparse, torch.randint(0, 2, (BATCH,), generator=random).float()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    client = tandem.connect(timeout=60)
    assert client.world_size == world
    sharded = {"optimizer": tandem.optim.Adagrad(lr=0.05), "mode": "sync"}
    replicated = {"placement": "replicated", "num_embeddings": ROWS}
    options = {"dim": DIM, "init": tandem.init.Normal(0.0, 0.1)}
    emb = tandem.nn.EmbeddingCollection(
        [tandem.nn.Table(f"f{f}", **options, **(replicated if f < REPLICATED else sharded)) for f in range(FEATURES)], client
    )

    def rows_of(f: int) -> np.ndarray:
        if f < REPLICATED:
            return emb.replicated[f"f{f}"].detach().numpy().copy()
        return client.pull(f"f{f}", np.arange(ROWS), read_only=True)[0]

    dist.barrier()
    first = [rows_of(f) for f in range(FEATURES)]
    dist.barrier()

    model = DistributedDataParallel(Model(emb))
    optimizers = [torch.optim.SGD(model.module.dense.parameters(), lr=0.05)]
    if REPLICATED:
        optimizers.append(torch.optim.Adagrad(emb.parameters(), lr=0.05))
    lossf = torch.nn.BCEWithLogitsLoss()
    for step in range(STEPS):
        x, sparse, y = batch_of(step, rank)
        for optimizer in optimizers:
            optimizer.zero_grad()
        lossf(model(x, sparse), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    emb.flush()
    last = [rows_of(f) for f in range(FEATURES)]

    if rank == 0:
        bags = [torch.nn.EmbeddingBag.from_pretrained(torch.tensor(rows), freeze=False, mode="sum", sparse=True) for rows in first]
        dense = Dense()
        rows_optimizer = torch.optim.Adagrad([bag.weight for bag in bags], lr=0.05)
        optimizer = torch.optim.SGD(dense.parameters(), lr=0.05)
        for step in range(STEPS):
            parts = [batch_of(step, r) for r in range(world)]
            x, y = torch.cat([p[0] for p in parts]), torch.cat([p[2] for p in parts])
            rows_optimizer.zero_grad()
            optimizer.zero_grad()
            lossf(dense(x, [bag(torch.cat([p[1][f"f{f}"] for p in parts])) for f, bag in enumerate(bags)]), y).backward()
            rows_optimizer.step()
            optimizer.step()
        for rows, before, bag in zip(last, first, bags):
            assert np.abs(rows - before).max() > 0.05
            np.testing.assert_allclose(rows, bag.weight.detach().numpy(), rtol=2e-3, atol=2e-4)
        for mine, theirs in zip(model.module.dense.parameters(), dense.parameters()):
            torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=2e-4)
        print("equal after", STEPS, "steps")
    dist.barrier()
    client.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
