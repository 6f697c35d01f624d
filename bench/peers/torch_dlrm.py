# SPDX-License-Identifier: Apache-2.0
"""The DLRM of `tandem bench train` in PyTorch: 26 features x 100k rows x dim 16, 13 dense, MLPs 13-64-16 and 64-1, dot
interaction, batch 1024, Zipf 1.05 ids, 16 batches generated beforehand and cycled.

  torch_dlrm.py local OPTIMIZER [THREADS]  one process, one merged table
  torch_dlrm.py rpc OPTIMIZER              2 trainers (DDP over Gloo) and an embedding server over torch.distributed.rpc

OPTIMIZER is sgd or adagrad. Prints one JSON object: {"samples_per_s": ..., "ms_per_step": ...}, the median of 7
measurements. Debian's PyTorch uses reference BLAS: replace it by OpenBLAS (bench/compare_dlrm does).
"""
import json
import os
import socket
import statistics
import sys
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

FEATURES, DIM, ROWS, BATCH, DENSE = 26, 16, 100_000, 1024, 13
STEPS, REPEATS, WARMUP = 40, 7, 5


def batches(seed):
    rng = np.random.RandomState(seed)
    weights = 1 / np.arange(1, ROWS + 1) ** 1.05
    cumulative = np.cumsum(weights / weights.sum())
    out = []
    for _ in range(16):
        rank = np.minimum(np.searchsorted(cumulative, rng.rand(BATCH, FEATURES)), ROWS - 1)
        # Hot ids are spread over the table, as by hashing.
        ids = (rank * np.int64(7919) + np.arange(FEATURES) * 31) % ROWS + np.arange(FEATURES) * ROWS
        dense = rng.rand(BATCH, DENSE).astype("f4")
        labels = (rng.rand(BATCH) < 0.25).astype("f4")
        out.append(tuple(torch.from_numpy(a) for a in (ids, dense, labels)))
    return out


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        n = FEATURES + 1
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(DIM + n * (n - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.triu_indices(n, n, 1))

    def forward(self, dense, embeddings):
        bottom = self.bottom(dense)
        z = torch.cat([bottom.unsqueeze(1), embeddings], 1)
        dots = torch.bmm(z, z.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, dots], 1)).squeeze(1)


def optimizer(kind, parameters):
    return {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[kind](parameters, lr=0.01)


def report(seconds_per_step, samples_per_step, **more):
    s = statistics.median(seconds_per_step)
    print(json.dumps({"samples_per_s": samples_per_step / s, "ms_per_step": s * 1e3, **more}), flush=True)


def local(kind, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    data, model = batches(1), DenseNet()
    table = nn.EmbeddingBag(FEATURES * ROWS, DIM, mode="sum", sparse=True)
    offsets = torch.arange(BATCH * FEATURES)
    table_opt, dense_opt = optimizer(kind, table.parameters()), optimizer(kind, model.parameters())

    def step(i):
        ids, dense, labels = data[i % 16]
        rows = table(ids.view(-1), offsets).view(BATCH, FEATURES, DIM)
        loss = F.binary_cross_entropy_with_logits(model(dense, rows), labels)
        table_opt.zero_grad()
        dense_opt.zero_grad()
        loss.backward()
        table_opt.step()
        dense_opt.step()

    for i in range(WARMUP):
        step(i)
    measured = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        for i in range(STEPS):
            step(i)
        measured.append((time.perf_counter() - begin) / STEPS)
    report(measured, BATCH)


class Server:
    def __init__(self, kind):
        torch.set_num_threads(1)
        self.table = nn.EmbeddingBag(FEATURES * ROWS, DIM, mode="sum", sparse=True)
        self.opt = optimizer(kind, self.table.parameters())
        self.lock = threading.Lock()

    def pull(self, ids):
        with torch.no_grad():
            return self.table(ids, torch.arange(ids.numel()))

    def push(self, ids, gradients):
        with self.lock:
            shape = self.table.weight.shape
            self.table.weight.grad = torch.sparse_coo_tensor(ids.unsqueeze(0), gradients, shape)
            self.opt.step()


SERVER = None


def make_server(kind):
    global SERVER
    SERVER = Server(kind)


def on_server(method, *args):
    return getattr(SERVER, method)(*args)


def rpc_process(rank, kind, port):
    torch.set_num_threads(1)
    os.environ.update(TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=8, init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=120)
    rpc.init_rpc("ps" if rank == 2 else f"trainer{rank}", rank=rank, world_size=3, rpc_backend_options=options)
    if rank < 2:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port + 1}", rank=rank, world_size=2)
        if rank == 0:
            rpc.rpc_sync("ps", make_server, args=(kind,))
        dist.barrier()
        torch.manual_seed(0)
        data, model = batches(rank + 1), nn.parallel.DistributedDataParallel(DenseNet())
        dense_opt = optimizer(kind, model.parameters())

        def step(i):
            ids, dense, labels = data[i % 16]
            ids = ids.view(-1)
            rows = rpc.rpc_sync("ps", on_server, args=("pull", ids)).requires_grad_()
            loss = F.binary_cross_entropy_with_logits(model(dense, rows.view(BATCH, FEATURES, DIM)), labels)
            dense_opt.zero_grad()
            loss.backward()
            pushed = rpc.rpc_async("ps", on_server, args=("push", ids, rows.grad))
            dense_opt.step()
            pushed.wait()

        for i in range(WARMUP):
            step(i)
        measured, steps = [], STEPS // 2
        for _ in range(REPEATS):
            dist.barrier()
            begin = time.perf_counter()
            for i in range(steps):
                step(i)
            dist.barrier()
            measured.append((time.perf_counter() - begin) / steps)
        if rank == 0:
            report(measured, 2 * BATCH)
    rpc.shutdown()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    if sys.argv[1] == "local":
        local(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    else:
        mp.spawn(rpc_process, (sys.argv[2], free_port()), 3)
