# SPDX-License-Identifier: Apache-2.0
"""A worker of test_follow_job.py: programs of data parallelism, run with a table and with torch.nn.EmbeddingBag in the same ranks."""

import contextlib
import math
import sys

import bags
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from bags import DIM, OFFSETS, ROWS, Model, rows_of, twin_of

import tandem


def batch(number: int) -> torch.Tensor:
    # Some ids are in the batches of several ranks.
    return bags.batch(100 * number + dist.get_rank())


def loss_of(model, number: int, factor: float = 1.0) -> torch.Tensor:
    return model(batch(number)).square().mean() * factor


def sgd(model, bag) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if isinstance(bag, tandem.nn.EmbeddingBag):
        bag.follow(optimizer)
    return optimizer


# Programs: they get the model, its bag, and a list for numbers that must be equal.


def ddp(model, bag, numbers):
    model = DDP(model)
    optimizer = sgd(model, bag)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def no_sync(model, bag, numbers):
    model = DDP(model)
    optimizer = sgd(model, bag)
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(3):
            with model.no_sync() if micro < 2 else contextlib.nullcontext():
                loss_of(model, 3 * step + micro, 1 / 3).backward()
        optimizer.step()


def clip_norm(model, bag, numbers):
    model = DDP(model)
    optimizer = sgd(model, bag)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, 10.0).backward()
        kind = [2.0, float("inf"), 1.0, 2.0][step]
        numbers.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), [0.5, 2.0, 1e6, 0.1][step], kind)))
        optimizer.step()


def clip_norm_by_hand(model, bag, numbers):
    """Each rank multiplies by the same number, or the ranks' dense parameters drift apart."""
    model = DDP(model)
    optimizer = sgd(model, bag)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, 10.0).backward()
        norm = math.sqrt(sum(float(p.grad.detach().data.norm(2)) ** 2 for p in model.parameters()))
        numbers.append(norm)
        for parameter in model.parameters():
            parameter.grad.mul_(0.1 / norm)
        optimizer.step()


class Sometimes(torch.nn.Module):
    """Looks up the rows in two of three steps on rank 1, in all of them on rank 0."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids, step):
        if dist.get_rank() == 1 and step % 3 == 1:
            return self.model.dense(ids[OFFSETS].unsqueeze(1).expand(-1, DIM) / ROWS)
        return self.model(ids)


def clip_norm_of_rows_that_one_rank_has(model, bag, numbers):
    model = DDP(Sometimes(model), find_unused_parameters=True)
    optimizer = sgd(model, bag)
    for step in range(4):
        optimizer.zero_grad()
        model(batch(step), step).square().mean().backward()
        numbers.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()


def scaler_of_rows_that_one_rank_has(model, bag, numbers):
    model = DDP(Sometimes(model), find_unused_parameters=True)
    optimizer = sgd(model, bag)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(5):
        optimizer.zero_grad()
        factor = float("inf") if step == 1 and dist.get_rank() == 0 else 1.0
        scaler.scale(model(batch(step), step).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    numbers.append(scaler.get_scale())


def scaler(model, bag, numbers):
    model = DDP(model)
    optimizer = sgd(model, bag)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(5):
        optimizer.zero_grad()
        # Only one rank's gradient is infinite.
        infinite = step == 2 and dist.get_rank() == 1
        scaler.scale(loss_of(model, step, float("inf") if infinite else 1.0)).backward()
        if step == 3:
            scaler.unscale_(optimizer)
            numbers.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        scaler.step(optimizer)
        scaler.update()
    numbers.append(scaler.get_scale())


def an_overflow_of_a_table_on_one_rank(model, bag, numbers):
    """Only the gradient of rows is infinite: all ranks skip the step."""
    model = DDP(model)
    optimizer = sgd(model, bag)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        if step == 1 and dist.get_rank() == 1:
            inner = model.module.bag(batch(9), OFFSETS).sum() * float("inf")
            loss = loss + inner * 0.5
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    numbers.append(scaler.get_scale())


def frozen(model, bag, numbers):
    model.bag.requires_grad_(False)
    ddp(model, bag, numbers)


def compiled_ddp(model, bag, numbers):
    model = torch.compile(DDP(model), backend="aot_eager")
    optimizer = sgd(model, bag)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def ddp_of_compiled(model, bag, numbers):
    ddp(torch.compile(model, backend="aot_eager"), bag, numbers)


def static_graph(model, bag, numbers):
    model = DDP(model, static_graph=True)
    optimizer = sgd(model, bag)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def zero_redundancy(model, bag, numbers):
    model = DDP(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    if isinstance(bag, tandem.nn.EmbeddingBag):
        bag.follow(optimizer)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def zero_redundancy_of_the_dense_part(model, bag, numbers):
    """The table's parameter is added to an optimizer that has none."""
    table = isinstance(bag, tandem.nn.EmbeddingBag)
    model = DDP(model)
    optimizer = ZeroRedundancyOptimizer((model.module.dense if table else model).parameters(), torch.optim.SGD, lr=0.1)
    if table:
        bag.follow(optimizer)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def fsdp2(model, bag, numbers):
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = sgd(model, bag)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, 10.0).backward()
        if step > 1:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            numbers.append(float(norm.full_tensor()))
        optimizer.step()


def fsdp1(model, bag, numbers):
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = sgd(model, bag)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    numbers.append(float(loss_of(model, 77)))


def join_of_ddp(model, bag, numbers):
    model = DDP(model)
    optimizer = sgd(model, bag)
    for epoch in range(2):
        with model.join():
            for step in range(2 + 3 * ((dist.get_rank() + epoch) % 2)):
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()


def join_of_both(model, bag, numbers):
    model = DDP(model)
    optimizer = sgd(model, bag)
    for epoch in range(2):
        with Join([model, bag] if isinstance(bag, tandem.nn.EmbeddingBag) else [model]):
            for step in range(2 + 3 * ((dist.get_rank() + epoch) % 2)):
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()


def join_of_tables(model, bag, numbers):
    """Nothing but tables, whose steps are pushed by backward()."""
    if not isinstance(bag, tandem.nn.EmbeddingBag):
        return
    other = bags.bag_of(bag.client, "joined", update_mode="sync")
    before = bag.client.pull("joined", [7])[0][0, 0]
    with Join([other]):
        for _ in range(2 + 3 * dist.get_rank()):
            other(torch.tensor([[7]])).sum().backward()
    other.flush()
    dist.barrier()
    after = bag.client.pull("joined", [7], read_only=True)[0][0, 0]
    assert abs(before - after - 0.1 * 0.5 * (2 + 5)) < 1e-5, (before, after)


PROGRAMS = {
    program.__name__: program
    for program in (
        ddp, no_sync, clip_norm, clip_norm_by_hand, clip_norm_of_rows_that_one_rank_has, scaler, scaler_of_rows_that_one_rank_has,
        an_overflow_of_a_table_on_one_rank, frozen, compiled_ddp, ddp_of_compiled, static_graph,
        zero_redundancy, zero_redundancy_of_the_dense_part, fsdp2, fsdp1, join_of_ddp, join_of_both, join_of_tables,
    )
}


def whole(parameter) -> np.ndarray:
    return (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach().numpy()


def compare(program, bag) -> None:
    name, client = program.__name__, bag.client
    reference = Model(twin_of(client, name))
    dist.barrier()
    model = Model(bag)
    expected, found = [], []
    program(reference, reference.bag, expected)
    program(model, bag, found)
    bag.flush()
    steps = [None] * dist.get_world_size()
    dist.all_gather_object(steps, client.step)
    assert len(set(steps)) == 1, steps
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    if program is not fsdp1:  # whose parameters are views of this rank's part
        np.testing.assert_allclose(rows_of(client, name), whole(reference.bag.weight), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(whole(model.dense.weight), whole(reference.dense.weight), rtol=1e-4, atol=1e-6)
    dist.barrier()


def main() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with tandem.connect(timeout=60) as client:
        # Before the first step, because the pull of a step waits for the table's earlier steps.
        tables = {name: bags.bag_of(client, name, update_mode="sync") for name in sys.argv[1:]}
        bags.bag_of(client, "joined", update_mode="sync")
        for name, bag in tables.items():
            compare(PROGRAMS[name], bag)
            print(f"rank {dist.get_rank()}: {name} is equal", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
