# SPDX-License-Identifier: Apache-2.0
"""Ranks that all-reduce until rank 1 fails: failing_program.py HOW [record].

HOW: raise, exit (with code 75), kill (SIGKILL), crash (SIGSEGV), finally (the exception passes a `finally` that destroys the
group), catch (the other ranks catch the error, and exit with code 1 without an exception).
"""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist


def reduce_until_failure(how: str) -> None:
    tensor = torch.ones(1000)
    for step in range(100):
        if dist.get_rank() == 1 and step == 50:
            if how == "exit":
                sys.exit(75)
            if how in ("kill", "crash"):
                os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSEGV)
            raise ValueError("the user's bug")
        dist.all_reduce(tensor)


def main() -> None:
    torch.set_num_threads(1)
    how = sys.argv[1]
    dist.init_process_group("tandem")
    try:
        reduce_until_failure(how)
    except Exception as error:
        if how != "catch" or dist.get_rank() == 1:
            raise
        print(f"caught {error}", flush=True)
        sys.exit(1)
    finally:
        if how == "finally":
            dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[2:] == ["record"]:
        from torch.distributed.elastic.multiprocessing.errors import record

        main = record(main)
    main()
