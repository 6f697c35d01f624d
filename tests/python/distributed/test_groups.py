# SPDX-License-Identifier: Apache-2.0
"""Groups of groups, objects, barriers, and the end of groups."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch._C._distributed_c10d import AllreduceOptions
from torch.distributed.device_mesh import init_device_mesh

from tandem.torch import TandemBackend, TandemProcessGroup
from tandem.torch._backend import Collectives
from tandem.torch._older_group import OlderProcessGroup, backends_may_be_python

Group = TandemProcessGroup if backends_may_be_python() else OlderProcessGroup


def new_groups_are_independent() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    evens, all_ranks = dist.new_group([0, 2]), dist.new_group()
    tensor = torch.full((4,), rank + 1.0)
    if rank in (0, 2):
        assert isinstance(evens, Group) and dist.get_backend(evens) == "tandem"
        dist.all_reduce(tensor, group=evens)
        assert tensor.eq(4).all()
        dist.broadcast(tensor, src=2, group=evens)
        if rank == 0:
            dist.send(tensor, 2, group=evens)
        else:
            dist.recv(tensor, 0, group=evens)
    else:
        assert evens == dist.GroupMember.NON_GROUP_MEMBER
    one = torch.ones(1)
    dist.all_reduce(one, group=all_ranks)
    assert one.item() == size
    if rank in (0, 2):
        dist.destroy_process_group(evens)
    dist.destroy_process_group(all_ranks)


def a_group_splits() -> None:
    rank = dist.get_rank()
    group = dist.split_group(split_ranks=[[0, 1], [2]])
    tensor = torch.ones(1)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    assert work.is_completed() and tensor.item() == (2 if rank < 2 else 1)
    alone = dist.split_group(split_ranks=[[1]])
    if rank == 1:
        assert alone.size() == 1
    else:
        assert alone == dist.GroupMember.NON_GROUP_MEMBER


def a_mesh_has_a_group_for_each_dimension() -> None:
    mesh = init_device_mesh("cpu", (1, 3), mesh_dim_names=("replicate", "shard"))
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=mesh["shard"].get_group())
    assert tensor.eq(3).all()
    dist.all_reduce(tensor, group=mesh["replicate"].get_group())
    assert tensor.eq(3).all()


def objects_travel() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * 1000 * rank})
    assert [o["rank"] for o in everything] == list(range(size))
    objects = [("a", 1), None] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [("a", 1), None]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank * 10, gathered, dst=0)
    assert gathered is None or gathered == [10 * r for r in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list([{"a": 1}, 2], dst=1)
    elif rank == 1:
        received = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == [{"a": 1}, 2]


def a_monitored_barrier_names_who_is_absent_and_leaves_the_group_usable() -> None:
    rank = dist.get_rank()
    dist.monitored_barrier()
    if rank != 1:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=15))
    dist.barrier()


def options_are_reported() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert isinstance(backend, Collectives) and dist.get_backend() == "tandem"
    assert backend.transport == "shm"
    assert backend.options._timeout == datetime.timedelta(seconds=30)
    assert backend.name() == "tandem"


def a_message_that_never_comes_does_not_keep_a_group() -> None:
    group = dist.new_group(timeout=datetime.timedelta(minutes=30))
    work = dist.irecv(torch.ones(1), (dist.get_rank() + 1) % 3, group=group)
    dist.destroy_process_group(group)
    with pytest.raises(dist.DistBackendError):
        work.wait()


def a_destroyed_group_raises() -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    with pytest.raises(dist.DistBackendError, match="destroyed"):
        group.allreduce([torch.ones(1)], AllreduceOptions())


def a_group_with_another_backend_for_gpus_carries_cpu_tensors() -> None:
    size = dist.get_world_size()
    group = dist.new_group(backend="cpu:tandem,cuda:gloo")
    backend = group._get_backend(torch.device("cpu"))
    assert isinstance(backend, TandemBackend) and not backend.supports_splitting
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    assert tensor.eq(size * size).all()
    assert work.get_future().wait()[0].eq(size * size).all()
    with pytest.raises(dist.DistBackendError, match="without other devices"):
        group.recv_anysource([tensor], 0)


CHECKS = [
    a_group_with_another_backend_for_gpus_carries_cpu_tensors, new_groups_are_independent, a_group_splits, a_mesh_has_a_group_for_each_dimension, objects_travel,
    a_monitored_barrier_names_who_is_absent_and_leaves_the_group_usable, options_are_reported,
    a_message_that_never_comes_does_not_keep_a_group, a_destroyed_group_raises,
]  # fmt: skip


@pytest.mark.parametrize("function", CHECKS, ids=lambda f: f.__name__)
def test_groups(ranks, function):
    ranks(3).run(function)


def _make_groups(rank: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    for i in range(5):
        # As under torchrun, all groups use the same keys of one store.
        dist.init_process_group("tandem", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
        tensor = torch.full((3,), rank + 1.0)
        dist.all_reduce(tensor)
        assert tensor.eq(3).all()
        store.set(f"over/{i}/{rank}", "")
        store.wait([f"over/{i}/0", f"over/{i}/1"])
        dist.destroy_process_group()


def test_groups_that_are_made_again_on_one_store_meet():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(_make_groups, (store.port,), nprocs=2)


@pytest.mark.parametrize("level", ["OFF", "DETAIL"])
def test_the_entry_point_needs_no_import_and_a_group_can_be_made_again(tmp_path, level):
    program = textwrap.dedent(
        """
        import torch, torch.distributed as dist
        for i in range(2):
            dist.init_process_group("tandem", init_method=f"file://{dir}/{i}", rank=0, world_size=1)
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
            assert tensor.eq(1).all() and dist.get_backend() == "tandem"
            dist.destroy_process_group()
        """
    )
    program = program.replace("{dir}", str(tmp_path))
    subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=100, env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": level}
    )


def test_a_wrong_transport_is_refused_with_the_names_of_those_that_exist(tmp_path):
    program = textwrap.dedent(
        f"""
        import tandem.torch, torch.distributed as dist
        try:
            dist.init_process_group("tandem", init_method="file://{tmp_path}/store", rank=0, world_size=1,
                                    pg_options=tandem.torch.Options("shn"))
        except dist.DistBackendError as error:
            assert "shn" in str(error) and "shm" in str(error), error
        else:
            raise AssertionError("not refused")
        """
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


@pytest.mark.skipif("TANDEM_BINARY" not in os.environ, reason="TANDEM_BINARY does not name the tandem command")
def test_tandem_run_starts_ranks_that_meet_by_env(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import torch, torch.distributed as dist
            dist.init_process_group("tandem")
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert tensor.eq(2).all()
            print("rank", dist.get_rank(), "is done")
            dist.destroy_process_group()
            """
        )
    )
    command = [os.environ["TANDEM_BINARY"], "run", "--workers", "2", "--", sys.executable, str(program)]
    result = subprocess.run(command, timeout=100, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rank 0 is done" in result.stdout and "rank 1 is done" in result.stdout
