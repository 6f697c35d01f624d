# SPDX-License-Identifier: Apache-2.0
"""How processes find each other, and how they part."""

from __future__ import annotations

import sys

import pytest
from processes import Process, start_job, start_script

import tandem
from tandem.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError

PROGRAM = """
import os, sys
import numpy as np
from tandem import rpc

@rpc.function
def scale(values, factor):
    return values * factor
"""


def test_the_ranks_of_a_job_call_each_other(tmp_path):
    text = PROGRAM + """
name = rpc.start()
rank = int(os.environ["RANK"])
assert name == f"worker/{rank}", name
assert set(rpc.workers()) == {"worker/0", "worker/1", "worker/2"}
other = f"worker/{(rank + 1) % 3}"
assert rpc.call(other, scale, np.arange(3), 2).tolist() == [0, 2, 4]
rpc.shutdown()
rpc.start(f"again/{rank}")
assert rpc.call(f"again/{(rank + 1) % 3}", scale, 3, 2) == 6
rpc.shutdown()
print(f"rank {rank} has finished", flush=True)
"""
    with start_job(tmp_path, text, "--workers", "3") as job:
        assert job.wait() == 0, job.output
    for rank in range(3):
        assert f"rank {rank} has finished" in job.output, job.output


def test_a_rank_that_does_not_start_is_named(tmp_path):
    text = PROGRAM + """
if os.environ["RANK"] == "0":
    try:
        rpc.start(timeout=1)
    except TimeoutError as error:
        print("error:", error, flush=True)
"""
    with start_job(tmp_path, text, "--workers", "2") as job:
        assert job.wait() == 0, job.output
    assert "rank 1 of 2 did not call tandem.rpc.start() within 1s" in job.output, job.output


def test_a_start_waits_for_the_names_it_is_given(tmp_path):
    program = PROGRAM + """
rpc.start(wait_for=["worker/0", "worker/1"])
if os.environ["RANK"] == "1":
    counter = rpc.remote("worker/0", scale, np.ones(2), 3)
    assert counter.to_here().tolist() == [3, 3]
rpc.shutdown()
"""
    with start_job(tmp_path, program, "--workers", "2") as job:
        assert job.wait() == 0, job.output


def test_processes_without_a_launcher_use_a_list_of_addresses(tmp_path):
    addresses = {name: f"unix:{tmp_path}/{name}" for name in ("a", "b")}
    serve = PROGRAM + f"""
rpc.start("b", peers={addresses!r})
rpc.shutdown(timeout=150)
"""
    call = PROGRAM + f"""
rpc.start("a", peers={addresses!r})
print(rpc.call("b", scale, np.arange(3), 2, timeout=150).tolist(), rpc.workers()["b"], flush=True)
kept = rpc.remote("b", scale, 2, 4)
print(kept.to_here(), flush=True)
rpc.shutdown(timeout=150)
"""
    (tmp_path / "b.py").write_text(serve)
    with Process([sys.executable, "-B", "-u", str(tmp_path / "b.py")]) as b, start_script(tmp_path, call) as a:
        assert a.wait() == 0, a.output + b.output
        assert b.wait() == 0, b.output
    assert f"[0, 2, 4] unix:{tmp_path}/b" in a.output and "\n8\n" in a.output, a.output


def test_a_process_serves_no_caller_with_another_key(tmp_path):
    addresses = {name: f"unix:{tmp_path}/{name}" for name in ("a", "b")}
    serve = PROGRAM + f"""
import threading
rpc.start("b", peers={addresses!r}, wait_for=[], pickle=True)
print("serving", flush=True)
threading.Event().wait()
"""
    call = PROGRAM + f"""
import tandem
rpc.start("a", peers={addresses!r}, wait_for=[])
try:
    print("answer", rpc.call("b", scale, np.arange(3), 2, timeout=150).tolist())
except tandem.errors.PermissionDeniedError as error:
    print("refused:", error)
rpc.shutdown(graceful=False)
"""
    (tmp_path / "b.py").write_text(serve)
    (tmp_path / "a.py").write_text(call)
    other = {"TANDEM_KEY_FILE": "", "TANDEM_KEY": "tandem_key_" + "5a" * 32}
    with Process([sys.executable, "-B", "-u", str(tmp_path / "b.py")]) as b:
        b.wait_for_output("serving")
        for environment, said in ((other, "refused:"), ({}, "answer [0, 2, 4]")):
            with Process([sys.executable, "-B", "-u", str(tmp_path / "a.py")], **environment) as a:
                assert a.wait() == 0, a.output + b.output
            assert said in a.output, a.output


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({}, FailedPreconditionError, "start them by `tandem run`"),
        ({"store": "127.0.0.1:1"}, InvalidArgumentError, "needs a name"),
        ({"name": "a", "peers": {"b": "127.0.0.1:1"}}, InvalidArgumentError, "peers has no address of a"),
        ({"name": "a", "peers": {}, "store": "x:1"}, InvalidArgumentError, "either store= or peers="),
        ({"name": "a b", "peers": {"a b": "127.0.0.1:0"}}, InvalidArgumentError, "is no name; expected role/index"),
        ({"name": "a", "peers": {"a": "nonsense"}}, InvalidArgumentError, "nonsense"),
        ({"name": "a", "store": "127.0.0.1:1", "timeout": 0.3}, tandem.TandemError, "127.0.0.1:1"),
        ({"name": "a", "peers": {"a": "127.0.0.1:0"}, "threads": 0}, InvalidArgumentError, "threads is 0"),
        ({"name": "a", "peers": {"a": "127.0.0.1:0"}, "transport": "pigeon"}, InvalidArgumentError, "pigeon"),
        ({"name": "a", "peers": {"a": "127.0.0.1:0"}, "wait_for": ["b"], "timeout": 0.2}, tandem.TandemError, "b"),
        (
            {"name": "a", "peers": {"a": "127.0.0.1:0", "b": "unix:/nowhere/b"}, "timeout": 0.2},
            DeadlineExceededError,
            "a cannot start: no answer of b (unix:/nowhere/b)",
        ),
    ],
)
def test_a_start_that_cannot_work_says_why(tmp_path, arguments, error, text):
    program = PROGRAM + f"""
import tandem
try:
    rpc.start(**{arguments!r})
except tandem.errors.{error.__name__} as error:
    print("error:", error, flush=True)
"""
    with start_script(tmp_path, program) as script:
        assert script.wait() == 0, script.output
    assert text in script.output, script.output
