# SPDX-License-Identifier: Apache-2.0
# tandem run --ps 2 --workers 2 -- python examples/python/first.py
import tandem, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("tandem")                            # an all-reduce over shared memory or TCP
with tandem.connect() as client:                             # the parameter servers of the job
    movie = tandem.nn.EmbeddingBag(16, name="movie", client=client, optimizer=tandem.optim.Adagrad(lr=0.05))
    dense = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(dense.parameters(), lr=0.01)
    movie.follow(optimizer)                                  # optimizer.step() trains the table as well
    for step in range(301):
        ids = torch.randint(0, 5000, (256, 5))               # any 64-bit ids: rows appear when they are first seen
        liked = (ids % 3 == 0).float().mean(1)               # to be learned: a third of the movies are liked
        loss = (dense(movie(ids)).squeeze(1) - liked).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
