#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TorchRL's replay buffer, timed as `tandem bench replay --transport in-process` times Tandem's tables.

  python bench/peers/torchrl_replay.py --op insert,sample,priorities --bytes 28224,100 --time-per-case 500

The buffer lives in this process: TorchRL has no server of its own. An item is one step of --bytes bytes in a
LazyTensorStorage. Inserts extend the buffer by as many items as Tandem sends in a call; the oldest leave. Samples are one
array of --batch items. With --op priorities the sampler is TorchRL's PrioritizedSampler, whose trees are C++, and each sample
is followed by an update of its items' priorities.
"""
import sys

import replay_cases
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler


class Case:
    def __init__(self, op, size, items, batch):
        self.op, self.size, self.batch = op, size, batch
        self.per_call = replay_cases.items_of_insert(size) if op == "insert" else batch
        sampler = PrioritizedSampler(items, alpha=0.6, beta=0.4) if op == "priorities" else RandomSampler()
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(items), sampler=sampler, batch_size=batch,
                                             priority_key="priority")
        filling = min(items, 4096)
        steps = self.steps(filling)
        for begin in range(0, items, filling):
            self.buffer.extend(steps[:min(filling, items - begin)])
        if len(self.buffer) != items:
            sys.exit(f"the buffer has {len(self.buffer)} items, not {items}")
        self.some_steps = self.steps(self.per_call)

    def steps(self, count):
        return TensorDict({"step": torch.full([count, self.size], 7, dtype=torch.uint8)}, batch_size=[count])

    def call(self):
        if self.op == "insert":
            self.buffer.extend(self.some_steps)
            return
        sample = self.buffer.sample()
        values = sample["step"]
        if values.shape != (self.batch, self.size) or values[0, 0] != 7:
            sys.exit("a batch has other values than were written")
        if self.op == "priorities":
            self.buffer.update_priority(sample["index"], torch.rand(self.batch) + 0.01)

    def close(self):
        self.buffer = None


def main():
    args = replay_cases.parser(__doc__).parse_args()
    torch.manual_seed(1)
    replay_cases.run(args, Case, "in-process")


if __name__ == "__main__":
    main()
