# SPDX-License-Identifier: Apache-2.0
"""A parameter server over torch.distributed.rpc, timed as `tandem bench ps` times Tandem's: a dense tensor of rows (no index:
ids are row numbers) and of Adagrad's accumulators in one process, a worker in another.

  torch_ps.py --op pull,push --ids 256,4096,16384 --dim 64 --in-flight 1,4,8 --rows 1000000 --time-per-case 200

Prints one JSON object per line, as `tandem bench ps --json` does.
"""
import argparse
import collections
import json
import os
import socket
import statistics
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

GRADIENT, LEARNING_RATE = 0.0625, 0.05


class Table:
    def __init__(self, rows, dim):
        self.weights = (torch.arange(rows) % 1000).float().mul(0.001).unsqueeze(1).repeat(1, dim)
        self.accumulators = torch.ones(rows, dim)

    def pull(self, ids):
        return self.weights.index_select(0, ids)

    def push(self, ids, gradients):
        sums = self.accumulators.index_select(0, ids).addcmul_(gradients, gradients)
        self.accumulators.index_copy_(0, ids, sums)
        self.weights.index_add_(0, ids, gradients.div(sums.sqrt_().add_(1e-10)), alpha=-LEARNING_RATE)


TABLE = None


def make_table(rows, dim):
    global TABLE
    torch.set_num_threads(1)
    TABLE = Table(rows, dim)


def pull(ids):
    return TABLE.pull(ids)


def push(ids, gradients):
    TABLE.push(ids, gradients)


def cpu_seconds():
    return time.process_time()


def run(op, batches, gradients, in_flight, seconds, check):
    """Returns the latencies of all calls and their total duration."""
    outstanding, latencies = collections.deque(), []
    begin = time.perf_counter()
    number = 0

    def start():
        nonlocal number
        ids = batches[number % len(batches)]
        number += 1
        call = rpc.rpc_async("server", pull, args=(ids,)) if op == "pull" else rpc.rpc_async(
            "server", push, args=(ids, gradients))
        outstanding.append((call, ids, time.perf_counter()))

    for _ in range(in_flight):
        start()
    while outstanding:
        call, ids, since = outstanding.popleft()
        answer = call.wait()
        now = time.perf_counter()
        latencies.append((now - since) * 1e6)
        if check and abs(answer[0, 0].item() - (ids[0].item() % 1000) * 0.001) > 1e-6:
            raise SystemExit("torch_ps: a wrong row")
        if now < begin + seconds:
            start()
    return latencies, time.perf_counter() - begin


def measure(args):
    rpc.rpc_sync("server", make_table, args=(args.rows, args.dim))
    generator = torch.Generator().manual_seed(1)
    for ids in args.ids:
        count = max(16, 2**19 // ids)
        batches = [torch.randperm(args.rows, generator=generator)[:ids].clone() for _ in range(min(count, 64))]
        gradients = torch.full((ids, args.dim), GRADIENT)
        for op in args.op:
            for in_flight in args.in_flight:
                seconds = args.time_per_case / 1e3
                check = op == "pull" and args.op[0] == "pull" and ids == args.ids[0]  # nothing was pushed yet
                run(op, batches, gradients, in_flight, seconds / 5, check)
                before = time.process_time(), rpc.rpc_sync("server", cpu_seconds)
                latencies, took = run(op, batches, gradients, in_flight, seconds, check)
                after = time.process_time(), rpc.rpc_sync("server", cpu_seconds)
                latencies.sort()
                keys = len(latencies) * ids
                print(json.dumps({
                    "transport": "torch", "op": op, "ids": ids, "dim": args.dim, "servers": 1, "workers": 1,
                    "in_flight": in_flight, "distribution": "uniform", "keys_per_s": keys / took,
                    "median_us": statistics.median(latencies), "p99_us": latencies[-(-99 * len(latencies) // 100) - 1],
                    "client_cpu_s_per_mkeys": (after[0] - before[0]) / keys * 1e6,
                    "server_cpu_s_per_mkeys": (after[1] - before[1]) / keys * 1e6}), flush=True)


def process(rank, args, port):
    torch.set_num_threads(1)
    os.environ.update(TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8, init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc("worker" if rank == 0 else "server", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        measure(args)
    rpc.shutdown()


def main():
    def numbers(text):
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", type=lambda text: text.split(","), default=["pull", "push"])
    parser.add_argument("--ids", type=numbers, default=[256, 4096, 16384])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--in-flight", type=numbers, default=[1, 4, 8])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--time-per-case", type=float, default=200, help="milliseconds")
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(process, (args, port), 2)


if __name__ == "__main__":
    main()
