# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the Python tests. They run against the package in the build tree, or an installed one."""

import contextlib
import dataclasses
import faulthandler
import os
import sys
from typing import Iterator

import pytest
from processes import Process, tandem_binary

import tandem

# Less than the time limit of the whole run (CMakeLists.txt).
TEST_DEADLINE_S = 240


# Tests and the processes that they start are members of one job.
os.environ.pop("TANDEM_KEY_FILE", None)
os.environ["TANDEM_KEY"] = "tandem_key_" + 32 * "7e"


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Ends a test that hangs with the stacks of all threads."""
    # Not sys.stderr, which pytest captures: the stacks would be lost with the process.
    faulthandler.dump_traceback_later(TEST_DEADLINE_S, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=[1, 3], ids=["1 server", "3 servers"])
def client(request: pytest.FixtureRequest) -> Iterator[tandem.Client]:
    with tandem.local(servers=request.param, timeout=20) as client:
        yield client


@dataclasses.dataclass
class Servers:
    """Parameter servers that no launcher has started."""

    store: str
    addresses: list[str]
    processes: list[Process]

    def variables(self) -> dict[str, str]:
        """Returns what makes a process the only worker of their job."""
        return {"RANK": "0", "WORLD_SIZE": "1", "TANDEM_STORE": self.store, "TANDEM_NUM_PS": str(len(self.processes))}


@pytest.fixture
def servers() -> Iterator[Servers]:
    """One `tandem ps` process and the store of its job."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Process([tandem_binary(), "store"]))
        address = store.wait_for_output(r"(127\.0\.0\.1:\d+)")
        server = stack.enter_context(Process([tandem_binary(), "ps", "--index", "0", "--num-servers", "1"], TANDEM_STORE=address))
        yield Servers(address, [server.wait_for_output(r"serving at (\S+),")], [server])
