# SPDX-License-Identifier: Apache-2.0
"""Trains DeepFM on a click log: embeddings on Tandem's servers, the dense part under DistributedDataParallel.

    tandem data planted --rows 500000 --sparse 8 --dense 0 --interaction-stddev 1.2 --out clicks.csv
    tandem run --ps 2 --workers 2 -- python examples/python/clicks.py clicks.csv

The model, the split of the data and the hyperparameters are those of jobs/clicks.yaml, which `tandem train` trains. The log may be
any CSV file whose first column is the label, 0 or 1, and whose other columns are whole numbers from 0 to 2^32 - 1, the ids of one
feature each. `scripts/quickstart --python` runs this.
"""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import tandem

DIM = 8


class DeepFM(torch.nn.Module):
    """A weight of each id, a factorization machine, and an MLP over the same embeddings (Guo et al., IJCAI 2017)."""

    def __init__(self, client: tandem.Client, features: int) -> None:
        super().__init__()
        self.features = range(features)
        # One table for all features, which have ids of their own; one lookup and one push a step for both tables.
        self.tables = tandem.nn.EmbeddingCollection([
            tandem.nn.Table("embedding", DIM, [f"embedding/{f}" for f in self.features], mode="sync", init=tandem.init.Normal(stddev=0.01),
                            optimizer=tandem.optim.Adagrad(lr=0.05)),
            tandem.nn.Table("wide", 1, [f"wide/{f}" for f in self.features], mode="sync", init=tandem.init.Zeros(),
                            optimizer=tandem.optim.Adagrad(lr=0.05)),
        ], client)
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(features * DIM, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the logits of examples, whose ids are [batch, features]."""
        columns = ids.unbind(1)
        rows = self.tables({f"{table}/{f}": columns[f] for table in ("embedding", "wide") for f in self.features})
        embedded = torch.stack([rows[f"embedding/{f}"] for f in self.features], 1)
        pairs = (embedded.sum(1).square() - embedded.square().sum(1)).sum(1) / 2
        wide = torch.cat([rows[f"wide/{f}"] for f in self.features], 1).sum(1)
        return self.deep(embedded.flatten(1)).squeeze(1) + wide + pairs


def shares_of(lines: list[bytes], seed: int = 1) -> np.ndarray:
    """Returns a number from 0 to 1 of each line of text, by which `tandem train` splits them: a hash with data.split.seed."""
    lengths = np.array([len(line) for line in lines], np.uint64)
    words = int(lengths.max() + 7) // 8
    text = np.array(lines, f"S{8 * words}").view("<u8").reshape(len(lines), words)  # padded with zeros

    def mix(x: np.ndarray) -> np.ndarray:
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    value = mix(mix(np.full(len(lines), seed, np.uint64)) ^ lengths * np.uint64(0xFF51AFD7ED558CCD))
    for word in range(words):
        value = np.where(lengths > 8 * word, mix(value ^ text[:, word]), value)
    return (value >> np.uint64(11)).astype(np.float64) * 2.0**-53


def read(path: str, valid: float = 0.1, test: float = 0.1) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Returns the ids and labels of each split."""
    with open(path, "rb") as file:
        lines = file.read().splitlines()[1:]
    values = np.loadtxt(lines, dtype=np.int64, delimiter=",", ndmin=2)
    ids = torch.from_numpy(values[:, 1:] + (np.arange(values.shape[1] - 1) << 32))
    labels = torch.from_numpy(values[:, 0].astype(np.float32))
    shares = torch.from_numpy(shares_of(lines))
    splits = {"test": shares < test, "valid": (shares >= test) & (shares < test + valid), "train": shares >= test + valid}
    return {name: (ids[chosen], labels[chosen]) for name, chosen in splits.items()}


def auc(labels: torch.Tensor, scores: torch.Tensor) -> float:
    """Returns the probability that a positive example scores above a negative one; ties count half."""
    _, group, counts = scores.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts - 1) / 2)[group]
    positives = labels.sum().double()
    negatives = len(labels) - positives
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


@torch.no_grad()
def evaluate(model: torch.nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Returns AUC and logloss. Creates no rows: an id that was never trained has its initial value."""
    model.eval()
    logits = torch.cat([model(part) for part in ids.split(4096)])
    model.train()
    return auc(labels, logits), float(F.binary_cross_entropy_with_logits(logits, labels))


class LogisticRegression(torch.nn.Module):
    """A weight of each id, in plain torch: the baseline."""

    def __init__(self, ids: torch.Tensor) -> None:
        super().__init__()
        self.known = ids.unique()
        self.weights = torch.nn.EmbeddingBag(len(self.known) + 1, 1, mode="sum")  # the last one: unknown ids
        torch.nn.init.zeros_(self.weights.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        place = torch.searchsorted(self.known, ids).clamp(max=len(self.known) - 1)
        return self.weights(torch.where(self.known[place] == ids, place, len(self.known))).squeeze(1)


def train_baseline(ids: torch.Tensor, labels: torch.Tensor) -> LogisticRegression:
    model = LogisticRegression(ids)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for epoch in range(3):
        for batch in torch.randperm(len(ids), generator=torch.Generator().manual_seed(epoch)).split(4096):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(ids[batch]), labels[batch]).backward()
            optimizer.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the click log, a CSV file")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=512, help="examples of a worker in a step")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("tandem")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = read(arguments.data)
    ids, labels = data["train"]
    with tandem.connect() as client:
        torch.manual_seed(1)
        module = DeepFM(client, ids.shape[1])
        model = DistributedDataParallel(module)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        module.tables.follow(optimizer)
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
            rows = {table: client.stats(table)["rows"] for table in ("embedding", "wide")}
            scores = {"logistic regression in PyTorch": evaluate(train_baseline(ids, labels), *data["test"]),
                      f"tandem deepfm in PyTorch (epoch {arguments.epochs})": evaluate(module, *data["test"])}
            if os.path.exists(arguments.data + ".json"):  # `tandem data planted` has written it
                with open(arguments.data + ".json") as file:
                    planted = json.load(file)["test"]
                scores["best possible (the planted model)"] = planted["best_auc"], planted["best_logloss"]
            print(f"\nclicks: deepfm, sync, {world} workers, {client.num_servers} parameter servers\n"
                  f"  {'on the test split':<40} {'AUC':>9}  {'logloss':>9}")
            for name, (score, logloss) in scores.items():
                print(f"  {name:<40} {score:9.4f}  {logloss:9.4f}")
            print(f"  {'training speed':<40} {trained / seconds:9,.0f} samples/s\n"
                  f"  {'rows':<40} " + ", ".join(f"{count:,} in '{table}'" for table, count in rows.items()), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
