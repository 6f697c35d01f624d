# SPDX-License-Identifier: Apache-2.0
"""What a program sees whose job fails elsewhere."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from processes import Process, start_script

CONNECT = "import sys, threading, time, tandem\nclient = tandem.connect(timeout=60)\nprint('up', flush=True)\n"


def fails_beside(servers: Any, folder: pathlib.Path, program: str, **environment: str) -> Process:
    """Starts worker 0 with `program`, and worker 1, which fails once worker 0 is up. Returns worker 0."""
    both = {**servers.variables(), "WORLD_SIZE": "2"}
    (folder / "0").mkdir()
    (folder / "1").mkdir()
    worker = start_script(folder / "0", program, **both, **environment)
    worker.wait_for_output("up")
    with start_script(folder / "1", CONNECT + "raise ValueError('boom')", **{**both, "RANK": "1"}) as other:
        assert other.wait() != 0
    return worker


class TestAJobThatFailsElsewhere:
    def test_a_process_whose_main_thread_hangs_ends_with_the_reason(self, servers, tmp_path):
        program = CONNECT + "threading.Event().wait()"
        with fails_beside(servers, tmp_path, program, TANDEM_EXIT_AFTER_JOB_FAILURE="1") as worker:
            assert worker.wait() == 1
            assert "the job has failed: worker/1: ValueError: boom" in worker.output
            assert "its program has not learned of that within 1s" in worker.output

    def test_the_next_call_raises_and_the_program_goes_on_to_its_own_end(self, servers, tmp_path):
        program = CONNECT + (
            "while True:\n"
            "    try:\n"
            "        client.servers()\n"
            "    except tandem.errors.UnavailableError as error:\n"
            "        if 'boom' not in str(error): continue\n"
            "        print('raised:', error, flush=True)\n"
            "        break\n"
            "    time.sleep(0.01)\n"
            "time.sleep(4)\n"  # longer than the exit after a failure
            "sys.exit(7)\n"
        )
        with fails_beside(servers, tmp_path, program, TANDEM_EXIT_AFTER_JOB_FAILURE="2") as worker:
            assert worker.wait() == 7, worker.output
            assert "raised: the job has failed: worker/1: ValueError: boom" in worker.output

    def test_a_thread_that_gets_the_exception_does_not_speak_for_the_main_thread(self, servers, tmp_path):
        program = CONNECT + (
            "def poll():\n"
            "    while True:\n"
            "        try: client.servers()\n"
            "        except tandem.errors.UnavailableError: time.sleep(0.01)\n"
            "threading.Thread(target=poll, daemon=True).start()\n"
            "threading.Event().wait()\n"
        )
        with fails_beside(servers, tmp_path, program, TANDEM_EXIT_AFTER_JOB_FAILURE="1") as worker:
            assert worker.wait() == 1

    @pytest.mark.parametrize("value", ["soon", "-1"])
    def test_a_variable_that_is_no_time_is_refused(self, servers, tmp_path, value):
        with start_script(tmp_path, CONNECT, **servers.variables(), TANDEM_EXIT_AFTER_JOB_FAILURE=value) as worker:
            assert worker.wait() == 1
            assert f"TANDEM_EXIT_AFTER_JOB_FAILURE='{value}'" in worker.output
