# SPDX-License-Identifier: Apache-2.0
"""A rank raises, comes too late or is killed while the others train: they get an exception that names it, and end."""

from __future__ import annotations

import datetime
import os
import signal
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from rank_pool import JOB_DEADLINE, Job, error_of
from torch import nn
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tandem.torch._older_group import backends_may_be_python

IMPORTED = ["tandem.torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed._composable.fsdp", "torch.distributed.optim"]
PATIENCE = datetime.timedelta(seconds=1)  # of the group for a late rank


def small_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))


def ddp(**options: Any) -> nn.Module:
    return DistributedDataParallel(small_model(), **options)


def with_hook(hook: Any, state: Any = None) -> nn.Module:
    model = ddp(bucket_cap_mb=0.001)
    model.register_comm_hook(state, hook)
    return model


def with_builtin_hook(kind: Any) -> nn.Module:
    model = ddp(bucket_cap_mb=0.001)
    model._register_builtin_comm_hook(kind)
    return model


def fsdp2() -> nn.Module:
    model = small_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


class Zero(nn.Module):
    """DDP whose optimizer broadcasts its part of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ddp()
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.SGD, lr=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.step()
        return self.model(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ddp": ddp,
    "ddp_with_small_buckets": lambda: ddp(bucket_cap_mb=0.001),
    "ddp_that_finds_unused_parameters": lambda: ddp(find_unused_parameters=True),
    "allreduce_hook": lambda: with_hook(default_hooks.allreduce_hook),
    "fp16_hook": lambda: with_hook(default_hooks.fp16_compress_hook),
    "power_sgd_hook": lambda: with_hook(
        powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    ),
    "builtin_allreduce_hook": lambda: with_builtin_hook(dist.BuiltinCommHookType.ALLREDUCE),
    "builtin_fp16_hook": lambda: with_builtin_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
    "fsdp1": lambda: FullyShardedDataParallel(small_model(), device_id=torch.device("cpu")),
    "zero": Zero,
}
if backends_may_be_python():  # others need torch 2.15
    MODELS["fsdp2"] = fsdp2
    MODELS["quantization_hook"] = lambda: with_hook(quantization_hooks.quantization_pertensor_hook)


def train(model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(4, 12)).sum().backward()


def _train_beside_a_rank_that_fails(rank: int, pipe: Any) -> None:
    name, failure = pipe.recv()
    model = MODELS[name]()
    train(model, 3)
    pipe.send("trains")
    if failure == "late":
        dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(PATIENCE)
    if rank == 1:
        pipe.recv()  # the test has seen rank 0 train
        if failure == "raises":
            raise ValueError("a bad batch")
        if failure == "late":
            pipe.recv()  # until rank 0 has its error
            return
        os.kill(os.getpid(), signal.SIGKILL)
    pipe.send(error_of(lambda: train(model, 100)))


@pytest.mark.parametrize("failure", ["raises", "late", "killed"])
@pytest.mark.parametrize("name", MODELS)
def test_survivors_of_a_backward_get_an_exception_that_names_the_rank(tmp_path, name, failure):
    with Job(_train_beside_a_rank_that_fails, tmp_path, timeout=JOB_DEADLINE, imported=IMPORTED) as job:
        for pipe in job.pipes:
            pipe.send((name, failure))
        assert [job.receive(rank) for rank in range(2)] == ["trains", "trains"]
        job.pipes[1].send("fail")
        kind, text, _ = job.receive(0)
        assert kind in ("RuntimeError", "DistBackendError"), text
        assert "rank 1" in text and "rank 0" not in text.replace("from rank 0)", ""), text  # an operation names its root
        assert job.receive(0) == "done"
        if failure == "late":
            job.pipes[1].send("rank 0 has its error")
        job.processes[0].join(JOB_DEADLINE)
        assert job.processes[0].exitcode == 0
