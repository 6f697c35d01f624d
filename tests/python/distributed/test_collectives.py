# SPDX-License-Identifier: Apache-2.0
"""Every collective and dtype, compared with an obvious model. Each function runs on all ranks."""

from __future__ import annotations

import functools
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BroadcastOptions

INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED_ONLY = [torch.bool, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn]
OPS: dict[Any, Callable[[Any, Any], Any]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def value(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (3, 5)) -> torch.Tensor:
    """The tensor that `rank` gives. All values and their sums are exact in every dtype."""
    count = int(torch.Size(shape).numel())
    numbers = (torch.arange(count) + 3 * rank) % 5 + 1
    if dtype is torch.bool:
        return (numbers % 2 == 0).reshape(shape)
    if dtype.itemsize == 1 and dtype.is_floating_point or dtype in (torch.uint16, torch.uint32, torch.uint64):
        return numbers.to(torch.float32 if dtype.is_floating_point else torch.int32).to(dtype).reshape(shape)
    if dtype.is_complex:
        return torch.complex(numbers.double(), -2.0 * numbers.double()).to(dtype).reshape(shape)
    return numbers.to(dtype).reshape(shape)


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    as_bytes = lambda t: t.contiguous().reshape(-1).view(torch.uint8)  # noqa: E731
    assert torch.equal(as_bytes(actual), as_bytes(expected)), f"{actual} is not {expected}"


def all_reduce_equals_the_model() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in INTEGERS + FLOATS:
        for op, function in OPS.items():
            if dtype.is_floating_point and op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
                continue
            tensor = value(rank, dtype)
            dist.all_reduce(tensor, op)
            check(tensor, functools.reduce(function, [value(r, dtype) for r in range(size)]))
        total = functools.reduce(torch.add, [value(r, dtype) for r in range(size)])
        tensor = value(rank, dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        check(tensor, (total / size).to(dtype) if dtype.is_floating_point else total // size)
    for dtype in COMPLEX:
        tensor = value(rank, dtype)
        dist.all_reduce(tensor)
        check(tensor, functools.reduce(torch.add, [value(r, dtype) for r in range(size)]))
    tensor = value(rank, torch.float32)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5 + rank))
    expected = functools.reduce(torch.add, [(0.5 + r) * value(r, torch.float32) for r in range(size)])
    torch.testing.assert_close(tensor, expected)


def bools_are_reduced_as_truth_values() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    values = [value(r, torch.bool) for r in range(size)]
    for op, function in [
        (dist.ReduceOp.SUM, torch.logical_or), (dist.ReduceOp.MAX, torch.logical_or), (dist.ReduceOp.BOR, torch.logical_or),
        (dist.ReduceOp.PRODUCT, torch.logical_and), (dist.ReduceOp.MIN, torch.logical_and),
        (dist.ReduceOp.BXOR, torch.logical_xor),
    ]:  # fmt: skip
        tensor = values[rank].clone()
        dist.all_reduce(tensor, op)
        check(tensor, functools.reduce(function, values))


def what_cannot_be_reduced_is_refused_and_the_group_stays_usable() -> None:
    for dtype, op in [(torch.int16, dist.ReduceOp.SUM), (torch.bool, dist.ReduceOp.AVG), (torch.float32, dist.ReduceOp.BAND)]:
        with pytest.raises(dist.DistBackendError, match="not supported|integers"):
            dist.all_reduce(torch.ones(3, dtype=dtype), op)
    with pytest.raises(dist.DistBackendError, match="no rank|root|rank"):
        options = BroadcastOptions()
        options.rootRank = 99
        dist.group.WORLD.broadcast([torch.ones(1)], options)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()


def data_move_unchanged() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in INTEGERS + FLOATS + COMPLEX + MOVED_ONLY:
        values = [value(r, dtype) for r in range(size)]
        for root in range(size):
            tensor = value(rank, dtype)
            dist.broadcast(tensor, root)
            check(tensor, values[root])

            outputs = [torch.empty_like(values[0]) for _ in range(size)] if rank == root else None
            dist.gather(values[rank], outputs, root)
            for actual, expected in zip(outputs or [], values):
                check(actual, expected)

            output = torch.empty_like(values[0])
            dist.scatter(output, values if rank == root else None, root)
            check(output, values[rank])

        outputs = [torch.empty_like(values[0]) for _ in range(size)]
        dist.all_gather(outputs, values[rank])
        for actual, expected in zip(outputs, values):
            check(actual, expected)

        together = torch.empty((size * 3, 5), dtype=dtype)
        dist.all_gather_into_tensor(together, values[rank])
        check(together, torch.cat([v.reshape(-1).view(torch.uint8) for v in values]).view(dtype).reshape(size * 3, 5))

        dist.all_to_all(outputs, [value(10 * rank + r, dtype) for r in range(size)])
        for r, actual in enumerate(outputs):
            check(actual, value(10 * r + rank, dtype))

        if rank < 2 <= size:
            other = 1 - rank
            received = torch.empty_like(values[0])
            works = [dist.isend(values[rank], other, tag=3), dist.irecv(received, other, tag=3)]
            for work in works:
                work.wait()
            check(received, values[other])


def reductions_with_a_root_and_in_parts() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in [torch.int64, torch.float32, torch.bfloat16]:
        total = functools.reduce(torch.add, [value(r, dtype) for r in range(size)])
        for root in range(size):
            tensor = value(rank, dtype)
            dist.reduce(tensor, root)
            if rank == root:
                check(tensor, total)
        parts = [value(rank + 2 * part, dtype) for part in range(size)]
        expected = functools.reduce(torch.add, [value(r + 2 * rank, dtype) for r in range(size)])
        output = torch.empty((3, 5), dtype=dtype)
        dist.reduce_scatter(output, parts)
        check(output, expected)
        dist.reduce_scatter_tensor(output, torch.cat(parts))
        check(output, expected)


def sizes_may_differ_by_rank() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.full((rank + 1, 2), float(rank))
    outputs = [torch.empty(r + 1, 2) for r in range(size)]
    dist.all_gather(outputs, mine)
    for r, output in enumerate(outputs):
        check(output, torch.full((r + 1, 2), float(r)))
    # Rank r sends s + 1 rows of 10 r + s to rank s.
    sends = torch.cat([torch.full((s + 1, 2), 10.0 * rank + s) for s in range(size)])
    output = torch.empty(size * (rank + 1), 2)
    dist.all_to_all_single(output, sends, [rank + 1] * size, [s + 1 for s in range(size)])
    check(output, torch.cat([torch.full((rank + 1, 2), 10.0 * r + rank) for r in range(size)]))


def all_to_all_single_splits_rows() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    sends = torch.arange(size * 4).reshape(size * 2, 2) + 100 * rank
    output = torch.empty_like(sends)
    dist.all_to_all_single(output, sends)
    mine = [torch.arange(size * 4).reshape(size * 2, 2)[2 * rank : 2 * rank + 2] + 100 * r for r in range(size)]
    check(output, torch.cat(mine))
    with pytest.raises((dist.DistBackendError, ValueError, RuntimeError), match="(?i)split|add up|share"):
        dist.all_to_all_single(output, sends, [1] * size, [1] * size)


def tensors_that_are_not_contiguous_are_copied() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.zeros(6, 4)
    view = whole.t()[:, ::2]
    view.copy_(value(rank, torch.float32, (4, 3)))
    dist.all_reduce(view)
    check(view.contiguous(), functools.reduce(torch.add, [value(r, torch.float32, (4, 3)) for r in range(size)]))
    assert whole[1].eq(0).all()
    outputs = [torch.zeros(3, 4).t() for _ in range(size)]
    work = dist.all_gather(outputs, view, async_op=True)
    work.wait()
    for output in outputs:
        check(output.contiguous(), view.contiguous())
    target = torch.zeros(4, 6)[:, ::2]
    dist.broadcast(view if rank == 0 else target, 0)
    if rank != 0:
        check(target.contiguous(), view.contiguous())


def empty_tensors_are_allowed() -> None:
    size = dist.get_world_size()
    dist.all_reduce(torch.empty(0))
    dist.broadcast(torch.empty(0, 3, dtype=torch.bool), 0)
    dist.all_gather([torch.empty(0) for _ in range(size)], torch.empty(0))
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(torch.empty(0, 2), torch.empty(0, 2))
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
    dist.barrier()


def many_tensors_go_in_one_call() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    shapes = [(3, 5), (1,), (200, 300)]
    for dtype in [torch.float32, torch.int64]:
        tensors = [value(rank, dtype, shape) for shape in shapes]
        dist.all_reduce_coalesced(tensors)
        for actual, shape in zip(tensors, shapes):
            check(actual, functools.reduce(torch.add, [value(r, dtype, shape) for r in range(size)]))
    with dist._coalescing_manager(async_ops=True) as manager:
        results = [torch.ones(4) * (rank + i) for i in range(3)]
        for result in results:
            dist.all_reduce(result)
    manager.wait()
    for i, result in enumerate(results):
        check(result, torch.ones(4) * sum(r + i for r in range(size)))
    gathered = [torch.empty(size * 2, 2) for _ in range(3)]
    scattered = [torch.empty(2) for _ in range(3)]
    with dist._coalescing_manager():
        for i, output in enumerate(gathered):
            dist.all_gather_into_tensor(output, torch.full((2, 2), 10.0 * rank + i))
    with dist._coalescing_manager():
        for i, output in enumerate(scattered):
            dist.reduce_scatter_tensor(output, torch.arange(2.0 * size) + i)
    for i in range(3):
        check(gathered[i], torch.cat([torch.full((2, 2), 10.0 * r + i) for r in range(size)]))
        check(scattered[i], size * (torch.arange(2.0) + 2 * rank + i))
    outputs = [[torch.empty(3, 5), torch.empty(1)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, [value(rank, torch.float32), value(rank, torch.float32, (1,))])
    for r, (first, second) in enumerate(outputs):
        check(first, value(r, torch.float32))
        check(second, value(r, torch.float32, (1,)))


def sparse_tensors_are_summed() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()

    def make(r: int) -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[r, 7, r]]), torch.full((3, 2), r + 1.0), (10, 2))

    tensor = make(rank)
    dist.all_reduce(tensor)
    model = sum((make(r).to_dense() for r in range(size)), torch.zeros(10, 2))
    torch.testing.assert_close(tensor.to_dense(), model)


CHECKS = [
    all_reduce_equals_the_model, bools_are_reduced_as_truth_values, what_cannot_be_reduced_is_refused_and_the_group_stays_usable,
    data_move_unchanged, reductions_with_a_root_and_in_parts, sizes_may_differ_by_rank, all_to_all_single_splits_rows,
    tensors_that_are_not_contiguous_are_copied, empty_tensors_are_allowed, many_tensors_go_in_one_call, sparse_tensors_are_summed,
]  # fmt: skip


@pytest.mark.parametrize("function", CHECKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives(ranks, size, function):
    ranks(size).run(function)


@pytest.mark.parametrize("function", [all_reduce_equals_the_model, data_move_unchanged, sizes_may_differ_by_rank], ids=lambda f: f.__name__)
def test_collectives_between_hosts(ranks, network_transport, function):
    ranks(2, network_transport).run(function)
