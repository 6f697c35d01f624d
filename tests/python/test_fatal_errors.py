# SPDX-License-Identifier: Apache-2.0
"""The reason of an abort is in the output of the tests."""

import pathlib
import signal
import sys

import pytest
from processes import Process

CONFIGURATION = pathlib.Path(__file__).parent / "pytest.ini"


@pytest.mark.parametrize(
    "call, reason",
    [
        # As when a thread without the GIL uses Python; it disables faulthandler.
        ("ctypes.pythonapi.Py_FatalError(b'no GIL')", "no GIL"),
        # As when the destructor of a std::thread finds it running.
        ("ctypes.CDLL('libstdc++.so.6')._ZSt9terminatev()", "terminate called without an active exception"),
        # As a failed CHECK.
        ("os.write(2, b'not so'), os.abort()", "not so"),
    ],
    ids=["interpreter", "terminate", "check"],
)
def test_an_abort_names_its_reason_and_its_frame(tmp_path, call, reason):
    script = tmp_path / "test_aborts.py"
    script.write_text(f"""
import ctypes, os, resource
def test_aborts():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    {call}
""")
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(CONFIGURATION), str(script)]
    with Process(command) as tests:
        assert tests.wait() == -signal.SIGABRT, tests.output
        assert reason in tests.output and "in test_aborts" in tests.output, tests.output
