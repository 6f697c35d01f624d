#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dm-reverb, timed as `tandem bench replay` times Tandem's tables.

  python bench/peers/reverb_replay.py --op insert,sample,priorities --bytes 28224,100 --time-per-case 500

The server is a process of its own: a client in the server's process bypasses gRPC. An item is one step of --bytes bytes;
inserts go through a TrajectoryWriter, which may have four times as many items under way as Tandem sends in a call. Samples come from a
TrajectoryDataset, batched by tf.data, with Reverb's own choice of workers.
"""
import argparse
import os
import random
import subprocess
import sys

import replay_cases

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def serve(size, items, prioritized):
    import reverb
    import tensorflow as tf
    sampler = reverb.selectors.Prioritized(0.6) if prioritized else reverb.selectors.Uniform()
    server = reverb.Server(tables=[reverb.Table(
        name="table", sampler=sampler, remover=reverb.selectors.Fifo(), max_size=items,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature={"step": tf.TensorSpec([size], tf.uint8)})], port=None)
    print(server.port, flush=True)
    sys.stdin.read()  # until the parent closes it or dies
    os._exit(0)


class Case:
    def __init__(self, op, size, items, batch):
        self.op, self.size, self.batch = op, size, batch
        self.per_call = replay_cases.items_of_insert(size) if op == "insert" else batch
        command = [sys.executable, os.path.abspath(__file__), "--serve", op, "--bytes", str(size), "--items", str(items)]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       text=True)
        import numpy
        import reverb
        self.client = reverb.Client(f"127.0.0.1:{int(self.server.stdout.readline())}")
        self.step = numpy.full([size], 7, numpy.uint8)
        self.writer = self.client.trajectory_writer(num_keep_alive_refs=1)
        written = 0
        while written < items:
            self.insert(min(replay_cases.items_of_insert(size), items - written))
            written += replay_cases.items_of_insert(size)
        self.writer.flush()
        if op != "insert":
            dataset = reverb.TrajectoryDataset.from_table_signature(
                server_address=self.client.server_address, table="table", max_in_flight_samples_per_worker=2 * batch)
            self.samples = iter(dataset.batch(batch).prefetch(2))

    def insert(self, items, flush=True):
        for _ in range(items):
            self.writer.append({"step": self.step})
            self.writer.create_item("table", 1.0, {"step": self.writer.history["step"][-1]})
        if flush:  # Reverb goes on while the server takes earlier items
            self.writer.flush(block_until_num_items=4 * items)

    def call(self):
        if self.op == "insert":
            return self.insert(self.per_call)
        sample = next(self.samples)
        values = sample.data["step"].numpy()
        if values.shape != (self.batch, self.size) or values[0, 0] != 7:
            sys.exit("a batch has other values than were written")
        if self.op == "priorities":
            keys = sample.info.key.numpy()
            self.client.mutate_priorities("table", {int(key): random.random() + 0.01 for key in keys})

    def close(self):
        self.server.kill()
        self.server.wait()


def main():
    parser = replay_cases.parser(__doc__)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(int(args.bytes), args.items, args.serve == "priorities")
        return
    replay_cases.run(args, Case, "tcp")


if __name__ == "__main__":
    main()
