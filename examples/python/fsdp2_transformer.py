# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer whose parameters are sharded over the ranks by FSDP2 (fully_shard).

  tandem run --nproc-per-node 2 examples/python/fsdp2_transformer.py --steps 100

It learns to predict the next character of its own source text.
"""

import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Transformer(nn.Module):
    def __init__(self, vocabulary, dim, layers, length):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(0.02 * torch.randn(length, dim))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, text):
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.embedding(text) + self.position[:length]
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="sequences of each rank in a step")
    parser.add_argument("--length", type=int, default=48)
    args = parser.parse_args()
    dist.init_process_group("tandem")
    rank = dist.get_rank()
    text = pathlib.Path(__file__).read_text()
    vocabulary = sorted(set(text))
    codes = torch.tensor([vocabulary.index(c) for c in text])
    torch.manual_seed(0)
    model = Transformer(len(vocabulary), 64, 2, args.length)
    for layer in model.layers:
        fully_shard(layer)                               # gathered when they compute, sharded again afterwards
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    random = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        begin = torch.randint(0, len(codes) - args.length - 1, (args.batch,), generator=random)
        sequences = torch.stack([codes[b : b + args.length + 1] for b in begin])
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if step == 1 or step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step}: loss {mean:.3f}", flush=True)
    shards = sum(p.to_local().numel() for p in model.parameters())
    print(f"rank {rank} holds {shards} of {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
