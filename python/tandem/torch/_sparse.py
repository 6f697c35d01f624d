# SPDX-License-Identifier: Apache-2.0
"""The sum of sparse tensors: all ranks gather indices and values, which may differ in number."""

from __future__ import annotations

from typing import Any

import torch

from tandem.errors import UnimplementedError
from tandem.torch._tensors import flat, moved, reduced


def _gather(connection: Any, tensor: torch.Tensor, outputs: list[torch.Tensor], timeout: float) -> None:
    dtype, count = moved(tensor.dtype)
    connection.all_gather(
        tensor.data_ptr(), tensor.numel() * count, flat(outputs, count), dtype, False, timeout, (tensor, outputs)
    )


def all_reduce(connection: Any, tensor: torch.Tensor, reduce_op: Any, rank: int, size: int, timeout: float) -> None:
    """Replaces a COO tensor by the sum over all ranks. Blocks."""
    if reduced(torch.float32, reduce_op)[2] != reduced(torch.float32, torch.distributed.ReduceOp.SUM)[2]:
        raise UnimplementedError(f"all_reduce of sparse tensors only sums, not {reduce_op}")
    with torch.no_grad():
        mine = tensor.detach().coalesce()
        indices, values = mine.indices().contiguous(), mine.values().contiguous()
        nonzeros = torch.tensor([indices.size(1)])
        counts = [torch.empty(1, dtype=torch.int64) for _ in range(size)]
        _gather(connection, nonzeros, counts, timeout)
        all_indices = [torch.empty(indices.size(0), int(count), dtype=torch.int64) for count in counts]
        _gather(connection, indices, all_indices, timeout)
        all_values = [torch.empty(int(count), *values.shape[1:], dtype=values.dtype) for count in counts]
        _gather(connection, values, all_values, timeout)
        total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), tensor.shape).coalesce()
        tensor.copy_(total)
