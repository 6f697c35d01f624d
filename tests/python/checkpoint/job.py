# SPDX-License-Identifier: Apache-2.0
"""A job of test_checkpoint.py: a model whose tables are on servers and whose dense part is FSDP2's or DDP's."""

import os

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import tandem
from tandem.torch import checkpoint

ROOT, STAGE = os.environ["ROOT"], os.environ["STAGE"]
STEPS = 10

dist.init_process_group("tandem")
rank, ranks = dist.get_rank(), dist.get_world_size()
client = tandem.connect(timeout=60)
emb = tandem.nn.EmbeddingCollection(
    [tandem.nn.Table("user", dim=6, optimizer=tandem.optim.Adagrad(lr=0.1), mode="sync")], client
)
dist.barrier()
torch.manual_seed(rank)
dense = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 1))
fully_shard(dense)
model = torch.nn.ModuleDict({"emb": emb, "dense": dense})
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
emb.follow(optimizer)


def whole() -> "dict[str, np.ndarray]":
    """Returns all parameters, the optimizer's first moments and the rows, the same on every rank."""
    values = {}
    for name, parameter in dense.named_parameters():
        for kind, tensor in (("value", parameter), ("moment", optimizer.state[parameter]["exp_avg"])):
            tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            values[f"{name} {kind}"] = tensor.detach().numpy()
    values["rows"] = client.pull("user", np.arange(40), read_only=True)[0]
    return values


def train(first: int, last: int) -> None:
    for step in range(first, last):
        ids = torch.randint(0, 40, (8,), generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        (dense(emb({"user": ids})["user"]).squeeze(1) - ids % 2).square().mean().backward()
        optimizer.step()
    emb.flush()
    dist.barrier()


if STAGE == "load":
    loaded = checkpoint.load(ROOT, model, optimizer, client)
    assert loaded.step == client.step == STEPS and loaded.extra == {"rank": 0}
    saved = np.load(os.path.join(ROOT, "expected.npz"))
    for name, value in whole().items():
        np.testing.assert_array_equal(value, saved[name], err_msg=name)
    train(STEPS, STEPS + 2)
    print("the same as saved")
else:
    train(0, STEPS)
    checkpoint.save(ROOT, STEPS, model, optimizer, client, extra={"rank": rank})
    expected = whole()
    if rank == 0:
        np.savez(os.path.join(ROOT, "expected.npz"), **expected)
    train(STEPS, STEPS + 2)
if STAGE == "fail":
    if rank == 1:

        def fail(*_: object) -> None:
            raise ZeroDivisionError("on purpose")

        checkpoint._state_of = fail

    try:
        checkpoint.save(ROOT, STEPS + 2, model, optimizer, client)
    except (ZeroDivisionError, tandem.errors.AbortedError) as error:
        assert rank == 1 or "rank 1 failed: ZeroDivisionError: on purpose" in str(error), error
        print("failed as expected")
    dist.barrier()
client.close()
dist.destroy_process_group()
