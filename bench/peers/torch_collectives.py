#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over Gloo, timed as `tandem bench` times Tandem's collectives (bench/harness/measure.h).

  bench/peers/torch_collectives.py allreduce [--ranks 2] [--sizes 8,64K] [--in-place] [--out-of-place] [--repeats 7]
                                   [--time-per-size 60] [--batch 1000]

Starts its ranks itself and prints one JSON object per line. float32 only. If torch has no out-of-place call
(all_reduce), the program copies first, as a user's program would.
"""
import argparse
import json
import math
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

BUS_FACTORS = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1,
    "all_gather": lambda n: (n - 1) / n,
    "barrier": lambda n: 1,
}
BUFFER_BYTES = 16 << 20


def parse_size(text):
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1].upper(), 0)
    return int(text[:-1] if shift else text) << shift


def parse_sizes(text):
    sizes = []
    for part in text.split(","):
        bounds = [parse_size(size) for size in part.split(":")]
        if len(bounds) == 1:
            sizes += bounds
            continue
        size, end = bounds[:2]
        while size <= end:
            sizes.append(size)
            size *= bounds[2] if len(bounds) > 2 else 2
    return sizes


def max_over_ranks(values):
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def operation(args, size, in_place, rank):
    """Returns the number of buffer sets, the bytes of one, and a function that runs the operation on the i-th."""
    if args.op == "barrier":
        return 2, 0, lambda i: dist.barrier()
    parts = args.ranks if args.op == "all_gather" else 1
    part = max(size // 4 // parts, 1)
    count = part * parts
    sets = 2
    while sets < 16 and 2 * sets * count * 4 * (1 if in_place else 2) <= BUFFER_BYTES:
        sets *= 2
    outs = [torch.ones(count) for _ in range(sets)]
    ins = outs if in_place else [torch.ones(part if args.op == "all_gather" else count) for _ in range(sets)]
    mask = sets - 1
    if args.op == "broadcast":
        return sets, count * 4, lambda i: dist.broadcast(outs[i & mask], 0)
    if args.op == "all_gather":
        views = [list(out.split(part)) for out in outs]
        if in_place:
            ins = [view[rank] for view in views]
        return sets, count * 4, lambda i: dist.all_gather(views[i & mask], ins[i & mask])
    if in_place:
        return sets, count * 4, lambda i: dist.all_reduce(outs[i & mask])

    def copy_and_reduce(i):
        outs[i & mask].copy_(ins[i & mask])
        dist.all_reduce(outs[i & mask])

    return sets, count * 4, copy_and_reduce


def measure(args, size, in_place, rank):
    sets, size, run = operation(args, size, in_place, rank)
    target = args.time_per_size / 1e3
    next_op, count, seconds = 0, sets // 2, 0
    while seconds < target / 8 or next_op <= sets:
        count *= 2
        dist.barrier()
        begin = time.perf_counter()
        for i in range(next_op, next_op + count):
            run(i)
        seconds = max_over_ranks([time.perf_counter() - begin])[0]
        next_op += count
    each = seconds / count
    operations = max(3, target / each)
    per_batch = int(min(max(math.floor(args.batch / 1e6 / each), 1), operations))
    batches = max(1, round(operations / per_batch))
    samples = []
    for _ in range(args.repeats):
        dist.barrier()
        times = []
        begin = time.perf_counter()
        for _ in range(batches):
            for i in range(next_op, next_op + per_batch):
                run(i)
            end = time.perf_counter()
            times.append((end - begin) * 1e6 / per_batch)
            begin = end
            next_op += per_batch
        samples += max_over_ranks(times)
    samples.sort()
    median = statistics.median(samples)
    algbw = size / median / 1e3
    return {"op": args.op, "backend": "torch-gloo", "ranks": args.ranks, "bytes": size,
            "dtype": "u8" if args.op == "barrier" else "f32", "in_place": in_place, "min_us": samples[0],
            "median_us": median, "p99_us": samples[math.ceil(0.99 * len(samples)) - 1], "algbw_gbps": algbw,
            "busbw_gbps": algbw * BUS_FACTORS[args.op](args.ranks)}


def run_rank(rank, args, store):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=args.ranks)
    places = {"broadcast": [True], "barrier": [False]}.get(args.op, [False, True])
    if args.in_place != args.out_of_place and len(places) > 1:
        places = [args.in_place]
    for size in [0] if args.op == "barrier" else parse_sizes(args.sizes):
        for in_place in places:
            result = measure(args, size, in_place, rank)
            if rank == 0:
                print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("op", choices=sorted(BUS_FACTORS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="8,1K,64K,1M,64M")
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--out-of-place", action="store_true")
    parser.add_argument("--time-per-size", type=float, default=60)
    parser.add_argument("--batch", type=float, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="as always")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.spawn(run_rank, (args, os.path.join(directory, "store")), args.ranks)


if __name__ == "__main__":
    main()
