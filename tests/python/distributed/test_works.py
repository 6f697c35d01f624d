# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations: works, futures, order, lifetimes, timeouts."""

from __future__ import annotations

import datetime
import gc
import threading
import time

import pytest
import torch
import torch.distributed as dist


def a_work_says_when_it_is_completed() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    tensor = torch.full((1000,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is tensor or torch.equal(work.result()[0], tensor)
    assert tensor.eq(size * (size + 1) / 2).all()


def futures_have_the_outputs_and_run_callbacks() -> None:
    size = dist.get_world_size()
    tensor = torch.ones(10)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    assert torch.equal(doubled.wait(), torch.full((10,), 2.0 * size))
    assert torch.equal(future.value()[0], torch.full((10,), float(size)))
    # Of an operation that is completed, and twice of the same one.
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert work.get_future().wait()[0].eq(size * size).all()
    assert work.get_future().done()


def a_future_is_completed_when_wait_returns() -> None:
    size = dist.get_world_size()
    for _ in range(50):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done() and future.value()[0].eq(size).all() and work.get_future() is future


def a_failed_future_fails_in_cpp_too() -> None:
    group = dist.new_group(timeout=datetime.timedelta(minutes=5))
    work = dist.irecv(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size(), group=group)
    future = work.get_future()
    ran = future.then(lambda f: f.value())
    dist.barrier()  # all ranks have begun
    group.abort()
    for failed in (future, ran, torch.futures.collect_all([future])):
        with pytest.raises(RuntimeError, match="abort"):
            failed.wait()
    with pytest.raises(dist.DistBackendError, match="abort"):
        work.wait()
    with pytest.raises(RuntimeError, match="abort"):
        work.get_future().value()


def a_callback_may_wait_by_means_that_tandem_does_not_see() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    first, second = torch.ones(4), torch.full((4,), 2.0)
    store = dist.distributed_c10d._get_default_store()
    if rank > 0:
        store.wait(["unseen"])
    one = dist.all_reduce(first, async_op=True).get_future()
    other = dist.all_reduce(second, async_op=True).get_future()  # torch's class: its wait() is C++
    waited = one.then(lambda f: f.value()[0] + other.wait()[0])
    if rank == 0:
        store.set("unseen", "")
    assert waited.wait().eq(3.0 * size).all()


def a_callback_may_wait_for_another_operation() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    for attempt in range(3):
        first, second = torch.ones(4), torch.full((4,), 2.0)

        def add(future: torch.futures.Future, second: torch.Tensor = second) -> torch.Tensor:
            again = dist.all_reduce(second, async_op=True)
            return future.value()[0] + again.get_future().wait()[0]

        if rank > 0:
            store.wait([f"callback/{attempt}"])  # rank 0 has its callback, and its operation is under way
        future = dist.all_reduce(first, async_op=True).get_future().then(add)
        if rank == 0:
            store.set(f"callback/{attempt}", "")
        assert future.wait().eq(3.0 * size).all()
    tensor = torch.ones(4)
    waited = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda _: dist.all_reduce(tensor, async_op=True).wait())
    assert waited.wait() and tensor.eq(size).all()


def callbacks_of_many_operations_run_once() -> None:
    ran: list[int] = []
    works = [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(50)]
    futures = [work.get_future().then(lambda _, i=i: ran.append(i)) for i, work in enumerate(works)]
    for future in futures:
        future.wait()
    assert sorted(ran) == list(range(50)), ran


def operations_run_in_their_order_whatever_waits_for_them() -> None:
    size = dist.get_world_size()
    tensors = [torch.full((4096,), float(i)) for i in range(40)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = torch.ones(3)
    dist.all_reduce(last)  # blocks behind the others
    for i in reversed(range(40)):
        works[i].wait()
        assert tensors[i].eq(size * i).all()
    assert last.eq(size).all()


def tensors_live_until_the_operation_is_completed() -> None:
    size = dist.get_world_size()
    kept = []
    for i in range(20):
        tensor = torch.full((50_000,), float(i))
        kept.append(tensor.data_ptr())
        dist.all_reduce(tensor, async_op=True)  # drops the work and the tensor
        del tensor
        gc.collect()
    final = torch.ones(1)
    dist.all_reduce(final)
    assert final.item() == size and len(kept) == 20


def python_threads_go_on_while_a_rank_waits() -> None:
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    if rank == 0:
        # The others come only when their threads have run beside the barrier.
        store.wait([f"threads/{other}" for other in range(1, dist.get_world_size())], datetime.timedelta(seconds=60))
        dist.barrier()
        return
    waits = threading.Event()

    def count() -> None:
        waits.wait()
        for _ in range(100_000):
            pass
        store.set(f"threads/{rank}", "")

    thread = threading.Thread(target=count)
    thread.start()
    waits.set()
    dist.barrier()
    thread.join()


def a_message_from_any_rank_names_its_sender() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    if rank == 0:
        senders = set()
        for _ in range(size - 1):
            tensor = torch.empty(2, dtype=torch.int64)
            senders.add(dist.recv(tensor))
            assert tensor.tolist()[0] in senders
        assert senders == set(range(1, size))
        tensor = torch.empty(1)
        work = dist.irecv(tensor, tag=5)
        work.wait()
        assert work._source_rank() == 1
    else:
        dist.send(torch.tensor([rank, 0]), 0)
        if rank == 1:
            dist.send(torch.ones(1), 0, tag=5)


def messages_with_tags_and_batches() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    right, left = (rank + 1) % size, (rank - 1) % size
    received = [torch.empty(3), torch.empty(3)]
    operations = [
        dist.P2POp(dist.irecv, received[0], left, tag=1),
        dist.P2POp(dist.irecv, received[1], left, tag=2),
        dist.P2POp(dist.isend, torch.full((3,), 2.0 + rank), right, tag=2),
        dist.P2POp(dist.isend, torch.full((3,), 1.0 + rank), right, tag=1),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received[0].eq(1.0 + left).all() and received[1].eq(2.0 + left).all()


def waiting_may_be_limited_and_goes_on_later() -> None:
    if dist.get_rank() == 0:
        tensor = torch.empty(1)
        work = dist.irecv(tensor, 1, tag=9)
        assert not work.is_completed()
        with pytest.raises(dist.DistBackendError, match="still runs after 0.05 s"):
            work.wait(datetime.timedelta(seconds=0.05))
        dist.send(torch.ones(1), 1, tag=10)
        work.wait()
        assert tensor.item() == 4
    elif dist.get_rank() == 1:
        dist.recv(torch.empty(1), 0, tag=10)
        dist.send(torch.full((1,), 4.0), 0, tag=9)


CHECKS = [
    a_work_says_when_it_is_completed, futures_have_the_outputs_and_run_callbacks, a_future_is_completed_when_wait_returns,
    a_failed_future_fails_in_cpp_too, a_callback_may_wait_by_means_that_tandem_does_not_see, a_callback_may_wait_for_another_operation,
    callbacks_of_many_operations_run_once,
    operations_run_in_their_order_whatever_waits_for_them, tensors_live_until_the_operation_is_completed,
    python_threads_go_on_while_a_rank_waits, a_message_from_any_rank_names_its_sender, messages_with_tags_and_batches,
    waiting_may_be_limited_and_goes_on_later,
]  # fmt: skip


@pytest.mark.parametrize("function", CHECKS, ids=lambda f: f.__name__)
def test_works(ranks, function):
    ranks(2).run(function)
