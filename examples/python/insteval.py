# SPDX-License-Identifier: Apache-2.0
"""Trains DeepFM on the InstEval ratings: embeddings on Tandem's servers, the dense part under DistributedDataParallel.

    tandem run --ps 2 --workers 2 -- python examples/python/insteval.py $(scripts/insteval)

The model, the split of the data and the hyperparameters are those of jobs/insteval.yaml, which `tandem train` trains. The task
is to predict whether a student rates a lecturer 4 or 5. `scripts/quickstart --python` runs this.
"""

import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import tandem

FEATURES = ["s", "d", "studage", "lectage", "service", "dept"]
DIM = 16


class DeepFM(torch.nn.Module):
    """A weight of each id, a factorization machine, and an MLP over the same embeddings (Guo et al., IJCAI 2017)."""

    def __init__(self, client: tandem.Client) -> None:
        super().__init__()
        # One table for all features, which have ids of their own; one lookup and one push a step for both tables.
        self.tables = tandem.nn.EmbeddingCollection([
            tandem.nn.Table("embedding", DIM, [f"embedding/{f}" for f in FEATURES], mode="sync", init=tandem.init.Normal(stddev=0.02),
                            optimizer=tandem.optim.FTRL(lr=0.05, l2=0.3, initial_accumulator=1e-7)),
            tandem.nn.Table("wide", 1, [f"wide/{f}" for f in FEATURES], mode="sync", init=tandem.init.Zeros(),
                            optimizer=tandem.optim.FTRL(lr=0.1, l2=0.03, initial_accumulator=1e-7)),
        ], client)
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(len(FEATURES) * DIM, 64), torch.nn.ReLU(), torch.nn.Dropout(0.5),
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the logits of examples, whose ids are [batch, features]."""
        columns = ids.unbind(1)
        rows = self.tables({f"{table}/{f}": column for table in ("embedding", "wide") for f, column in zip(FEATURES, columns)})
        embedded = torch.stack([rows[f"embedding/{f}"] for f in FEATURES], 1)
        pairs = (embedded.sum(1).square() - embedded.square().sum(1)).sum(1) / 2
        wide = torch.cat([rows[f"wide/{f}"] for f in FEATURES], 1).sum(1)
        return self.deep(embedded.flatten(1)).squeeze(1) + wide + pairs


def split_of(line: bytes, seed: int = 1, valid: float = 0.1, test: float = 0.1) -> str:
    """Returns the split that `tandem train` puts a line of text into: a hash of the line with data.split.seed decides."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    value = mix(mix(seed) ^ (len(line) * 0xFF51AFD7ED558CCD & mask))
    for start in range(0, len(line), 8):
        value = mix(value ^ int.from_bytes(line[start : start + 8], "little"))
    share = (value >> 11) * 2.0**-53
    return "test" if share < test else "valid" if share < test + valid else "train"


def read(path: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Returns the ids and labels of each split."""
    with open(path, "rb") as file:
        lines = file.read().splitlines()
    columns = lines[0].decode().split(",")
    values = np.loadtxt(lines[1:], dtype=np.int64, delimiter=",")
    ids = np.stack([values[:, columns.index(f)] + (i << 32) for i, f in enumerate(FEATURES)], 1)
    labels = (values[:, columns.index("y")] >= 4).astype(np.float32)
    splits = np.array([split_of(line) for line in lines[1:]])
    return {s: (torch.from_numpy(ids[splits == s]), torch.from_numpy(labels[splits == s])) for s in ("train", "valid", "test")}


def auc(labels: torch.Tensor, scores: torch.Tensor) -> float:
    """Returns the probability that a positive example scores above a negative one; ties count half."""
    _, group, counts = scores.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts - 1) / 2)[group]
    positives = labels.sum().double()
    negatives = len(labels) - positives
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


@torch.no_grad()
def evaluate(model: DeepFM, ids: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Returns AUC and logloss. Creates no rows: an id that was never trained has its initial value."""
    model.eval()
    logits = torch.cat([model(part) for part in ids.split(4096)])
    model.train()
    return auc(labels, logits), float(F.binary_cross_entropy_with_logits(logits, labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the CSV file that scripts/insteval writes")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=512, help="examples of a worker in a step")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("tandem")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = read(arguments.data)
    ids, labels = data["train"]
    with tandem.connect() as client:
        torch.manual_seed(1)
        module = DeepFM(client)
        model = DistributedDataParallel(module)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-3)
        module.tables.follow(optimizer)
        torch.manual_seed(1 + rank)  # dropout differs between workers
        if rank == 0:
            print(f"training deepfm on {len(ids)} examples: {world} workers, {client.num_servers} parameter servers, sync", flush=True)
        best, seconds, trained = float("inf"), 0.0, 0
        for epoch in range(1, arguments.epochs + 1):
            began = time.monotonic()
            # All workers shuffle alike and take every world-th example, the same number each.
            order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(epoch))
            order = order[: len(order) - len(order) % world][rank::world]
            losses = torch.zeros(2, dtype=torch.float64)
            for batch in order.split(arguments.batch_size):
                optimizer.zero_grad()
                loss = F.binary_cross_entropy_with_logits(model(ids[batch]), labels[batch])
                loss.backward()  # DistributedDataParallel averages the dense gradients
                optimizer.step()  # pushes the gradients of the rows, too
                losses += torch.tensor([float(loss.detach()) * len(batch), len(batch)], dtype=torch.float64)
            module.tables.flush()
            dist.all_reduce(losses)  # the other workers have pushed their last step as well
            elapsed = time.monotonic() - began
            seconds, trained = seconds + elapsed, trained + int(losses[1])
            if rank == 0:
                valid_auc, logloss = evaluate(module, *data["valid"])
                print(f"epoch {epoch}/{arguments.epochs}  train loss {losses[0] / losses[1]:.4f}  valid AUC {valid_auc:.4f}  "
                      f"logloss {logloss:.4f}  {losses[1] / elapsed:.0f} samples/s{'  *' if logloss < best else ''}", flush=True)
                best = min(best, logloss)
        if rank == 0:
            test_auc, logloss = evaluate(module, *data["test"])
            rows = {table: client.stats(table)["rows"] for table in ("embedding", "wide")}
            print(f"\ninsteval: deepfm, sync, {world} workers, {client.num_servers} parameter servers\n"
                  f"  {'on the test split':<40} {'AUC':>9}  {'logloss':>9}\n"
                  f"  {f'tandem deepfm in PyTorch (epoch {arguments.epochs})':<40} {test_auc:9.4f}  {logloss:9.4f}\n"
                  f"  {'training speed':<40} {trained / seconds:9,.0f} samples/s\n"
                  f"  {'rows':<40} " + ", ".join(f"{count:,} in '{table}'" for table, count in rows.items()), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
