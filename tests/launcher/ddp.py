# SPDX-License-Identifier: Apache-2.0
# A PyTorch program that knows nothing of who starts it: rank 0 writes what two processes have learned together.
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(100 + dist.get_rank())
for step in range(20):
    batch = torch.randn(32, 8, generator=generator)
    loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as out:
        print(dist.get_world_size(), *(f"{value:.9g}" for p in model.parameters() for value in p.flatten()), file=out)
dist.destroy_process_group()
