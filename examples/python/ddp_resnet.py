# SPDX-License-Identifier: Apache-2.0
"""Trains a ResNet by DistributedDataParallel on images of CIFAR's shape.

  tandem run --nproc-per-node 2 examples/python/ddp_resnet.py --epochs 3
  torchrun --nproc-per-node 2 examples/python/ddp_resnet.py          # the same

The images are generated: noise over one pattern for each class. The model is torchvision's resnet18 if torchvision is installed,
else the small ResNet below (--model small).
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 10


class Block(nn.Module):
    """Two convolutions with a shortcut (He et al., 2016)."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def small_resnet():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def make_model(name):
    if name != "small":
        try:
            from torchvision.models import resnet18

            return "torchvision's resnet18", resnet18(num_classes=CLASSES)
        except ImportError:
            if name == "resnet18":
                raise
    return "the small ResNet", small_resnet()


def make_images(count):
    random = torch.Generator().manual_seed(5)
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=random)
    labels = torch.randint(0, CLASSES, (count,), generator=random)
    return TensorDataset(0.5 * patterns[labels] + torch.randn(count, 3, 32, 32, generator=random), labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32, help="images of each rank in a step")
    parser.add_argument("--model", choices=["auto", "resnet18", "small"], default="auto")
    args = parser.parse_args()
    dist.init_process_group("tandem")
    rank = dist.get_rank()
    torch.manual_seed(0)
    name, model = make_model(args.model)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images = make_images(args.images)
    sampler = DistributedSampler(images, shuffle=True, seed=3)
    loader = DataLoader(images, batch_size=args.batch, sampler=sampler)
    if rank == 0:
        print(f"{name} on {dist.get_world_size()} ranks", flush=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)                         # another order in each epoch, the same on all ranks
        sums = torch.zeros(3)
        for x, y in loader:
            optimizer.zero_grad()
            scores = model(x)
            loss = nn.functional.cross_entropy(scores, y)
            loss.backward()
            optimizer.step()
            sums += torch.tensor([loss.item() * len(y), (scores.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(sums)
        if rank == 0:
            print(f"epoch {epoch}: loss {sums[0] / sums[2]:.3f}, {sums[1] / sums[2]:.0%} are right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
