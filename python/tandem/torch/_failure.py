# SPDX-License-Identifier: Apache-2.0
"""What a rank that fails leaves for its peers and its launcher, so that they find the rank that failed first.

When a rank fails, the groups of its peers break, and a peer may exit before it. Launchers look at which process has exited
first, and at the errors that the processes have left (TORCHELASTIC_ERROR_FILE). So

- the rank that fails writes its error before it leaves its groups (`Ending.report`),
- the error of a peer has a later time stamp,
- a peer exits after the rank that failed (`Ending.outlive_the_cause`).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from typing import Any, Iterable

from tandem._ending import describe
from tandem._load import load_core

_core = load_core()

# How long a process waits at its end for the process that has caused its failure, and for the launcher to notice that end.
_OUTLIVE_S, _NOTICE_S = 2.0, 0.5
_PAUSE_S = 0.005


def announce(store: Any, rank: int) -> None:
    """Tells the other ranks of a group which process this is, before they connect."""
    store.set(f"tandem/process/{rank}", f"{os.getpid()} {_core.host_identity()}")


def processes_here(store: Any, rank: int, size: int) -> set[int]:
    """Returns the process ids of the group's other ranks on this machine. Call it when all ranks have connected."""
    texts = [bytes(text).decode() for text in store.multi_get([f"tandem/process/{peer}" for peer in range(size)])]
    members = [text.split(" ", 1) for text in texts]
    return {int(pid) for pid, host in members if host == members[rank][1]} - {os.getpid()}


class Ending:
    """What the groups of this process have gone through, for its end."""

    def __init__(self) -> None:
        self.failed_by_peer = False
        self._processes: set[int] = set()
        self._reported = False

    def begin(self, processes: Iterable[int]) -> None:
        """A group has been made. Earlier failures are overcome.

        processes: those of the other ranks on this machine; none for a subgroup.
        """
        self.failed_by_peer = self._reported = False
        self._processes = set(processes) or self._processes

    def report(self, error: BaseException) -> None:
        """Writes an error for the launcher, in torchelastic's format, unless torch's @record has done so. Does nothing without
        TORCHELASTIC_ERROR_FILE, or if the file cannot be written.

        After the failure of a peer the time stamp is a second after the present, because torchrun takes the oldest error for the cause
        and compares whole seconds.
        """
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if not path or (os.path.exists(path) and not self._reported and not self.failed_by_peer):
            return
        self._reported = True
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self._write(path, describe(error), trace)

    def report_exit(self) -> None:
        """The same for a program that ends without an exception and has not left its groups. Only its launcher learns the exit code."""
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if path and not self.failed_by_peer and not os.path.exists(path):
            text = "the program has ended, by sys.exit() for instance, while it was a member of process groups"
            self._write(path, text, text)

    def _write(self, path: str, text: str, trace: str) -> None:
        extra = {"py_callstack": trace, "timestamp": str(int(time.time()) + self.failed_by_peer)}
        with contextlib.suppress(OSError):
            written = f"{path}.{os.getpid()}"
            with open(written, "w", encoding="utf-8", errors="replace") as file:
                json.dump({"message": {"message": text, "extraInfo": extra}}, file)
            os.replace(written, path)

    def outlive_the_cause(self) -> None:
        """After the failure of a peer: blocks until one of the processes has ended and its parent has noticed it; 2 s at most.

        All peers of the rank that failed wait like this one, so that it ends first.
        """
        deadline = time.monotonic() + _OUTLIVE_S
        ended = False
        while self.failed_by_peer and self._processes and time.monotonic() < deadline:
            states = [_state(pid) for pid in self._processes]
            if "" in states:
                return
            if "Z" in states and not ended:
                ended, deadline = True, min(deadline, time.monotonic() + _NOTICE_S)
            time.sleep(_PAUSE_S)


ENDING = Ending()


def _state(pid: int) -> str:
    """Returns the letter of a process's state: "Z" if it has ended and its parent does not know; "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
