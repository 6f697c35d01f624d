# SPDX-License-Identifier: Apache-2.0
"""The DLRM of bench/peers/torch_dlrm.py with its embeddings on Tandem's servers and DistributedDataParallel over Tandem.

  tandem run --ps 1 --nproc-per-node 2 bench/python/dlrm.py OPTIMIZER [--depth 2] [--dense] [--profile FILE]

OPTIMIZER is sgd or adagrad. Rank 0 prints one JSON object, as torch_dlrm.py does. --dense also measures steps of the dense part alone,
in turns with whole ones, and prints its part of the time as "dense_part". --profile writes a profile of rank 0 (cProfile).
"""

import argparse
import cProfile
import itertools
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
import torch_dlrm as peer  # noqa: E402

import tandem  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimizer", choices=["sgd", "adagrad"])
    parser.add_argument("--depth", type=int, default=2, help="batches whose rows are pulled ahead")
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--profile")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("tandem")
    rank, world = dist.get_rank(), dist.get_world_size()
    client = tandem.connect()
    optimizer = {"sgd": tandem.optim.SGD(lr=0.01), "adagrad": tandem.optim.Adagrad(lr=0.01)}[args.optimizer]
    emb = tandem.nn.EmbeddingCollection(
        [tandem.nn.Table(f"t{f}", dim=peer.DIM, optimizer=optimizer) for f in range(peer.FEATURES)], client
    )
    dense_model = peer.DenseNet()
    model = torch.nn.parallel.DistributedDataParallel(dense_model) if world > 1 else dense_model
    dense_optimizer = peer.optimizer(args.optimizer, dense_model.parameters())
    data = []
    for ids, dense, labels in peer.batches(rank + 1):
        columns = (ids - torch.arange(peer.FEATURES) * peer.ROWS).t().contiguous()
        data.append({"sparse": {f"t{f}": columns[f] for f in range(peer.FEATURES)}, "dense": dense, "labels": labels})

    def step(batch):
        train(batch, emb.stack(batch["sparse"]))

    def train(batch, rows):
        loss = F.binary_cross_entropy_with_logits(model(batch["dense"], rows), batch["labels"])
        dense_optimizer.zero_grad()
        loss.backward()
        dense_optimizer.step()

    steps = peer.STEPS // world
    for batch in data:  # creates the rows
        step(batch)
    count = peer.WARMUP + peer.REPEATS * steps
    batches = iter(tandem.data.Prefetch(itertools.islice(itertools.cycle(data), count), emb, depth=args.depth))
    for _ in range(peer.WARMUP):
        step(next(batches))
    profiler = cProfile.Profile() if args.profile and rank == 0 else None
    measured, dense_parts = [], []
    rows = torch.zeros(peer.BATCH, peer.FEATURES, peer.DIM, requires_grad=True)
    for _ in range(peer.REPEATS):
        dist.barrier()
        begin = time.perf_counter()
        if profiler:
            profiler.enable()
        for _ in range(steps):
            step(next(batches))
        if profiler:
            profiler.disable()
        dist.barrier()
        measured.append((time.perf_counter() - begin) / steps)
        if args.dense:
            begin = time.perf_counter()
            for i in range(steps):
                rows.grad = None
                train(data[i % len(data)], rows)
            dist.barrier()
            dense_parts.append((time.perf_counter() - begin) / steps / measured[-1])
    if rank == 0:
        peer.report(measured, world * peer.BATCH, **({"dense_part": statistics.median(dense_parts)} if dense_parts else {}))
    if profiler:
        profiler.dump_stats(args.profile)
    emb.flush()
    dist.barrier()
    client.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
