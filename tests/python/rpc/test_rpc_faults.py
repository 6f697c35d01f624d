# SPDX-License-Identifier: Apache-2.0
"""Processes that die, exit, fork or are interrupted in the middle of calls."""

from __future__ import annotations

import os
import re
import signal

import pytest
from processes import start_script, wait_until

from tandem.errors import UnavailableError

PROGRAM = """
import os, sys, threading
from tandem import rpc

standing = threading.Event()

@rpc.function
def stand_still():
    standing.set()
    threading.Event().wait()

@rpc.function
def spin():
    standing.set()
    while True:
        pass

@rpc.function
def add(a, b):
    return a + b
"""


def test_a_killed_process_ends_calls_to_it_and_references(worker, start_worker):
    victim = start_worker("victim")
    pid = int(re.search(r"ready (\d+)", victim.wait_for_output(r"(ready \d+\n)"))[1])
    reference = worker.remote("victim", "Counter", 1)
    assert reference.call("add", 1) == 2
    future = worker.call_async("victim", "block")
    wait_until(lambda: worker.call("victim", "counts")["running"] == 1, "the start of the function")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(UnavailableError, match="victim: block"):
        future.result()
    with pytest.raises(UnavailableError, match="victim"):
        reference.call("add", 1, timeout=30)
    # Another process takes the name over, once the lease of the first one is over.
    start_worker("victim")
    wait_until(lambda: _is_back(worker), "the return of the name")


def _is_back(worker):
    try:
        return worker.call("victim", "add", 1, 2, timeout=10) == 3
    except UnavailableError:
        return False


def test_ctrl_c_ends_a_call(worker, rpc_store, tmp_path):
    before = worker.call("worker", "counts")["running"]
    text = PROGRAM + f"""
rpc.start("interrupted", store={rpc_store!r}, wait_for=["worker"])
try:
    rpc.call("worker", "block")
except KeyboardInterrupt:
    print("add gives", rpc.call("worker", "add", 1, 2), flush=True)
    rpc.shutdown(graceful=False)
"""
    with start_script(tmp_path, text) as script:
        wait_until(lambda: worker.call("worker", "counts")["running"] == before + 1, "the start of the function")
        script._process.send_signal(signal.SIGINT)
        assert script.wait() == 0, script.output
    assert "add gives 3" in script.output, script.output
    wait_until(lambda: worker.call("worker", "counts")["running"] == before, "the end of the function")


def test_a_program_ends_with_calls_under_way_in_both_directions(worker, rpc_store, tmp_path):
    text = PROGRAM + f"""
rpc.start("leaving", store={rpc_store!r}, wait_for=["worker"])
pending = rpc.call_async("worker", "block")
own = rpc.call_async("leaving", "stand_still")
kept = rpc.remote("worker", "Counter", 1)
while not rpc.call("worker", "counts")["running"] or not standing.is_set():
    threading.Event().wait(0.01)
sys.exit(7)
"""
    with start_script(tmp_path, text) as script:
        assert script.wait() == 7, script.output
    assert "functions that do not look whether they are cancelled" in script.output, script.output
    assert "terminate called" not in script.output and "FATAL" not in script.output, script.output
    wait_until(lambda: worker.call("worker", "counts")["running"] == 0, "the end of the function")


def test_a_program_ends_while_a_function_computes(rpc_store, tmp_path):
    text = PROGRAM + f"""
rpc.start("spinning", store={rpc_store!r}, wait_for=[])
futures = [rpc.call_async("spinning", "spin") for _ in range(2)]
standing.wait()
sys.exit(7)
"""
    with start_script(tmp_path, text) as script:
        assert script.wait() == 7, script.output
    assert "terminate called" not in script.output and "FATAL" not in script.output, script.output


def test_a_forked_child_gets_an_error_and_the_parent_goes_on(worker, rpc_store, tmp_path):
    text = PROGRAM + f"""
from tandem.errors import FailedPreconditionError
rpc.start("forking", store={rpc_store!r}, wait_for=["worker"])
counter = rpc.remote("worker", "Counter", 1)
future = rpc.call_async("worker", "add", 1, 2)
assert future.result() == 3
pending = rpc.call_async("worker", "block")
child = os.fork()
if child == 0:
    try:
        for use in (lambda: rpc.call("worker", "add", 1, 2), lambda: counter.call("add", 1), lambda: pending.result(timeout=5),
                    lambda: rpc.start("child", store="127.0.0.1:1"), lambda: rpc.shutdown()):
            try:
                use()
                os._exit(3)
            except FailedPreconditionError as error:
                assert "forked" in str(error), error
        del counter, pending
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(4)
pid, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), "sum", rpc.call("worker", "add", 3, 4), flush=True)
pending.cancel()
rpc.shutdown(graceful=False)
"""
    with start_script(tmp_path, text) as script:
        assert script.wait() == 0, script.output
    assert "child 0 sum 7" in script.output, script.output


def test_pickle_works_where_both_processes_allow_it(tmp_path, rpc_store):
    text = PROGRAM + f"""
@rpc.function
def union(a, b):
    return a | b
class Unloadable:
    def __reduce__(self):
        return int, ("no number",)
rpc.start("pickling", peers={{}}, listen="127.0.0.1:0", wait_for=[], pickle=True)
print(sorted(rpc.call("pickling", union, {{1}}, {{2, 3}})), flush=True)
for bad in (lambda: None, Unloadable()):
    for _ in range(2):
        try:
            rpc.call("pickling", union, bad, {{2}})
        except ValueError as error:
            print("refused:", error)
rpc.shutdown(graceful=False)
try:
    rpc.call("pickling", union, {{1}}, {{2}})
except RuntimeError as error:
    print(error)
"""
    with start_script(tmp_path, text) as script:
        assert script.wait() == 0, script.output
    assert "[1, 2, 3]" in script.output and "shutdown() has" in script.output, script.output
    assert script.output.count("cannot be sent: pickle") == 2, script.output
    assert script.output.count("that cannot be loaded here: invalid literal for int") == 2, script.output
