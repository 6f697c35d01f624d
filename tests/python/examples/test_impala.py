# SPDX-License-Identifier: Apache-2.0
"""Runs examples/python/impala.py briefly: as a job of several roles, and in one process. Both must learn."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
from types import ModuleType

import numpy as np
import pytest
from processes import Process, tandem_binary

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "impala.py"

# A policy that has not learned holds the pole for 10 to 60 steps. After STEPS each of the seeds 1 to 5 has reached more than 475; the
# order of the actors' unrolls, and with it the result, is not the same in each run.
STEPS, LEARNED = "120000", 195.0


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("impala", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def greedy_return(command: list[str]) -> float:
    with Process(command, OMP_NUM_THREADS="1") as process:
        assert process.wait() == 0, process.output
        found = re.search(r"greedy return of 100 episodes (\d+\.\d+)", process.output)
        assert found, process.output
        print(process.output)
        return float(found[1])


def test_a_learner_and_two_actors_learn_as_a_job(tmp_path):
    pytest.importorskip("torch")
    job = [tandem_binary(), "run", "--log-dir", str(tmp_path / "logs"), "--learners", "1", "--replay", "1", "--actors", "2", "--no-python", "--"]
    assert greedy_return([*job, sys.executable, "-B", str(EXAMPLE), "--steps", STEPS, "--seed", "1"]) > LEARNED


def test_the_roles_learn_as_threads_of_one_process():
    pytest.importorskip("torch")
    assert greedy_return([sys.executable, "-B", str(EXAMPLE), "--steps", STEPS, "--actors", "2", "--seed", "2"]) > LEARNED


def test_the_estimator_is_the_one_of_the_paper():
    """V-trace by the sum of its definition (remark 1 of the paper), with ends and truncations in the middle."""
    torch = pytest.importorskip("torch")
    numbers = np.random.default_rng(3)
    shape = (3, 7)
    rewards, values, after, ratios = (numbers.normal(size=shape) for _ in range(4))
    ratios = np.exp(ratios)
    terminated, truncated = numbers.random(shape) < 0.2, numbers.random(shape) < 0.2
    ended = terminated | truncated
    discounts = 0.9 * ~terminated
    # Within an episode the next value is that of the next step.
    next_values = np.where(ended | (np.arange(7) == 6), after, np.roll(values, -1, 1))
    rho = np.minimum(ratios, 1)
    targets, advantages = (x.numpy() for x in load().vtrace(*(torch.from_numpy(x) for x in (rewards, discounts, ended, values, next_values, ratios))))
    for b in range(3):
        for s in range(7):
            expected, factor = values[b, s], 1.0
            for t in range(s, 7):
                expected += factor * rho[b, t] * (rewards[b, t] + discounts[b, t] * next_values[b, t] - values[b, t])
                factor *= discounts[b, t] * rho[b, t]
                if ended[b, t]:
                    break
            assert targets[b, s] == pytest.approx(expected)
            following = next_values[b, s] if ended[b, s] or s == 6 else targets[b, s + 1]
            assert advantages[b, s] == pytest.approx(rho[b, s] * (rewards[b, s] + discounts[b, s] * following - values[b, s]))


def test_the_environment_is_the_one_of_gymnasium():
    gymnasium = pytest.importorskip("gymnasium")
    mine = load().CartPole(3, seed=1)
    theirs = [gymnasium.make("CartPole-v1") for _ in range(3)]

    def begin(i: int) -> None:
        theirs[i].reset()
        theirs[i].unwrapped.state = tuple(mine._state[i])

    for i in range(3):
        begin(i)
    actions = np.random.default_rng(0)
    ends = 0
    for step in range(400):
        chosen = actions.integers(0, 2, 3)
        led_to, rewards, terminated, truncated = mine.step(chosen)
        for i, environment in enumerate(theirs):
            observation, reward, over, cut, _ = environment.step(int(chosen[i]))
            np.testing.assert_array_equal(observation, led_to[i])
            assert (reward, over, cut) == (rewards[i], terminated[i], truncated[i])
            if over or cut:
                ends += 1
                begin(i)
    assert ends > 10


def test_an_episode_that_is_cut_off_is_truncated_and_not_terminated():
    environment = load().CartPole(1, seed=1)
    environment._steps[:] = 499
    environment._state[:] = 0
    led_to, _, terminated, truncated = environment.step(np.array([1]))
    assert not terminated[0] and truncated[0] and environment._steps[0] == 0
    assert not np.array_equal(led_to[0], environment.observations[0])  # the next episode begins elsewhere
