# SPDX-License-Identifier: Apache-2.0
"""A program of test_checkpoint.py that kills itself while it saves its second checkpoint."""

import os
import signal

import torch
from test_checkpoint import Trained

from tandem.torch import checkpoint


def kill_after(module, name: str) -> None:
    function = getattr(module, name)

    def run_and_die(*args, **kwargs):
        function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, run_and_die)


with Trained() as run:
    run.train(0, 1)
    run.save(os.environ["ROOT"], 1)
    run.train(1, 2)
    if os.environ["WHERE"] == "after the tables":
        kill_after(checkpoint._Background, "_run")
    else:
        kill_after(torch.distributed.checkpoint, "save")
    run.save(os.environ["ROOT"], 2)
