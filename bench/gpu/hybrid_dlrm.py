# SPDX-License-Identifier: Apache-2.0
"""Trains the DLRM of bench/peers/torch_dlrm.py three times: with its tables on parameter servers and its dense part on a GPU, by
tandem.nn (hybrid) and by pulls into and pushes from the GPU's memory (direct), and with torch alone, tables and dense part on the
same GPU.

  tandem run --ps 1 --nproc-per-node 1 bench/gpu/hybrid_dlrm.py [--device cuda:0] [--steps 40]

Prints one JSON object: milliseconds of a step of each (the median of 5 measurements), their ratio, and the loss of the last step
of each; their tables begin with different values. scripts/gpu_check runs it. --device cpu tries it without a GPU.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "peers")]  # next to this file in a bundle of gpu_check
import torch_dlrm as peer  # noqa: E402

import tandem  # noqa: E402

REPEATS, WARM_UP = 5, 5


def measure(step, steps, device):
    """Returns the median of the milliseconds of a step, and the last loss."""
    data = itertools.count()

    def run(count):
        for _ in range(count):
            loss = step(next(data) % 16)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return loss

    loss = run(WARM_UP)
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        loss = run(steps)
        times.append((time.perf_counter() - begin) / steps * 1e3)
    return statistics.median(times), loss.item()


def hybrid(batches, steps, device):
    client = tandem.connect()
    emb = tandem.nn.EmbeddingCollection(
        [tandem.nn.Table(f"t{f}", dim=peer.DIM, optimizer=tandem.optim.SGD(lr=0.01)) for f in range(peer.FEATURES)], client
    )
    torch.manual_seed(0)
    dense_model = peer.DenseNet().to(device)
    optimizer = peer.optimizer("sgd", dense_model.parameters())
    first = torch.arange(peer.FEATURES) * peer.ROWS
    data = []
    for ids, dense, labels in batches:
        columns = (ids - first).t().contiguous()
        sparse = {f"t{f}": columns[f].to(device) for f in range(peer.FEATURES)}
        data.append((sparse, dense.to(device), labels.to(device)))

    def step(i):
        sparse, dense, labels = data[i]
        loss = F.binary_cross_entropy_with_logits(dense_model(dense, emb.stack(sparse)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    result = measure(step, steps, device)
    emb.flush()
    client.close()
    return result


def direct(batches, steps, device):
    client = tandem.connect()
    client.create_table("direct", dim=peer.DIM, optimizer=tandem.optim.SGD(lr=0.01))
    torch.manual_seed(0)
    dense_model = peer.DenseNet().to(device)
    optimizer = peer.optimizer("sgd", dense_model.parameters())
    data = [(ids.reshape(-1).numpy(), dense.to(device), labels.to(device)) for ids, dense, labels in batches]

    def step(i):
        ids, dense, labels = data[i]
        rows = torch.empty(len(ids), peer.DIM, device=device)
        _, version = client.pull("direct", ids, out=rows)
        rows.requires_grad_()
        loss = F.binary_cross_entropy_with_logits(dense_model(dense, rows.view(peer.BATCH, peer.FEATURES, peer.DIM)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        client.push("direct", ids, rows.grad, version=version)
        return loss.detach()

    result = measure(step, steps, device)
    client.close()
    return result


def alone(batches, steps, device):
    torch.manual_seed(0)
    dense_model = peer.DenseNet().to(device)
    table = torch.nn.EmbeddingBag(peer.FEATURES * peer.ROWS, peer.DIM, mode="sum", sparse=True).to(device)
    optimizers = [peer.optimizer("sgd", table.parameters()), peer.optimizer("sgd", dense_model.parameters())]
    offsets = torch.arange(peer.BATCH * peer.FEATURES, device=device)
    data = [tuple(tensor.to(device) for tensor in batch) for batch in batches]

    def step(i):
        ids, dense, labels = data[i]
        rows = table(ids.view(-1), offsets).view(peer.BATCH, peer.FEATURES, peer.DIM)
        loss = F.binary_cross_entropy_with_logits(dense_model(dense, rows), labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    return measure(step, steps, device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda:0"))
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    batches = peer.batches(1)
    hybrid_ms, hybrid_loss = hybrid(batches, args.steps, args.device)
    direct_ms, direct_loss = direct(batches, args.steps, args.device)
    torch_ms, torch_loss = alone(batches, args.steps, args.device)
    device = torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else "cpu"
    print(json.dumps({
        "device": device, "hybrid_ms": round(hybrid_ms, 3), "direct_ms": round(direct_ms, 3), "torch_ms": round(torch_ms, 3),
        "ratio": round(hybrid_ms / torch_ms, 3), "direct_ratio": round(direct_ms / torch_ms, 3),
        "hybrid_loss": round(hybrid_loss, 4), "direct_loss": round(direct_loss, 4), "torch_loss": round(torch_loss, 4),
    }), flush=True)


if __name__ == "__main__":
    main()
