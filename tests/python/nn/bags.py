# SPDX-License-Identifier: Apache-2.0
"""A bag over a table, its twin of torch.nn, and a model with either: for tests that compare the two."""

import numpy as np
import torch

import tandem

ROWS, DIM = 40, 4
OFFSETS = torch.arange(0, 24, 3)
RULES = {"SGD": (tandem.optim.SGD, torch.optim.SGD), "Adagrad": (tandem.optim.Adagrad, torch.optim.Adagrad)}


def batch(seed: int) -> torch.Tensor:
    return torch.randint(0, ROWS, (24,), generator=torch.Generator().manual_seed(seed))


def bag_of(client: tandem.Client, name: str = "t", rule: str = "SGD", **options) -> "tandem.nn.EmbeddingBag":
    return tandem.nn.EmbeddingBag(
        DIM, mode="sum", name=name, client=client, optimizer=RULES[rule][0](lr=0.1), init=tandem.init.Uniform(-0.5, 0.5), **options
    )


def rows_of(client: tandem.Client, name: str = "t") -> np.ndarray:
    return client.pull(name, np.arange(ROWS), read_only=True)[0].copy()


def twin_of(client: tandem.Client, name: str = "t") -> torch.nn.EmbeddingBag:
    return torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(rows_of(client, name)), freeze=False, mode="sum")


class Model(torch.nn.Module):
    """A bag and a dense layer."""

    def __init__(self, bag: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag, self.dense = bag, torch.nn.Linear(DIM, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dense(self.bag(ids, OFFSETS[: ids.numel() // 3]))
