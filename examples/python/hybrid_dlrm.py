# SPDX-License-Identifier: Apache-2.0
"""Trains a DLRM: embedding tables on parameter servers, the dense part by DistributedDataParallel.

  tandem run --ps 2 --nproc-per-node 2 examples/python/hybrid_dlrm.py --steps 300

The clicks are generated: each id has a hidden weight, so that the model can learn them. Rank 0 prints the loss and the AUC.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tandem

FEATURES, DIM, ROWS, DENSE = 6, 16, 2000, 8


class Dlrm(torch.nn.Module):
    def __init__(self, emb):
        super().__init__()
        self.emb = emb
        pairs = FEATURES * (FEATURES + 1) // 2
        self.bottom = torch.nn.Sequential(torch.nn.Linear(DENSE, 32), torch.nn.ReLU(), torch.nn.Linear(32, DIM))
        self.top = torch.nn.Sequential(torch.nn.Linear(DIM + pairs, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        self.register_buffer("pairs", torch.tril_indices(FEATURES + 1, FEATURES + 1, -1), persistent=False)

    def forward(self, dense, sparse):
        bottom = self.bottom(dense)
        rows = torch.stack([bottom, *self.emb(sparse).values()], 1)
        dots = torch.bmm(rows, rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, dots], 1)).squeeze(1)


class Clicks(torch.utils.data.IterableDataset):
    """Batches of this rank: ids of Zipf's kind, and clicks that depend on their hidden weights."""

    def __init__(self, rank, steps, batch):
        self.seed, self.steps, self.batch = rank, steps, batch
        self.hidden = torch.randn(FEATURES, ROWS, generator=torch.Generator().manual_seed(1))

    def __iter__(self):
        random = torch.Generator().manual_seed(100 + self.seed)
        for _ in range(self.steps):
            ids = (ROWS * torch.rand(FEATURES, self.batch, generator=random) ** 3).long()
            dense = torch.randn(self.batch, DENSE, generator=random)
            score = self.hidden.gather(1, ids).sum(0) + dense[:, 0]
            clicks = (torch.rand(self.batch, generator=random) < torch.sigmoid(score)).float()
            yield {"dense": dense, "sparse": {f"f{f}": ids[f] for f in range(FEATURES)}, "clicks": clicks}


def auc(scores, clicks):
    """The probability that a click has a higher score than a view without one."""
    ranks = torch.empty(len(scores))
    ranks[scores.argsort()] = torch.arange(1.0, len(scores) + 1)
    positive = clicks.sum()
    return ((ranks[clicks > 0].sum() - positive * (positive + 1) / 2) / (positive * (len(clicks) - positive))).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--depth", type=int, default=2, help="batches whose rows are pulled ahead")
    args = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("tandem")
    rank = dist.get_rank()
    client = tandem.connect()
    emb = tandem.nn.EmbeddingCollection(
        [tandem.nn.Table(f"f{f}", dim=DIM, optimizer=tandem.optim.Adagrad(lr=0.1), mode="bounded:2") for f in range(FEATURES)], client
    )
    model = DistributedDataParallel(Dlrm(emb))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    emb.follow(optimizer)
    lossf = torch.nn.BCEWithLogitsLoss()
    batches = torch.utils.data.DataLoader(Clicks(rank, args.steps, args.batch), batch_size=None)
    total = 0.0
    for step, batch in enumerate(tandem.data.Prefetch(batches, emb, depth=args.depth), start=1):
        optimizer.zero_grad()
        loss = lossf(model(batch["dense"], batch["sparse"]), batch["clicks"])
        loss.backward()                                  # all-reduces the dense gradients
        optimizer.step()                                 # and pushes those of the rows
        total += loss.item()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {total / 50:.4f}", flush=True)
            total = 0.0
    emb.flush()
    dist.barrier()
    if rank == 0:
        model.eval()
        [test] = Clicks(999, 1, 4000)
        with torch.no_grad():
            scores = model.module(test["dense"], test["sparse"])
        print(f"AUC {auc(scores, test['clicks']):.3f} after {args.steps} steps", flush=True)
    dist.barrier()
    client.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
