# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, hang, disagree, are aborted, interrupted or forked. Errors have Tandem's text, and come in time."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from rank_pool import JOB_DEADLINE as DEADLINE
from rank_pool import Job, error_of


def _all_reduce_until_an_error(rank: int, pipe: Any) -> None:
    def call() -> None:
        while True:
            dist.all_reduce(torch.ones(1000))

    pipe.send(os.getpid())
    pipe.send(error_of(call))
    pipe.send(error_of(lambda: dist.all_reduce(torch.ones(1000))))


def test_the_other_ranks_learn_of_a_kill(tmp_path):
    with Job(_all_reduce_until_an_error, tmp_path) as job:
        job.receive(0)
        os.kill(job.receive(1), signal.SIGKILL)
        kind, text, _ = job.receive(0)
        assert kind == "DistBackendError" and "rank 1" in text, text
        kind, text, seconds = job.receive(0)
        assert kind == "DistBackendError" and "rank 1" in text and seconds < 20


def _wait_for_an_absent_rank(rank: int, pipe: Any) -> None:
    group = dist.new_group(timeout=datetime.timedelta(seconds=10))  # also for the ranks to meet
    if rank == 0:
        pipe.send(error_of(lambda: dist.all_reduce(torch.ones(10), group=group)))
        pipe.send(error_of(lambda: dist.barrier(group)))
    else:
        pipe.recv()


def test_an_absent_rank_is_named_at_the_timeout_of_the_group(tmp_path):
    with Job(_wait_for_an_absent_rank, tmp_path) as job:
        kind, text, seconds = job.receive(0)
        assert kind == "DistBackendError" and "rank 1 did not come" in text and "10s" in text, text
        assert 9 < seconds < 25  # the default group waits for 30 s


def _give_another_dtype(rank: int, pipe: Any) -> None:
    dtype = torch.float32 if rank == 0 else torch.float64
    work = dist.all_reduce(torch.ones(10, dtype=dtype), async_op=True)
    pipe.send(error_of(work.wait))
    pipe.send(error_of(lambda: work.get_future().wait()))
    pipe.send((work.is_completed(), work.is_success(), type(work.exception()).__name__))


def test_ranks_that_disagree_get_an_error_that_says_how(tmp_path):
    with Job(_give_another_dtype, tmp_path) as job:
        for rank in range(2):
            for _ in range(2):
                kind, text, _ = job.receive(rank)
                assert "disagree" in text and "f64" in text, text
            assert job.receive(rank) == (True, False, "DistBackendError")


def _abort(rank: int, pipe: Any) -> None:
    if rank == 0:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        threading.Timer(0.2, dist.group.WORLD.abort).start()
        pipe.send(error_of(work.wait))
    else:
        pipe.send(error_of(lambda: dist.recv(torch.ones(1), 0)))


def test_abort_ends_operations_on_all_ranks(tmp_path):
    with Job(_abort, tmp_path) as job:
        for rank in range(2):
            kind, text, seconds = job.receive(rank)
            assert kind == "DistBackendError" and "abort" in text and seconds < 20, text


def _interrupted(call: Callable[[], Any], pipe: Any) -> tuple[str, str]:
    """Sends this process's id, and repeats `call` until Ctrl-C comes while it waits."""
    sent = False
    while True:
        try:
            if not sent:
                sent = True
                pipe.send(os.getpid())
            call()
        except BaseException as error:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the next one may come before the answer
            frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            if not isinstance(error, KeyboardInterrupt) or any("tandem/torch" in name for name in frames):
                return type(error).__name__, str(error)
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _wait_to_be_interrupted(rank: int, pipe: Any) -> None:
    tensor = torch.ones(10)
    if rank == 0:
        pipe.send(_interrupted(lambda: dist.all_reduce(tensor), pipe))
    elif rank == 1:
        work = dist.irecv(tensor, 2)
        pipe.send(_interrupted(work.wait, pipe))
    pipe.recv()  # the end of a rank would abort the group


def test_ctrl_c_ends_a_collective_and_a_wait(tmp_path):
    with Job(_wait_to_be_interrupted, tmp_path, size=3, timeout=600) as job:
        for rank in (1, 0):  # an interrupted collective aborts the group, an interrupted wait does not
            pid = job.receive(rank)
            error = None
            for _ in range(DEADLINE):
                os.kill(pid, signal.SIGINT)
                if job.pipes[rank].poll(1):
                    error = job.receive(rank)
                    break
            assert error is not None and error[0] == "KeyboardInterrupt", error


def _fork(rank: int, pipe: Any) -> None:
    work = dist.irecv(torch.ones(1), 1 - rank, tag=1)  # matched after the fork
    child = os.fork()
    if child == 0:
        errors = [error_of(lambda: dist.all_reduce(torch.ones(1))), error_of(work.wait)]
        os._exit(0 if all(kind == "DistBackendError" and "forked" in text for kind, text, _ in errors) else 1)
    _, status = os.waitpid(child, 0)
    pipe.send(os.waitstatus_to_exitcode(status))
    dist.send(torch.ones(1), 1 - rank, tag=1)
    work.wait()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    pipe.send(tensor.item())


def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path):
    with Job(_fork, tmp_path) as job:
        for rank in range(2):
            assert job.receive(rank) == 0
            assert job.receive(rank) == 2


def _leave_without_destroying(rank: int, pipe: Any) -> None:
    dist.irecv(torch.ones(1), 1 - rank)  # never matched
    dist.all_reduce(torch.ones(1))


def test_a_program_that_does_not_destroy_its_group_ends(tmp_path):
    with Job(_leave_without_destroying, tmp_path, timeout=600) as job:
        for rank in range(2):
            assert job.receive(rank) == "done"
            job.processes[rank].join(DEADLINE)
            assert job.processes[rank].exitcode == 0


def _use_a_subgroup(rank: int, pipe: Any) -> None:
    how = pipe.recv()
    group = dist.new_group([1, 2], timeout=datetime.timedelta(seconds=2 if how == "absent" else DEADLINE))
    if rank == 0 or rank == 2 and how == "absent":
        pipe.recv()
        return
    if rank == 2 and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    pipe.send(error_of(lambda: dist.all_reduce(torch.ones(4 + rank), group=group)))


@pytest.mark.parametrize("how", ["absent", "killed", "disagrees"])
def test_errors_of_a_subgroup_name_global_ranks(tmp_path, how):
    with Job(_use_a_subgroup, tmp_path, size=3, imported=["tandem.torch"]) as job:
        for pipe in job.pipes:
            pipe.send(how)
        kind, text, _ = job.receive(1)
        assert kind == "DistBackendError" and "rank 2" in text and "the group has ranks 1 and 2" in text, text
        assert "rank 0" not in text and ("rank 1 calls" in text or "rank 1 " not in text), text


PROGRAM = """
import os, sys, torch, torch.distributed as dist
import tandem.torch
rank = int(sys.argv[2])
dist.init_process_group("tandem", init_method="file://" + sys.argv[1], rank=rank, world_size=3)
pair = dist.new_group([1, 2])
for i in range(10000):
    if rank == 2 and i == 5:
        raise ValueError("bad batch 1234\\nand more")
    group = None if len(sys.argv) < 4 else pair
    if group is None or rank > 0:
        dist.all_reduce(torch.ones(1000), group=group)
    else:
        break
"""


@pytest.mark.parametrize("group", [[], ["subgroup"]])
def test_the_exception_that_ends_a_rank_is_in_the_errors_of_the_others(tmp_path, group):
    programs = [
        subprocess.Popen(
            [sys.executable, "-B", "-c", PROGRAM, f"{tmp_path}/store", str(rank), *group], stderr=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    errors = [program.communicate(timeout=DEADLINE)[1] for program in programs]
    assert "ValueError: bad batch 1234" in errors[2]
    for rank in (1,) if group else (0, 1):
        assert programs[rank].returncode == 1, errors[rank]
        assert "by rank 2: ValueError: bad batch 1234" in errors[rank], errors[rank]


def _come(rank: int, init_method: str, pipe: Any) -> None:
    pipe.send("ready")
    pipe.recv()
    timeout = datetime.timedelta(seconds=3)
    pipe.send(
        error_of(lambda: dist.init_process_group("tandem", init_method=init_method, rank=rank, world_size=3, timeout=timeout))
    )


@pytest.mark.parametrize("scheme", ["file", "tcp"])
def test_a_rank_that_never_comes_is_named_and_not_rank_0(tmp_path, free_port, scheme):
    init_method = f"file://{tmp_path}/store" if scheme == "file" else f"tcp://127.0.0.1:{free_port}"
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(2)]
    processes = [context.Process(target=_come, args=(rank, init_method, ends[rank][1]), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    for mine, _ in ends:
        assert mine.poll(DEADLINE) and mine.recv() == "ready"
    for mine, _ in ends:
        mine.send("go")
    for rank, (mine, _) in enumerate(ends):
        assert mine.poll(DEADLINE)
        _, text, _ = mine.recv()
        if rank == 1 or scheme == "file":  # with tcp, torch's own store stops rank 0, and counts
            assert "rank 2 did not come" in text and "rank 0" not in text, text
    for process in processes:
        process.join(DEADLINE)


def test_missing_ranks_are_named_when_a_group_is_made(tmp_path):
    with pytest.raises(dist.DistBackendError, match="rank 1 did not come within 1 s"):
        dist.init_process_group(
            "tandem", init_method=f"file://{tmp_path}/store", rank=0, world_size=2, timeout=datetime.timedelta(seconds=1)
        )
