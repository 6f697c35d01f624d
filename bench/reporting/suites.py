# SPDX-License-Identifier: Apache-2.0
"""Measures: runs the comparison programs and `tandem bench`, and returns their cases."""
import json
import os
import subprocess
import sys
import tempfile

from reporting.summary import spread

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TIMEOUT_SECONDS = 3 * 3600


class Options:
    def __init__(self, build, launches, quick):
        self.build, self.launches, self.quick = build, launches, quick
        self.tandem = os.path.join(build, "cli", "tandem")


class Measured:
    """What a suite gives: its cases, the peers that are absent and why, peers' versions, and the commands that anyone can repeat."""

    def __init__(self):
        self.cases, self.missing, self.versions, self.commands = [], {}, {}, []
        self.launches = None  # if it is not the number that the options say

    def compare(self, options, program, flags, **keys):
        """Runs bench/PROGRAM; its cases get `keys` besides their own."""
        command = [f"bench/{program}", "--launches", str(options.launches)] + flags
        self.commands.append(" ".join(command))
        tandem = ["--tandem", options.tandem] if program == "compare_dlrm" else ["--build", options.build]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cases.json")
            run = [sys.executable, os.path.join(BENCH, program)] + command[1:] + tandem + ["--json", path]
            done = subprocess.run(run, stdout=sys.stderr, timeout=TIMEOUT_SECONDS)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(run)} ended with code {done.returncode}")
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        self.cases += [dict(case, **keys) for case in found["cases"]]
        self.missing.update(found["missing"])
        self.versions.update(found["versions"])

    def bench(self, options, flags, launches=None):
        """Runs `tandem bench FLAGS --json` in each launch; one list of objects a launch."""
        self.commands.append(" ".join(["tandem", "bench"] + flags))
        rounds = []
        for _ in range(launches or options.launches):
            with tempfile.TemporaryDirectory() as folder:  # what the processes log stays out of the tree
                done = subprocess.run([os.path.abspath(options.tandem), "bench"] + flags + ["--json"], cwd=folder, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT_SECONDS)
            objects = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode != 0 or not objects:
                raise RuntimeError(f"tandem bench {' '.join(flags)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
            rounds.append(objects)
        return rounds


def _cases(rounds, keys, values):
    """One case for each object and value: {**keys of the object, value's name, unit, spread over the launches}."""
    cases = []
    for same in zip(*rounds):  # every launch prints its objects in the same order
        for name, unit in values:
            if name in same[0]:
                cases.append(dict({key: same[0][key] for key in keys}, what=name, unit=unit, **spread([o[name] for o in same])))
    return cases


def training(options):
    measured = Measured()
    measured.compare(options, "compare_dlrm", ["--optimizers", "adagrad" if options.quick else "adagrad,sgd"])
    return measured


def step(options):
    measured = Measured()
    flags = ["train", "--optimizer", "adagrad", "--steps", "10" if options.quick else "100"]
    rounds = [objects[0] for objects in measured.bench(options, flags)]
    measured.cases = [dict(stage="step", unit="ms", **spread([r["ms_per_step"] for r in rounds]))]
    measured.cases += [dict(stage=stage, unit="ms", **spread([r["ms"][stage] for r in rounds])) for stage in rounds[0]["ms"]]
    return measured


def collectives(options):
    measured = Measured()
    time = ["--time-per-size", "10" if options.quick else "30", "--repeats", "3" if options.quick else "5"]
    sizes = "8,64K,1M" if options.quick else "8,1K,16K,64K,256K,1M,4M,16M,64M"
    measured.compare(options, "compare_collectives", ["--ranks", "2", "--sizes", sizes] + time, comparison="2 ranks")
    if not options.quick:
        measured.compare(options, "compare_collectives", ["--ranks", "4", "--sizes", "8,1K,64K,1M,16M,64M"] + time,
                         comparison="4 ranks")
        measured.compare(options, "compare_collectives",
                         ["--backend", "tcp", "--peers", "gloo", "--sizes", "64K,1M,16M,64M"] + time, comparison="tcp")
        measured.compare(options, "compare_collectives",
                         ["--neighbour", "--out-of-place", "--peers", "openmpi,mpich", "--sizes", "8,1K,64K,1M"] + time,
                         comparison="busy machine")
    return measured


def ps(options):
    measured = Measured()
    ids = "4096" if options.quick else "4096,16384"
    time = ["--time-per-case", "40" if options.quick else "120"]
    measured.compare(options, "compare_ps", ["--ids", ids, "--in-flight", "1,4"] + time)
    flags = ["ps", "--transport", "in-process", "--op", "pull,push", "--ids", ids, "--dim", "64", "--distribution", "uniform"]
    for case in _cases(measured.bench(options, flags + time), ("op", "ids"),
                       (("keys_per_s", "rows/s"), ("plain_ratio", "of a plain gather"))):
        measured.cases.append(dict(case, system="tandem in process"))
    return measured


def latency(options):
    measured = Measured()
    flags = ["ps", "--transport", "tcp,unix,shm", "--op", "pull", "--ids", "1", "--dim", "64", "--servers", "1",
             "--in-flight", "1", "--distribution", "uniform", "--time-per-case", "50" if options.quick else "200"]
    measured.cases = _cases(measured.bench(options, flags), ("transport", "op", "ids"), (("median_us", "us"), ("p99_us", "us")))
    return measured


def fairness(options):
    measured = Measured()
    flags = ["ps", "--op", "fairness", "--dim", "64"] + (["--ids", "4096", "--transport", "shm"] if options.quick else [])
    measured.cases = _cases(measured.bench(options, flags), ("transport", "ids", "distribution"),
                            (("idle_p99_us", "us"), ("loaded_p99_us", "us"), ("p99_ratio", "times")))
    return measured


def rows(options):
    measured = Measured()
    flags = ["rows", "--rows", "1000000" if options.quick else "100000000", "--dim", "16", "--row-type", "f16", "--optimizer",
             "rowwise_adagrad"] + (["--seconds", "0.5"] if options.quick else [])
    measured.cases = _cases(measured.bench(options, flags, launches=1), ("rows", "dim", "row_type", "optimizer"), (
        ("table_bytes", "bytes"), ("resident_bytes", "bytes"), ("bytes_per_row", "bytes"), ("load_rows_per_s", "rows/s"),
        ("lookup_rows_per_s", "rows/s"), ("update_rows_per_s", "rows/s"), ("load_longest_pause_us", "us"),
        ("longest_pause_us", "us")))
    return measured


def rpc(options):
    measured = Measured()
    measured.compare(options, "compare_rpc", ["--time-per-case", "20", "--in-flight", "1,64"] if options.quick else
                     ["--time-per-case", "40", "--in-flight", "1,512"])
    return measured


def replay(options):
    measured = Measured()
    quick = ["--time-per-case", "50"] if options.quick else []
    measured.compare(options, "compare_replay", ["--peers", "grpc" if options.quick else "reverb,grpc"] + quick)
    # TorchRL has no server, and its launches are short: alternated with Tandem in its own process alone.
    measured.compare(options, "compare_replay", ["--transports", "in-process", "--peers", "torchrl"] + quick)
    cases = {}
    for case in measured.cases:
        first = cases.setdefault((case["system"], case["op"], case["bytes"]), case)
        first["ratios"].update(case["ratios"])
    measured.cases = list(cases.values())
    return measured


def python(options):
    measured = Measured()
    measured.compare(options, "compare_python", ["--only", "pull,rpc", "--seconds", "0.1"] if options.quick else [])
    return measured


def quality(options):
    measured = Measured()
    flags = ["--rows", "200000", "--epochs", "1", "--seeds", "1", "--data", "small"] if options.quick else ["--seeds", "1-3"]
    measured.commands.append(" ".join(["bench/quality"] + flags))
    measured.launches = 1 if options.quick else 3  # one for each seed
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "figures.json")
        run = [sys.executable, os.path.join(BENCH, "quality"), "--tandem", os.path.abspath(options.tandem), "--json", path]
        subprocess.run(run + flags, stdout=sys.stderr, check=True, timeout=TIMEOUT_SECONDS, cwd=folder)
        with open(path, encoding="utf-8") as file:
            figures = json.load(file)
    for data, modes in figures.items():
        for mode, runs in modes.items():
            case = {"data": data, "mode": mode, "row_staleness": max(r["row_staleness"] for r in runs),
                    "replicated_rows": max(r["replicated_rows"] for r in runs),
                    "warned_features": max(r["warned_features"] for r in runs)}
            found = {"auc": [r["auc"] for r in runs], "samples_per_s": [r["samples_per_s"] for r in runs],
                     "auc_lost": [abs(s["auc"] - r["auc"]) for s, r in zip(modes["sync"], runs)],
                     "speed_ratio": [r["samples_per_s"] / s["samples_per_s"] for s, r in zip(modes["sync"], runs)]}
            measured.cases.append(dict(case, **{what: spread(values) for what, values in found.items()}))
    return measured


SUITES = {suite.__name__: suite for suite in (training, step, collectives, ps, latency, fairness, rows, rpc, replay,
                                          python, quality)}
