# SPDX-License-Identifier: Apache-2.0
"""IMPALA (Espeholt et al., ICML 2018) with a learner in PyTorch: actors write unrolls into a replay queue and follow the learner's weights.

    tandem run --learners 1 --replay 1 --actors 4 -- python examples/python/impala.py
    python examples/python/impala.py                                     # the same roles as threads of one process

Each process has a role (TANDEM_ROLE). The environment is Gymnasium's CartPole-v1 if Gymnasium is installed, else the one below, which has
the same physics. Actors need NumPy alone. 160,000 steps are enough with each of the seeds 1 to 5; jobs/cartpole_impala.yaml, which `tandem rl`
trains, has larger batches for a million steps.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from tandem import replay, weights

QUEUE, POLICY = "unrolls", "policy"
UNROLL, BATCH, QUEUE_SIZE, MAX_LAG = 20, 4, 16, 16  # larger batches make fewer updates of the same steps, and learn less from them
GAMMA, ENTROPY, VALUE, LEARNING_RATE, CLIP_NORM = 0.99, 0.001, 0.5, 1.5e-3, 0.5  # at 0.98, or twice the rate, some seeds end below 300
REWARD_SCALE = 0.05  # with rewards of 1 the value's gradient takes nearly all of CLIP_NORM


class CartPole:
    """Copies of Gymnasium's CartPole-v1 that step together. Terminated (the pole fell) and truncated (500 steps) are told apart."""

    def __init__(self, copies: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._state = self._random.uniform(-0.05, 0.05, (copies, 4))
        self._steps = np.zeros(copies, np.int64)

    @property
    def observations(self) -> np.ndarray:
        """What the next actions are based on: after the end of an episode the first observation of the next one."""
        return self._state.astype(np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns (the observations that the steps have led to, rewards, terminated, truncated)."""
        x, x_dot, theta, theta_dot = self._state.T
        force = np.where(actions == 1, 10.0, -10.0)
        cos, sin = np.cos(theta), np.sin(theta)
        temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
        theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        x_acc = temp - 0.05 * theta_acc * cos / 1.1
        state = np.stack([x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc], 1)
        self._steps += 1
        terminated = (np.abs(state[:, 0]) > 2.4) | (np.abs(state[:, 2]) > 12 * 2 * np.pi / 360)
        truncated = ~terminated & (self._steps >= 500)
        ended = terminated | truncated
        self._state = np.where(ended[:, None], self._random.uniform(-0.05, 0.05, state.shape), state)
        self._steps[ended] = 0
        return state.astype(np.float32), np.ones(len(state), np.float32), terminated, truncated


class Gymnasium:
    """Copies of an environment of Gymnasium, with the interface of CartPole above."""

    def __init__(self, name: str, copies: int, seed: int) -> None:
        import gymnasium

        self._environments = [gymnasium.make(name, disable_env_checker=True) for _ in range(copies)]
        self.observations = np.stack([e.reset(seed=seed * copies + i)[0] for i, e in enumerate(self._environments)]).astype(np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        led_to, rewards, terminated, truncated, _ = zip(*(e.step(int(a)) for e, a in zip(self._environments, actions)))
        self.observations = np.array(led_to, np.float32)
        for i in np.flatnonzero(np.logical_or(terminated, truncated)):
            self.observations[i] = self._environments[i].reset()[0]
        return np.array(led_to, np.float32), np.array(rewards, np.float32), np.array(terminated), np.array(truncated)


def make_environments(copies: int, seed: int) -> Any:
    if importlib.util.find_spec("gymnasium") is not None:
        return Gymnasium("CartPole-v1", copies, seed)
    return CartPole(copies, seed)


class NumpyPolicy:
    """The policy's network, as actors compute it."""

    def __init__(self, model: weights.Model) -> None:
        layers = sorted({int(name.split(".")[0]) for name in model.tensors})
        self._layers = [(model[f"{i}.weight"].T.copy(), model[f"{i}.bias"]) for i in layers]

    def logits(self, observations: np.ndarray) -> np.ndarray:
        x = observations
        for i, (weight, bias) in enumerate(self._layers):
            x = x @ weight + bias
            if i + 1 < len(self._layers):
                x = np.tanh(x)
        return x

    def act(self, observations: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns actions, drawn by their probabilities, and the logarithms of these."""
        logits = self.logits(observations)
        log_probabilities = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)) - logits.max(1, keepdims=True)
        actions = (np.exp(log_probabilities).cumsum(1) < random.random((len(logits), 1))).sum(1).clip(max=logits.shape[1] - 1)
        return actions, np.take_along_axis(log_probabilities, actions[:, None], 1)[:, 0]


def act(client: replay.Client, store: weights.Client, index: int, copies: int, seed: int, stop: threading.Event) -> None:
    """Acts until the learner has published its last weights."""
    environments = make_environments(copies, seed * 1000 + index)
    random = np.random.default_rng([seed, index])
    policy = store.subscribe(POLICY)
    if not policy.update(timeout=60):
        raise TimeoutError(f"actor {index}: no learner has published weights within 60 s")
    network = NumpyPolicy(policy.model)
    returns, begins = np.zeros(copies, np.float32), np.ones(copies, bool)
    # One chunk has the steps of all copies, so that their items travel in one request.
    with client.writer(f"actor/{index}/{os.getpid()}", chunk_steps=UNROLL * copies + 1, history_steps=UNROLL * copies) as writer:
        while not policy.last and not stop.is_set():
            steps: dict[str, list[np.ndarray]] = collections.defaultdict(list)
            for _ in range(UNROLL):
                observations = environments.observations
                actions, log_probabilities = network.act(observations, random)
                led_to, rewards, terminated, truncated = environments.step(actions)
                returns += rewards
                ended = terminated | truncated
                step = {
                    "observation": observations, "action": actions, "log_probability": log_probabilities, "reward": rewards,
                    "terminated": terminated, "truncated": truncated, "next_observation": led_to,
                    "episode_return": np.where(ended, returns, 0).astype(np.float32), "is_first": begins,
                }  # fmt: skip
                for name, value in step.items():
                    steps[name].append(value)
                returns, begins = np.where(ended, 0, returns).astype(np.float32), ended
            unrolls = {name: np.stack(values, 1) for name, values in steps.items()}  # [copies, UNROLL, ...]
            is_first = unrolls.pop("is_first")
            for copy in range(copies):
                part = {name: values[copy] for name, values in unrolls.items()}
                writer.append_steps(part, is_first=is_first[copy], policy_version=policy.version.number)
                writer.create_item(QUEUE, writer.last(UNROLL, across_episodes=True), priority=1.0)
            while not stop.is_set() and not policy.last:
                try:
                    writer.flush(timeout=1)  # waits while the learner is behind
                    break
                except (TimeoutError, ConnectionError):  # which a server that starts again causes
                    policy.update()  # a learner that has ended takes no more
            if policy.last or stop.is_set():
                break
            if policy.update():
                network = NumpyPolicy(policy.model)
        writer.close()


def vtrace(rewards: Any, discounts: Any, ended: Any, values: Any, next_values: Any, ratios: Any) -> tuple[Any, Any]:
    """Returns (targets of the values, advantages) of unrolls [batch, steps]; all clipped at 1.

    next_values are of the observations that the steps have led to, which a truncated episode needs: its future is not 0.
    """
    import torch

    clipped = ratios.clamp(max=1.0)
    errors = clipped * (rewards + discounts * next_values - values)
    corrections = torch.zeros_like(values)  # target - value
    following = torch.zeros_like(values)
    correction = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        following[:, t] = torch.where(ended[:, t], torch.zeros_like(correction), correction)
        correction = errors[:, t] + discounts[:, t] * clipped[:, t] * following[:, t]
        corrections[:, t] = correction
    advantages = clipped * (rewards + discounts * (next_values + following) - values)
    return values + corrections, advantages


def make_networks(observation_size: int, actions: int) -> tuple[Any, Any]:
    """Returns the networks of the policy and of the value."""
    import torch

    def network(outputs: int, gain: float) -> torch.nn.Sequential:
        layers = [torch.nn.Linear(observation_size, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, outputs)]
        for layer, scale in zip(layers, (2**0.5, 2**0.5, gain)):
            torch.nn.init.orthogonal_(layer.weight, scale)
            torch.nn.init.zeros_(layer.bias)
        return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])

    return network(actions, 0.01), network(1, 1.0)


def learn(client: replay.Client, store: weights.Client, total_steps: int, seed: int) -> float:
    """Trains, and returns the mean return of 100 episodes of the final, greedy policy."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    policy, value = make_networks(observation_size=4, actions=2)
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, eps=1e-5)
    publisher = store.publisher(POLICY, name="learner/0")
    version = publisher.publish(policy.state_dict())
    episodes: collections.deque[float] = collections.deque(maxlen=100)
    began, reported, consumed, dropped, lags = time.monotonic(), time.monotonic(), 0, 0, []
    with client.sampler(QUEUE, BATCH) as sampler:
        while consumed * UNROLL < total_steps:
            batch = sampler.next()
            consumed += len(batch)
            b = batch.torch()
            ended = (b["terminated"] | b["truncated"]).bool()
            episodes.extend(b["episode_return"][ended].tolist())
            lag = version - batch.min_versions
            used = torch.from_numpy((lag <= MAX_LAG).astype(np.float32))[:, None]
            dropped += int((used == 0).sum())
            lags.append(float(lag.mean()))
            log_probabilities = torch.log_softmax(policy(b["observation"]), -1)
            taken = log_probabilities.gather(-1, b["action"][..., None]).squeeze(-1)
            values = value(b["observation"]).squeeze(-1)
            with torch.no_grad():
                targets, advantages = vtrace(
                    REWARD_SCALE * b["reward"], GAMMA * (1.0 - b["terminated"].float()), ended, values,
                    value(b["next_observation"]).squeeze(-1), (taken - b["log_probability"]).clamp(max=20.0).exp(),
                )  # fmt: skip
            entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
            loss = (used * (-advantages * taken + VALUE * 0.5 * (targets - values).square() - ENTROPY * entropy)).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(0.0, 1 - consumed * UNROLL / total_steps)
            optimizer.step()
            version = publisher.publish(policy.state_dict(), items_consumed=consumed)
            if time.monotonic() - reported >= 5:
                reported = time.monotonic()
                print(f"{consumed * UNROLL} steps, {consumed * UNROLL / (reported - began):.0f}/s  mean return {np.mean(episodes or [0]):.1f}  "
                      f"lag {np.mean(lags[-100:]):.1f}", flush=True)
    publisher.publish(policy.state_dict(), items_consumed=consumed, last=True)
    trained = time.monotonic() - began
    final = evaluate(NumpyPolicy(store.newer(POLICY)), seed)
    print(f"trained for {consumed * UNROLL} steps in {trained:.1f} s: mean lag {np.mean(lags):.1f}, {dropped} unrolls dropped; "
          f"greedy return of 100 episodes {final:.2f}", flush=True)
    return final


def evaluate(network: NumpyPolicy, seed: int, episodes: int = 100) -> float:
    """Returns the mean return of the first episode of so many fresh copies."""
    environments = make_environments(episodes, seed + 1_000_000)
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        _, rewards, terminated, truncated = environments.step(network.logits(environments.observations).argmax(1))
        returns += np.where(running, rewards, 0)
        running &= ~(terminated | truncated)
    return float(returns.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=160_000, help="steps of all environments that the learner uses")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=4, help="environments of each actor")
    parser.add_argument("--actors", type=int, default=2, help="threads, without `tandem run`")
    flags = parser.parse_args()
    tables = [replay.Table.queue(QUEUE, QUEUE_SIZE)]
    role = os.environ.get("TANDEM_ROLE", "all") if "TANDEM_STORE" in os.environ else "all"
    never = threading.Event()
    if role == "replay":
        replay.serve(tables).wait()
    elif role == "actor":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with replay.connect() as client, weights.connect() as store:
            act(client, store, int(os.environ["ROLE_RANK"]), flags.copies, flags.seed, never)
        signal.pause()  # until the launcher ends the job: an actor that ends before the learner has failed
    elif role == "learner":
        with replay.connect() as client, weights.connect() as store:
            learn(client, store, flags.steps, flags.seed)
    else:
        with replay.local(tables) as client, weights.local() as store:
            stop = threading.Event()
            threads = [threading.Thread(target=act, args=(client, store, i, flags.copies, flags.seed, stop)) for i in range(flags.actors)]
            for thread in threads:
                thread.start()
            try:
                learn(client, store, flags.steps, flags.seed)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()


if __name__ == "__main__":
    main()
