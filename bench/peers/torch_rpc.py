# SPDX-License-Identifier: Apache-2.0
"""Calls over torch.distributed.rpc (TensorPipe), timed as `tandem bench rpc` times Tandem's: two processes of this machine.

  torch_rpc.py --kind empty,echo --bytes 1048576 --in-flight 1,8,64 --time-per-case 500

Prints one JSON object per line, as `tandem bench rpc --json` does; the transport is TensorPipe's own choice.
"""
import argparse
import json
import os
import socket
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp


def empty():
    return None


def echo(tensor):
    return tensor


def measure(kind, tensor, in_flight, seconds):
    """Returns the latencies of all calls and their total duration."""
    function, args = (empty, ()) if kind == "empty" else (echo, (tensor,))
    latencies, begin = [], time.perf_counter()
    if in_flight == 1:
        while time.perf_counter() - begin < seconds:
            before = time.perf_counter()
            rpc.rpc_sync("server", function, args=args)
            latencies.append(time.perf_counter() - before)
        return latencies, time.perf_counter() - begin
    while time.perf_counter() - begin < seconds:
        before = time.perf_counter()
        for future in [rpc.rpc_async("server", function, args=args) for _ in range(in_flight)]:
            future.wait()
            latencies.append(time.perf_counter() - before)
    return latencies, time.perf_counter() - begin


def process(rank, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=16, init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc("client" if rank == 0 else "server", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        seconds = float(args.time_per_case) / 1e3
        for kind in args.kind.split(","):
            for size in map(int, args.bytes.split(",")) if kind == "echo" else [0]:
                tensor = torch.ones(size, dtype=torch.uint8)
                for in_flight in map(int, args.in_flight.split(",")):
                    if in_flight > 1 and in_flight * size > 64 << 20:
                        continue
                    measure(kind, tensor, in_flight, 0.2 * seconds)
                    latencies, took = measure(kind, tensor, in_flight, seconds)
                    latencies.sort()
                    rate = len(latencies) / took
                    print(json.dumps({"transport": "tensorpipe", "kind": kind, "bytes": size, "in_flight": in_flight,
                                      "calls_per_s": rate, "gbps": rate * size / 1e9,
                                      "p50_us": latencies[len(latencies) // 2] * 1e6,
                                      "p99_us": latencies[int(0.99 * len(latencies))] * 1e6}), flush=True)
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="empty,echo")
    parser.add_argument("--bytes", default="1048576")
    parser.add_argument("--in-flight", default="1,8,64")
    parser.add_argument("--time-per-case", default="500", help="milliseconds")
    args = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(process, (port, args), 2)


if __name__ == "__main__":
    main()
