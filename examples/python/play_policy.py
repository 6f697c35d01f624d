#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plays a model of `tandem rl` in Gymnasium, with NumPy alone.

    tandem rl jobs/cartpole_ppo.yaml
    python3 examples/python/play_policy.py runs/cartpole_ppo/model.safetensors CartPole-v1 --episodes 10

Works for CartPole-v1, Acrobot-v1 and Pendulum-v1. Needs the packages numpy and gymnasium. The file is in the safetensors
format, so safetensors.numpy.load_file reads its arrays as well; load() below also returns the job.
"""
import argparse
import json
import re
import struct

import numpy


def load(path):
    """Returns the job file with which the model was trained, and the arrays by name."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    job = header.pop("__metadata__")["job"]
    arrays = {}
    for name, array in header.items():
        begin, end = array["data_offsets"]
        arrays[name] = numpy.frombuffer(data[8 + size + begin:8 + size + end], numpy.float32).reshape(array["shape"])
    return job, arrays


def make_policy(job, arrays):
    """Returns a function from an observation to the outputs of the network: logits, values of choices, or means."""
    name = "q" if "q.0.weight" in arrays else "policy"
    layers = len([key for key in arrays if re.fullmatch(rf"{name}\.\d+\.weight", key)])
    tanh = re.search(r"activation: tanh", job) is not None

    def outputs(observation):
        x = numpy.asarray(observation, numpy.float32)
        if "observations.mean" in arrays:
            deviation = numpy.sqrt(arrays["observations.variance"] + numpy.float32(1e-8))
            x = numpy.clip((x - arrays["observations.mean"]) / deviation, -10, 10)
        for layer in range(layers):
            x = arrays[f"{name}.{layer}.weight"] @ x + arrays[f"{name}.{layer}.bias"]
            if layer + 1 < layers:
                x = numpy.tanh(x) if tanh else numpy.maximum(x, 0)
        return x

    return outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("environment", help="Gymnasium's name, for example CartPole-v1")
    parser.add_argument("--episodes", type=int, default=10)
    flags = parser.parse_args()
    import gymnasium

    policy = make_policy(*load(flags.model))
    environment = gymnasium.make(flags.environment)
    discrete = hasattr(environment.action_space, "n")
    returns = []
    for episode in range(flags.episodes):
        observation, _ = environment.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            output = policy(observation)
            if discrete:
                action = int(numpy.argmax(output))
            else:  # the network's means are in units of half the range
                space = environment.action_space
                action = numpy.clip((space.low + space.high) / 2 + output * (space.high - space.low) / 2, space.low, space.high)
            observation, reward, terminated, truncated, _ = environment.step(action)
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    print(f"{flags.episodes} episodes of {flags.environment}: mean return {numpy.mean(returns):.2f}")


if __name__ == "__main__":
    main()
