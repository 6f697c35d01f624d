# SPDX-License-Identifier: Apache-2.0
"""The parts of PyTorch that use process groups, compared with one process that has all the data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import enable_wrap, wrap
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))


def batches(steps: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11)
    return [
        (torch.randn(4 * size, 12, generator=generator), torch.randn(4 * size, 3, generator=generator)) for _ in range(steps)
    ]


def train(model: nn.Module, optimizer: Any, rank: int, size: int, steps: int = 5) -> None:
    for x, y in batches(steps, size if size > 1 else dist.get_world_size()):
        share = slice(rank * len(x) // size, (rank + 1) * len(x) // size)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[share]), y[share]).backward()
        optimizer.step()


def single_process() -> nn.Module:
    model = make_model()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 0, 1)
    return model


def same_parameters(actual: list[torch.Tensor], model: nn.Module) -> None:
    for mine, expected in zip(actual, model.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), expected.detach(), rtol=1e-5, atol=1e-6)


def ddp_trains_like_one_process() -> None:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.001)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), dist.get_rank(), dist.get_world_size())
    same_parameters(list(model.parameters()), single_process())


def ddp_accumulates_without_communication() -> None:
    model, alone = DistributedDataParallel(make_model()), make_model()
    rank, size = dist.get_rank(), dist.get_world_size()
    (x, y), (x2, y2) = batches(2, size)
    share = slice(rank * 4, rank * 4 + 4)
    with model.no_sync():
        nn.functional.mse_loss(model(x[share]), y[share]).backward()
    nn.functional.mse_loss(model(x2[share]), y2[share]).backward()
    (nn.functional.mse_loss(alone(x), y) + nn.functional.mse_loss(alone(x2), y2)).backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-5, atol=1e-6)


def ddp_sums_sparse_gradients() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    bag = nn.EmbeddingBag(50, 4, mode="sum", sparse=True)
    alone = copy.deepcopy(bag)
    model = DistributedDataParallel(bag)
    ids = torch.arange(6 * size).reshape(2 * size, 3) % 7
    model(ids[2 * rank : 2 * rank + 2]).sum().backward()
    (alone(ids).sum() / size).backward()
    torch.testing.assert_close(bag.weight.grad.to_dense(), alone.weight.grad.to_dense())


def ddp_with_hooks_that_chain_operations() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    for hook, hook_state in (
        (powerSGD_hook.powerSGD_hook, state), (quantization_hooks.quantization_pertensor_hook, None),
        (default_hooks.fp16_compress_hook, None), (default_hooks.allreduce_hook, None),
    ):  # fmt: skip
        model = DistributedDataParallel(make_model())
        model.register_comm_hook(hook_state, hook)
        before = [p.detach().clone() for p in model.parameters()]
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), rank, size)
        for mine, was in zip(model.parameters(), before, strict=True):
            others = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(others, mine.detach())
            assert all(torch.equal(mine, other) for other in others) and not torch.equal(mine, was)


def ddp_with_builtin_hooks_averages_gradients() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for hook in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        model = DistributedDataParallel(nn.Linear(8, 1), bucket_cap_mb=0.00001)
        model._register_builtin_comm_hook(hook)
        model(torch.full((4, 8), rank + 1.0)).sum().backward()
        torch.testing.assert_close(model.module.weight.grad, torch.full((1, 8), 2.0 * (size + 1)))


def fsdp2_trains_like_one_process() -> None:
    model = make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), dist.get_rank(), dist.get_world_size())
    same_parameters([p.full_tensor() for p in model.parameters()], single_process())


def fsdp1_trains_like_one_process() -> None:
    model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), dist.get_rank(), dist.get_world_size())
    with FullyShardedDataParallel.summon_full_params(model):
        same_parameters([p.clone() for p in model.parameters()], single_process())


def fsdp1_with_wrapped_layers_trains_like_one_process() -> None:
    model = make_model()
    with enable_wrap(wrapper_cls=FullyShardedDataParallel, device_id=torch.device("cpu")):
        model = wrap(nn.Sequential(*(wrap(layer) if isinstance(layer, nn.Linear) else layer for layer in model)))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), dist.get_rank(), dist.get_world_size())
    with FullyShardedDataParallel.summon_full_params(model):
        same_parameters([p.clone() for p in model.parameters()], single_process())


def tensor_parallelism_computes_like_one_process() -> None:
    torch.manual_seed(5)
    alone = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    model = copy.deepcopy(alone)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert model[0].weight.to_local().shape == (16 // dist.get_world_size(), 12)
    x = torch.randn(5, 12)
    torch.testing.assert_close(model(x), alone(x), rtol=1e-5, atol=1e-6)
    model(x).square().mean().backward()
    alone(x).square().mean().backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        gradient = mine.grad.full_tensor() if isinstance(mine.grad, DTensor) else mine.grad
        torch.testing.assert_close(gradient, expected.grad, rtol=1e-5, atol=1e-6)


def pipeline_stages_have_the_gradients_of_one_process() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(9)
    stages = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(size))
    alone = copy.deepcopy(stages)
    x, y = torch.randn(16, 6), torch.randn(16, 6)
    for schedule_of in (ScheduleGPipe, Schedule1F1B):
        stage = PipelineStage(stages[rank], rank, size, torch.device("cpu"))
        schedule = schedule_of(stage, 4, loss_fn=nn.MSELoss())
        losses: list[torch.Tensor] = []
        schedule.step(*([x] if rank == 0 else []), **({"target": y, "losses": losses} if rank == size - 1 else {}))
        alone.zero_grad()
        loss = nn.functional.mse_loss(nn.Sequential(*alone)(x), y)
        loss.backward()
        for mine, expected in zip(stages[rank].parameters(), alone[rank].parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-4, atol=1e-6)
        if losses:
            torch.testing.assert_close(torch.stack(losses).mean().detach(), loss.detach())
        stages.zero_grad()


def a_distributed_sampler_gives_each_epoch_another_order() -> None:
    sampler = DistributedSampler(range(20), shuffle=True, seed=1)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, list(sampler))
        assert sorted(sum(parts, [])) == list(range(20))
        orders.append(parts)
    assert orders[0] != orders[1]


def zero_redundancy_optimizer_trains_like_one_process() -> None:
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    train(model, optimizer, dist.get_rank(), dist.get_world_size())
    same_parameters(list(model.parameters()), single_process())


def dtensors_change_their_placement() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(8.0 * size).reshape(4 * size, 2)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert sharded.to_local().shape == (4, 2)
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal((sharded.t() @ sharded).full_tensor(), whole.t() @ whole)
    assert isinstance(sharded.redistribute(mesh, [Shard(1)]), DTensor) or size == 1


def functional_collectives_compile() -> None:
    from torch.distributed import _functional_collectives as functional

    size, rank = dist.get_world_size(), dist.get_rank()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        parts = functional.all_gather_tensor(x, 0, dist.group.WORLD)
        return total + parts.sum(0)

    x = torch.full((1, 3), rank + 1.0)
    expected = 3.0 * sum(range(1, size + 1))
    assert step(x).eq(expected).all()
    assert functional.reduce_scatter_tensor(torch.ones(size), "sum", 0, dist.group.WORLD).item() == size


def the_profiler_sees_collectives() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(torch.ones(3))
    assert any("allreduce" in event.name for event in profiler.events())


CHECKS = [
    ddp_trains_like_one_process, ddp_accumulates_without_communication, ddp_sums_sparse_gradients,
    ddp_with_hooks_that_chain_operations, ddp_with_builtin_hooks_averages_gradients, fsdp2_trains_like_one_process,
    fsdp1_trains_like_one_process, fsdp1_with_wrapped_layers_trains_like_one_process, tensor_parallelism_computes_like_one_process,
    pipeline_stages_have_the_gradients_of_one_process, a_distributed_sampler_gives_each_epoch_another_order, zero_redundancy_optimizer_trains_like_one_process, dtensors_change_their_placement,
    functional_collectives_compile, the_profiler_sees_collectives,
]  # fmt: skip


@pytest.mark.parametrize("function", CHECKS, ids=lambda f: f.__name__)
def test_parallel(ranks, function):
    ranks(2).run(function)
