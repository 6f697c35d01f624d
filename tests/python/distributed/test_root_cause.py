# SPDX-License-Identifier: Apache-2.0
"""One rank fails, and its peers fail as a consequence: launchers name the one that failed first.

TANDEM_ROOT_CAUSE_RUNS=20 makes that many runs of each kind, with 2, 3 and 4 ranks, and prints a table.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
from typing import Iterator

import pytest

PROGRAM = str(pathlib.Path(__file__).with_name("failing_program.py"))
TANDEM = os.environ.get("TANDEM_BINARY", "")
TIMEOUT = 200.0
RUNS = int(os.environ.get("TANDEM_ROOT_CAUSE_RUNS", "1"))
SIZES = (2, 3, 4) if RUNS > 1 else (3,)

needs_tandem = pytest.mark.skipif(not TANDEM, reason="TANDEM_BINARY does not name the tandem command")
LAUNCHERS = (pytest.param("tandem run", marks=needs_tandem), "torchrun")


@dataclasses.dataclass
class Outcome:
    rank: str  # the one that the launcher names as the cause; "" if it names none
    code: int  # the exit code of that rank, as the launcher prints it; -9 for SIGKILL
    launcher_code: int
    output: str


def launch(launcher: str, size: int, directory: pathlib.Path, *arguments: str) -> Outcome:
    if launcher == "torchrun":
        command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    else:
        command = [TANDEM, "run", "--workers", str(size), "--", sys.executable, "-B"]
    inherited = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "TANDEM_STORE", "MASTER_ADDR", "MASTER_PORT")}
    result = subprocess.run(
        [*command, PROGRAM, *arguments], timeout=TIMEOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory,
        env={**inherited, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if launcher == "torchrun":
        found = re.search(r"Root Cause.*?rank +: (\d+) .*?exitcode +: (-?\d+)", result.stdout, re.DOTALL)
        rank, code = found.groups() if found else ("", "0")
        return Outcome(rank, int(code), result.returncode, result.stdout)
    found = re.search(r"worker/(\d+) \(pid \d+\) (?:exited with code|was killed by signal) (\d+).*; stopping the job", result.stdout)
    rank, code = found.groups() if found else ("", "0")
    return Outcome(rank, -int(code) if found and "killed" in found[0] else int(code), result.returncode, result.stdout)


@pytest.fixture(scope="module")
def table() -> Iterator[collections.Counter[tuple[str, ...]]]:
    """Counts the runs, and those that are right, of each kind; prints them if there are many."""
    counts: collections.Counter[tuple[str, ...]] = collections.Counter()
    yield counts
    if "TANDEM_ROOT_CAUSE_RUNS" in os.environ:
        kinds = sorted({kind[:-1] for kind in counts})
        lines = [f"{' '.join(kind)}: {counts[(*kind, 'right')]} of {counts[(*kind, 'runs')]} right" for kind in kinds]
        os.write(2, ("\n" + "\n".join(lines) + "\n").encode())


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("record", ["plain", "record"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_rank_that_raised_is_named_with_its_error(launcher, record, size, run, table, tmp_path):
    kind = (launcher, record, f"{size} ranks")
    table[(*kind, "runs")] += 1
    outcome = launch(launcher, size, tmp_path, "raise", *(["record"] if record == "record" else []))
    assert (outcome.rank, outcome.code) == ("1", 1), outcome.output
    assert outcome.launcher_code == 1, outcome.output
    # The peers' errors have the cause.
    peers = re.findall(r"^.*DistBackendError: .*$", outcome.output, re.MULTILINE)
    assert any("rank 1" in line and "ValueError: the user's bug" in line for line in peers), outcome.output
    assert launcher == "torchrun" or "it said: ValueError: the user's bug" in outcome.output, outcome.output
    table[(*kind, "right")] += 1


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("record", ["plain", "record"] if RUNS > 1 else ["record"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_exits_is_named_with_its_code(launcher, record, run, tmp_path):
    outcome = launch(launcher, 3, tmp_path, "exit", *(["record"] if record == "record" else []))
    assert (outcome.rank, outcome.code) == ("1", 75), outcome.output
    # torchrun itself always exits with 1.
    assert outcome.launcher_code == (1 if launcher == "torchrun" else 75), outcome.output


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("how, code", [("kill", -9), ("crash", -11)] if RUNS > 1 else [("kill", -9)])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_is_killed_is_named_with_its_signal(launcher, how, code, run, tmp_path):
    outcome = launch(launcher, 3, tmp_path, how)
    assert (outcome.rank, outcome.code) == ("1", code), outcome.output


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("how", ["finally", "catch"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_rank_that_raised_is_named_however_the_groups_end(launcher, how, run, tmp_path):
    outcome = launch(launcher, 3, tmp_path, how)
    assert (outcome.rank, outcome.code) == ("1", 1), outcome.output
