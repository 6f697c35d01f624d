#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records trajectories of Gymnasium's environments, with which environment_test.cc compares Tandem's.

    python3 -m venv venv && venv/bin/pip install gymnasium==1.4.0
    venv/bin/python tests/worker/rl/envs/record_trajectories.py

writes goldens/NAME.txt next to this script. Each episode begins with a line "reset STATE..."; each step is a line
"step ACTION REWARD TERMINATED TRUNCATED STATE...". A state is the environment's internal one in float64, with 17 digits.
"""

import math
import pathlib
import random

import gymnasium
import numpy

FOLDER = pathlib.Path(__file__).resolve().parent / "goldens"


def random_action(choices):
    return lambda rng, state: rng.randrange(choices)


def balance(rng, state):
    """Keeps CartPole's pole up until the time limit."""
    position, velocity, angle, angular_velocity = state
    return int(angle + 0.4 * angular_velocity + 0.02 * position + 0.06 * velocity > 0)


def pump(rng, state):
    """Swings Acrobot up: the torque follows the sign of the second link's velocity."""
    return 2 if state[3] > 0 else 0


def torque(rng, state):
    return rng.uniform(-2.5, 2.5)  # part of it is beyond the limit of 2


EPISODES = {
    "cartpole": ("CartPole-v1", [(random_action(2), 1), (random_action(2), 2), (balance, 3)]),
    "acrobot": ("Acrobot-v1", [(pump, 1), (random_action(3), 2)]),
    "pendulum": ("Pendulum-v1", [(torque, 1), (torque, 2)]),
}


def numbers(values):
    return " ".join(format(float(value), ".17g") for value in values)


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, (gym_id, episodes) in EPISODES.items():
        lines = [f"# {gym_id} of Gymnasium {gymnasium.__version__}; written by record_trajectories.py"]
        for policy, seed in episodes:
            rng = random.Random(seed)
            env = gymnasium.make(gym_id)
            env.reset(seed=seed)
            state = env.unwrapped.state
            lines.append("reset " + numbers(state))
            ended = False
            while not ended:
                action = policy(rng, [float(value) for value in state])
                if name == "pendulum":
                    # The environment's actions are float32; the dynamics use float64.
                    action = float(numpy.float32(action))
                    _, reward, terminated, truncated, _ = env.step(numpy.array([action]))
                else:
                    _, reward, terminated, truncated, _ = env.step(action)
                state = env.unwrapped.state
                lines.append(
                    f"step {action:.17g} {float(reward):.17g} {int(terminated)} {int(truncated)} {numbers(state)}"
                )
                ended = terminated or truncated
                assert all(math.isfinite(float(value)) for value in state)
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
