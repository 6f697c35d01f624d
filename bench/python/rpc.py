# SPDX-License-Identifier: Apache-2.0
"""Calls over tandem.rpc between two processes of this machine, timed as bench/peers/torch_rpc.py times torch.distributed.rpc.

  rpc.py --kind empty,echo --bytes 1048576 --in-flight 1 --time-per-case 500

Prints one JSON object per line. The argument and the result of `echo` are tensors of PyTorch.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time

import torch

from tandem import rpc


@rpc.function
def empty():
    return None


@rpc.function
def echo(tensor):
    return tensor


def measure(kind, tensor, in_flight, seconds):
    """Returns the latencies of all calls and their total duration."""
    function, args = (empty, ()) if kind == "empty" else (echo, (tensor,))
    latencies, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds:
        before = time.perf_counter()
        if in_flight == 1:
            rpc.call("server", function, *args)
            latencies.append(time.perf_counter() - before)
        else:
            for future in [rpc.call_async("server", function, *args) for _ in range(in_flight)]:
                future.result()
                latencies.append(time.perf_counter() - before)
    return latencies, time.perf_counter() - begin


def serve(peers, end):
    torch.set_num_threads(1)
    rpc.start("server", peers=peers)
    end.wait()
    rpc.shutdown(graceful=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="empty,echo")
    parser.add_argument("--bytes", default="1048576")
    parser.add_argument("--in-flight", default="1,8,64")
    parser.add_argument("--time-per-case", default="500", help="milliseconds")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        peers = {name: f"unix:{folder}/{name}" for name in ("client", "server")}
        context = multiprocessing.get_context("spawn")
        end = context.Event()
        server = context.Process(target=serve, args=(peers, end))
        server.start()
        rpc.start("client", peers=peers)
        rpc.call("server", empty, timeout=60)
        transport = rpc._agent._STATE.agent.transport_to("server")
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
                    result = {"transport": transport, "kind": kind, "bytes": size, "in_flight": in_flight, "calls_per_s": rate,
                              "gbps": rate * size / 1e9, "p50_us": latencies[len(latencies) // 2] * 1e6,
                              "p99_us": latencies[int(0.99 * len(latencies))] * 1e6}  # fmt: skip
                    print(json.dumps(result), flush=True)
        end.set()
        rpc.shutdown(graceful=False)
        server.join()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
