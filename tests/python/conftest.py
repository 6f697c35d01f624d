# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the Python tests. They run against the package in the build tree, or an installed one."""

import faulthandler
from typing import Iterator

import pytest

import tandem

# A test that hangs ends with the stacks of all threads.
faulthandler.dump_traceback_later(300, exit=True)


@pytest.fixture(params=[1, 3], ids=["1 server", "3 servers"])
def client(request: pytest.FixtureRequest) -> Iterator[tandem.Client]:
    with tandem.local(servers=request.param, timeout=20) as client:
        yield client
