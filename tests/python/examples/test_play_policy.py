# SPDX-License-Identifier: Apache-2.0
"""examples/python/play_policy.py computes, with NumPy, the actions of `tandem rl play`."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess

import numpy
import pytest
from processes import tandem_binary

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "play_policy.py"

JOB = """
name: balance
env: cartpole
policy: {{hidden: [16, 16], activation: {activation}}}
algorithm: {{kind: {kind}, lr: 0.005}}
stop: {{env_steps: 4096}}
evaluation: {{episodes: 2}}
"""


def tandem(folder: pathlib.Path, *arguments: str) -> str:
    done = subprocess.run([tandem_binary(), *arguments], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("kind", "activation"), [("ppo", "tanh"), ("dqn", "relu")])
def test_numpy_takes_the_actions_of_tandem_rl_play(tmp_path, kind, activation):
    (tmp_path / "job.yaml").write_text(JOB.format(kind=kind, activation=activation))
    tandem(tmp_path, "rl", "job.yaml")
    played = tandem(tmp_path, "rl", "play", "runs/balance/model.safetensors")
    steps = re.findall(r"\[([^]]+)\]  action (\d)", played)
    assert len(steps) >= 5, played

    module = importlib.util.spec_from_file_location("play_policy", EXAMPLE)
    example = importlib.util.module_from_spec(module)
    module.loader.exec_module(example)
    policy = example.make_policy(*example.load(tmp_path / "runs/balance/model.safetensors"))
    compared = 0
    for observation, action in steps:
        outputs = policy([float(number) for number in observation.split()])
        if abs(outputs[0] - outputs[1]) > 1e-3:  # the observations are printed with six digits
            assert int(numpy.argmax(outputs)) == int(action), (observation, outputs)
            compared += 1
    assert compared >= len(steps) // 2
