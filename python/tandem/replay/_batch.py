# SPDX-License-Identifier: Apache-2.0
"""Sampled batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.errors import NotFoundError
from tandem.replay._tables import DTYPES, nest, numpy_dtype


class Batch:
    """Sampled items. The arrays are the batch's own: they may be changed and kept.

        batch["observation"]              # [batch, steps, shape...]
        batch.data                        # all columns, as the nested dict of the items

    keys: uint64, for Client.update_priorities().
    probabilities: of each draw. priorities, times_sampled: of the item when it was drawn.
    min_versions, max_versions: of the policy, over the item's steps. committed_version: None if none has been committed.
    table_items, mass: of the table before the first draw.
    shards: of each item the server that it is on, uint32, if the table is divided among several (connect() with several addresses).
    lengths: the steps of each item, for columns whose items differ in it; these are padded with zeros.
    """

    def __init__(self, core: tuple[Any, ...]) -> None:
        self.keys: np.ndarray = core[0]
        self.probabilities: np.ndarray = core[1]
        self.priorities: np.ndarray = core[2]
        self.times_sampled: np.ndarray = core[3]
        self.min_versions: np.ndarray = core[4]
        self.max_versions: np.ndarray = core[5]
        self.table_items: int = core[6]
        self.mass: float = core[7]
        self.committed_version: int | None = core[8]
        self.shards: np.ndarray | None = None
        self.columns: dict[str, np.ndarray] = {}
        self.lengths: dict[str, np.ndarray] = {}
        for name, dtype, shape, steps, lengths, data in core[9]:
            values = data.view(numpy_dtype(DTYPES[dtype]))
            if lengths is None:
                self.columns[name] = values.reshape((len(self.keys), steps, *shape))
            else:
                self.lengths[name] = lengths
                self.columns[name] = _pad(values.reshape((-1, *shape)), lengths)
        self.data: dict[str, Any] = nest(self.columns)

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, name: object) -> bool:
        return name in self.columns or name in self.data

    def __getitem__(self, name: str) -> Any:
        """Returns a column ("observation/image"), or the nested dict of a part of them ("observation")."""
        if name in self.columns:
            return self.columns[name]
        if name in self.data:
            return self.data[name]
        raise NotFoundError(f"the batch has no column '{name}'; it has {', '.join(self.columns)}")

    def __repr__(self) -> str:
        return f"Batch({len(self)} items; " + ", ".join(f"{n} {c.dtype}{list(c.shape)}" for n, c in self.columns.items()) + ")"

    @property
    def lags(self) -> np.ndarray:
        """The lag of each item in versions: committed_version - min_versions; zeros without a committed version."""
        if self.committed_version is None:
            return np.zeros(len(self), np.int64)
        return self.committed_version - self.min_versions

    def importance_weights(self, beta: float, *, scale: bool = True) -> np.ndarray:
        """Returns (1 / (items * probability))^beta of each draw, float64; with `scale` divided by the largest one of the batch.

        With beta 1 and scale=False, the mean of f * weight is an unbiased estimate of the mean of f over the table's items.
        """
        weights = (1.0 / (self.table_items * self.probabilities)) ** beta
        return weights / weights.max() if scale and len(self) > 0 else weights

    def torch(self) -> dict[str, Any]:
        """Returns `data` as tensors of PyTorch that share the arrays' memory."""
        import torch

        return nest({name: torch.from_numpy(values) for name, values in self.columns.items()})


def _pad(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    padded = np.zeros((len(lengths), int(lengths.max()), *values.shape[1:]), values.dtype)
    at = 0
    for row, length in zip(padded, lengths):
        row[:length] = values[at : at + length]
        at += int(length)
    return padded
