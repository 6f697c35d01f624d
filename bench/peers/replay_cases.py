# SPDX-License-Identifier: Apache-2.0
"""What the Python programs that time a replay buffer share: the cases of `tandem bench replay`, their measurement, the output."""
import argparse
import json
import time


def items_of_insert(size):
    return 16 if size > 8192 else 64


def default_items(size):
    return min(1_000_000, (128 << 20) // size)


def parser(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="insert,sample,priorities")
    parser.add_argument("--bytes", default="28224,100")
    parser.add_argument("--items", type=int, default=0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--time-per-case", type=float, default=500, help="milliseconds")
    return parser


def measure(case, seconds):
    """Calls case.call() for `seconds`, after a fifth of that to warm up: (items a second, median us, p99 us of a call)."""
    end = time.perf_counter() + seconds / 5
    while time.perf_counter() < end:
        case.call()
    times = []
    begin = now = time.perf_counter()
    while now < begin + seconds:
        case.call()
        after = time.perf_counter()
        times.append((after - now) * 1e6)
        now = after
    rate = len(times) * case.per_call / (now - begin)
    times.sort()
    return rate, times[len(times) // 2], times[min(len(times) - 1, int(.99 * len(times)))]


def run(args, make_case, transport):
    """Measures all cases of `args`, each on what make_case(op, size, items, batch) returns, and prints a line of JSON for each."""
    for size in map(int, args.bytes.split(",")):
        for op in args.op.split(","):
            items = args.items or default_items(size)
            case = make_case(op, size, items, args.batch)
            try:
                rate, median, p99 = measure(case, args.time_per_case / 1e3)
            finally:
                case.close()
            print(json.dumps({"transport": transport, "op": op, "bytes": size, "items": items, "per_call": case.per_call,
                              "items_per_s": rate, "gbps": rate * size / 1e9, "median_us": median, "p99_us": p99}), flush=True)
