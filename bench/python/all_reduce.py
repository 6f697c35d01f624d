# SPDX-License-Identifier: Apache-2.0
"""all_reduce of torch.distributed over Tandem and over Gloo, between two ranks of this machine. Run by `tandem run`.

  all_reduce.py [--bytes 1024] [--calls 300] [--rounds 10]

Both groups are in the same processes and take turns. Rank 0 prints one JSON object: for each backend the median time of a call, in
microseconds, and the median over the rounds of Gloo's time / Tandem's.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist


def times_of(group, tensor, calls):
    dist.barrier(group=group)
    times = []
    for _ in range(calls):
        before = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        times.append(time.perf_counter() - before)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("tandem")
    groups = {"tandem": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    tensor = torch.zeros(args.bytes // 4)
    for group in groups.values():
        times_of(group, tensor, 200)
    medians = {name: [] for name in groups}
    for _ in range(args.rounds):
        for name, group in groups.items():
            medians[name].append(statistics.median(times_of(group, tensor, args.calls)))
    if dist.get_rank() == 0:
        result = {f"{name}_us": statistics.median(times) * 1e6 for name, times in medians.items()}
        result["gloo_over_tandem"] = statistics.median(g / t for g, t in zip(medians["gloo"], medians["tandem"]))
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
