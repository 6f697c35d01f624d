# SPDX-License-Identifier: Apache-2.0
"""Tables that every worker has as an ordinary parameter."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.nn.functional as F

from tandem._load import load_core
from tandem._tables import initializer_message
from tandem.errors import InvalidArgumentError
from tandem.nn.table import Table

_core = load_core()


class _ScaledGradient(torch.autograd.Function):
    """Multiplies gradients. Not a hook of the parameter, which FSDP and copy.deepcopy() replace by another one."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.factor, None


def make_parameter(table: Table) -> torch.nn.Parameter:
    """Returns the rows of a replicated table, [num_embeddings, dim], with the initial values that servers would give them."""
    assert table.num_embeddings is not None
    rows = torch.empty(table.num_embeddings, table.dim, dtype=torch.float32, device="cpu")
    config = {"name": table.name, "dim": table.dim, "seed": table.seed, "initializer": initializer_message(table.init)}
    _core.fill_initial_rows(json.dumps(config), table.num_embeddings, rows.data_ptr())
    return torch.nn.Parameter(rows)


def look_up(
    rows: torch.Tensor,
    gradient_factor: float,
    table: Table,
    feature: str,
    ids: torch.Tensor,
    offsets: torch.Tensor | None,
    base: int,
    ends_are_given: bool,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    """Returns what the lookup of a sharded table with these rows returns.

    gradient_factor: multiplies gradients, before DistributedDataParallel divides them by the number of workers.
    """
    _check(table, feature, ids)
    if gradient_factor != 1.0:
        rows = _ScaledGradient.apply(rows, gradient_factor)
    ids = ids.to(device=rows.device, dtype=torch.int64)
    padding = table.padding_idx
    if table.pooling is None:
        out = F.embedding(ids, rows)
        return out if padding is None else out.masked_fill((ids == padding).unsqueeze(-1), 0.0)
    if weights is not None:
        weights = weights.to(device=rows.device, dtype=rows.dtype)
    if offsets is not None:
        offsets = offsets.to(device=rows.device, dtype=torch.int64) - base
    else:
        ids = ids.unsqueeze(1) if ids.dim() == 1 else ids
        if ids.numel() == 0:
            # The sum of no row connects the result with the parameter.
            return rows.new_zeros(ids.shape[0], table.dim) + rows[:0].sum()
        weights = None if weights is None else weights.view_as(ids)
    return F.embedding_bag(
        ids, rows, offsets, mode=table.pooling, per_sample_weights=weights, include_last_offset=offsets is not None and ends_are_given,
        padding_idx=padding,
    )


def _check(table: Table, feature: str, ids: torch.Tensor) -> None:
    # A graph cannot raise, and a GPU would have to wait.
    if torch.compiler.is_compiling() or not ids.is_cpu or ids.numel() == 0:
        return
    assert table.num_embeddings is not None
    low, high = (int(limit) for limit in torch.aminmax(ids))
    if low < 0 or high >= table.num_embeddings:
        raise InvalidArgumentError(
            f"feature '{feature}' contains the id {low if low < 0 else high}; table '{table.name}' is replicated, with ids from 0 to "
            f"{table.num_embeddings - 1} (num_embeddings). A sharded table has any ids"
        )
