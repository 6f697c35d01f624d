# SPDX-License-Identifier: Apache-2.0
"""Replay tables for reinforcement learning: actors write steps and make items of them, learners sample batches.

    import numpy as np
    from tandem import replay

    client = replay.local([replay.Table.uniform("replay", size=100_000)])      # or connect("host:port")
    with client.writer() as writer:
        for step in range(100):
            writer.append({"observation": np.zeros(4, np.float32), "action": step % 2, "reward": 1.0}, is_first=step == 0)
            writer.create_item("replay", writer.last(1))
    batch = client.sample("replay", 32)
    print(batch["observation"].shape)                                          # (32, 1, 4)

docs/python_rl.md describes the module, docs/replay.md what tables do.
"""

from tandem.replay._batch import Batch
from tandem.replay._client import Client, Sampler
from tandem.replay._server import Server, connect, connect_all, local, serve
from tandem.replay._sharded import ShardedClient, ShardedSampler
from tandem.replay._tables import Column, RateLimit, Selector, Staleness, Table
from tandem.replay._writer import Ticket, Window, Writer

__all__ = [
    "Batch", "Client", "Column", "RateLimit", "Sampler", "Selector", "Server", "ShardedClient", "ShardedSampler", "Staleness", "Table", "Ticket",
    "Window", "Writer", "connect", "connect_all", "local", "serve",
]  # fmt: skip
