# SPDX-License-Identifier: Apache-2.0
"""Starts programs that tests need: `tandem` (the variable TANDEM_BINARY) and Python scripts."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Callable, Iterator, Sequence

import pytest

# Ends a test that hangs. On a busy machine the import of PyTorch alone can take a minute.
DEADLINE_S = 180.0


def tandem_binary() -> str:
    binary = os.environ.get("TANDEM_BINARY")
    if not binary:
        pytest.skip("TANDEM_BINARY does not name the tandem program")
    return binary


class Process:
    """A process whose output is collected. Killed at the end of a `with` block."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        # The test may itself run under a launcher.
        inherited = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "TANDEM_ROLE", "TANDEM_STORE")}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**inherited, **environment}, start_new_session=True
        )
        self.output = ""

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait_for_output(self, pattern: str) -> str:
        """Returns the first group of the pattern's first match in the output."""
        deadline = time.monotonic() + DEADLINE_S
        while not (match := re.search(pattern, self.output)):
            if not self._read(deadline):
                raise AssertionError(f"no output matches {pattern!r}:\n{self.output}")
        return match[1] if match.groups() else match[0]

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Waits for the end of the process and of its output; returns the exit status."""
        deadline = time.monotonic() + deadline_s
        while self._read(deadline):
            pass
        try:
            return self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process has not ended within {DEADLINE_S} s:\n{self.output}") from None

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The process hangs within the block."""

        def all_threads_stand_still() -> bool:
            states = pathlib.Path(f"/proc/{self._process.pid}/task").glob("*/stat")
            return all(state.read_text().rpartition(")")[2].split()[0] == "T" for state in states)

        self._process.send_signal(signal.SIGSTOP)
        try:
            wait_until(all_threads_stand_still, "the stop of the process")
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _read(self, deadline: float) -> bool:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
        self.output += data.decode(errors="replace")
        return bool(data)


def start_script(folder: pathlib.Path, text: str, **environment: str) -> Process:
    """Starts a Python script with this text."""
    path = folder / "script.py"
    path.write_text(text)
    return Process([sys.executable, "-B", "-u", str(path)], **environment)


def start_job(folder: pathlib.Path, text: str, *options: str, **environment: str) -> Process:
    """Starts `tandem run` with these options and a Python script with this text; logs go to folder/logs."""
    path = folder / "train.py"
    path.write_text(text)
    command = [tandem_binary(), "run", "--log-dir", str(folder / "logs"), *options, "--", sys.executable, "-B", str(path)]
    return Process(command, **environment)


def run_workers(folder: pathlib.Path, script: pathlib.Path, *arguments: str, workers: int = 2, **environment: str) -> str:
    """Runs a Python script as a job of two servers and these workers, which must succeed. Returns the output; logs go to folder/logs."""
    command = [tandem_binary(), "run", "--ps", "2", "--nproc-per-node", str(workers), "--log-dir", str(folder / "logs"), "--no-python", "--"]
    with Process([*command, sys.executable, "-B", str(script), *arguments], OMP_NUM_THREADS="1", **environment) as job:
        status = job.wait()
        assert status == 0, job.output
        return job.output


def interrupt_when(condition: Callable[[], bool], what: str) -> None:
    """Sends SIGINT to this process, from another thread, once the condition holds."""

    def interrupt() -> None:
        wait_until(condition, what)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} has not happened"
        threading.Event().wait(0.01)
