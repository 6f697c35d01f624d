# SPDX-License-Identifier: Apache-2.0
"""Pulls from one server, and what they leave of the interpreter to other threads. Run by `tandem run --ps 1`.

  pull.py [--seconds 0.5] [--rows 100000]

Prints one JSON object: the median time of a pull of 1 id and of 4096 ids x 64 floats with out=, in microseconds, and the rate of a
thread that computes in Python while another pulls, as a part of its rate alone.
"""

import argparse
import json
import statistics
import sys
import threading
import time

import numpy as np

import tandem

DIM, BATCHES = 64, 16


def median_us(client, batches, out, seconds):
    for ids in batches:
        client.pull("t", ids, out=out)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        for ids in batches:
            before = time.perf_counter()
            client.pull("t", ids, out=out)
            times.append(time.perf_counter() - before)
    return statistics.median(times) * 1e6


def spin(stop, count):
    """Counts in Python until `stop` is set."""
    i = 0
    while not stop.is_set():
        for _ in range(1000):
            i += 1
    count.append(i)


def rate_of_thread(seconds, meanwhile):
    """The counts a second of a thread while this one runs `meanwhile` again and again."""
    stop, count = threading.Event(), []
    thread = threading.Thread(target=spin, args=(stop, count))
    begin = time.perf_counter()
    thread.start()
    while time.perf_counter() - begin < seconds:
        meanwhile()
    stop.set()
    thread.join()
    return count[0] / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rows", type=int, default=100_000)
    args = parser.parse_args()
    with tandem.connect() as client:
        client.create_table("t", dim=DIM, optimizer=tandem.optim.Adagrad(lr=0.05))
        random = np.random.default_rng(1)
        for begin in range(0, args.rows, 10_000):
            client.pull("t", np.arange(begin, min(begin + 10_000, args.rows)))
        one = [random.integers(0, args.rows, 1) for _ in range(BATCHES)]
        many = [random.choice(args.rows, 4096, replace=False) for _ in range(BATCHES)]
        rows_of_one, rows = np.empty((1, DIM), np.float32), np.empty((4096, DIM), np.float32)
        result = {"pull_1_us": median_us(client, one, rows_of_one, args.seconds),
                  "pull_4096_us": median_us(client, many, rows, args.seconds)}  # fmt: skip
        ratios = []
        for _ in range(5):
            alone = rate_of_thread(args.seconds / 2, lambda: time.sleep(0.01))
            shared = rate_of_thread(args.seconds / 2, lambda: client.pull("t", many[0], out=rows))
            ratios.append(shared / alone)
        result["thread_rate"] = statistics.median(ratios)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
