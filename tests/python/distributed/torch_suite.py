# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own tests of process groups (torch.testing._internal.distributed.distributed_test).

Each test runs on ranks that are forked from this process, which has imported torch: a test takes about a second. Tests
that torch guards by the name of a backend ("gloo", "mpi") run for tandem too: the guards, and one text of gloo's errors,
are rewritten when the module is loaded. `scripts/torch_suite --help` describes the use.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import time
import types
import unittest

MODULE = "torch.testing._internal.distributed.distributed_test"
TESTED_TORCH = "2.15."
SKIPPED = 77  # the exit status that ctest takes for a skipped test

# What is rewritten, so that tests for gloo or mpi run with tandem.
GUARDS = [
    (r'BACKEND != "(gloo|mpi)"', r'BACKEND not in ("\1", "tandem")'),
    (r'BACKEND == "gloo"', 'BACKEND in ("gloo", "tandem")'),
    (r'require_backend_is_available\(\{"gloo"\}\)', 'require_backend_is_available({"gloo", "tandem"})'),
    # The texts of gloo's errors.
    (r"\(Timed out\|closed\|timeout\)", "(Timed out|timed out|closed|timeout)"),
    (r"(Rank (\{failed_rank\}|\{expected_first_failed_rank\}) failed to pass monitoredBarrier)", r"(\1|rank \2 did not come)"),
    (r'f"(Rank \{self.rank\} successfully reached)', r'f"did not come|\1'),
    (r"(Rank \{self.rank\} timed out in monitoredBarrier)", r"(\1|gave up after 0)"),
]


def load_tests_of_torch() -> tuple[types.ModuleType, set[str]]:
    """Returns the module with rewritten guards, and the names of the tests whose guards were rewritten."""
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "subgroup", "plugin", "gpu", "cuda"):
        DistTestCases.backend_feature[feature].add("tandem")
    spec = importlib.util.find_spec(MODULE)
    with open(spec.origin) as file:
        lines = file.read().split("\n")
    ported: set[str] = set()
    guarded = False
    for i, line in enumerate(lines):
        for pattern, replacement in GUARDS:
            lines[i], count = re.subn(pattern, replacement, lines[i])
            guarded = guarded or count > 0
        if match := re.match(r"\s+def (\w+)", line):
            if guarded:
                ported.add(match[1])
            guarded = False
    module = types.ModuleType(MODULE)
    module.__file__ = spec.origin
    sys.modules[MODULE] = module
    exec(compile("\n".join(lines), spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module, ported


def make_case(module: types.ModuleType) -> type[unittest.TestCase]:
    import torch

    class TorchSuite(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            module.INIT_METHOD = os.environ["INIT_METHOD"]  # a file in this test's folder
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return TorchSuite


def short(reason: str) -> str:
    """Returns the line of a traceback that has the error."""
    lines = [line.strip() for line in reason.strip().splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors[-1:] or lines[-1:] or [""])[0][:200]


class Result(unittest.TestResult):
    """One line a test: passed, skipped or failed, with the reason."""

    def __init__(self, ported: set[str]) -> None:
        super().__init__()
        self.outcomes: dict[str, dict[str, object]] = {}
        self._ported = ported
        self._begin = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._begin = time.monotonic()

    def _add(self, test: unittest.TestCase, outcome: str, reason: str) -> None:
        name = test._testMethodName
        self.outcomes[name] = {"outcome": outcome, "reason": reason, "ported": name in self._ported}
        print(f"{outcome:8}{time.monotonic() - self._begin:6.1f} s  {name}  {short(reason)}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        self._add(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure


def read_names(path: str) -> list[str]:
    with open(path) as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


def check_names(case: type[unittest.TestCase], names: list[str], result: Result) -> int:
    """Returns 0 if each of the named tests passes. One that does not is run a second time.

    Many of torch's tests measure time, which a busy machine spoils. Both outcomes are printed, and the last line counts the
    repetitions.
    """
    repeated = [name for name in names if result.outcomes[name]["outcome"] != "passed"]
    for name in repeated:
        print(f"\n{name} has {result.outcomes[name]['outcome']}:\n{result.outcomes[name]['reason']}\nonce more:", flush=True)
        case(name).run(result)
    bad = [name for name in repeated if result.outcomes[name]["outcome"] != "passed"]
    for name in bad:
        print(f"\n{name} has {result.outcomes[name]['outcome']} twice:\n{result.outcomes[name]['reason']}")
    print(f"torch's own tests with tandem: {len(names) - len(bad)} of {len(names)} passed, {len(repeated)} were repeated")
    return 1 if bad else 0


def run(arguments: argparse.Namespace) -> int:
    if arguments.names:
        import torch

        if not torch.__version__.startswith(TESTED_TORCH):
            print(f"left out: the names of {arguments.names} are those of torch {TESTED_TORCH}, this is {torch.__version__}")
            return SKIPPED
    os.environ["BACKEND"] = arguments.backend
    os.environ["WORLD_SIZE"] = str(arguments.world_size)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "100")
    if arguments.backend == "tandem":
        import tandem.torch  # noqa: F401
    from torch.testing._internal import common_distributed

    common_distributed.initialize_temp_directories()
    module, ported = load_tests_of_torch()
    case = make_case(module)
    names = [n for n in unittest.TestLoader().getTestCaseNames(case) if re.search(arguments.select, n)]
    if arguments.names:
        names = read_names(arguments.names)
    result = Result(ported)
    for name in names:
        case(name).run(result)
    outcomes = result.outcomes
    if arguments.names:
        return check_names(case, names, result)
    counts = {kind: sum(o["outcome"] == kind for o in outcomes.values()) for kind in ("passed", "skipped", "failed")}
    print(f"{arguments.backend}, world size {arguments.world_size}: {len(outcomes)} tests, " + ", ".join(f"{n} {k}" for k, n in counts.items()))
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"backend": arguments.backend, "world_size": arguments.world_size, "outcomes": outcomes}, file, indent=1)
    return 1 if counts["failed"] else 0


def compare(arguments: argparse.Namespace) -> int:
    """Prints the table of docs/python.md, and the tests that pass with the first backend but not with the second."""
    sides = []
    for path in arguments.files:
        with open(path) as file:
            sides.append(json.load(file))
    print("| backend | ranks | tests | passed | skipped | failed |\n|---|---|---|---|---|---|")
    for side in sides:
        kinds = [o["outcome"] for o in side["outcomes"].values()]
        row = [side["backend"], side["world_size"], len(kinds), *(kinds.count(k) for k in ("passed", "skipped", "failed"))]
        print("| " + " | ".join(map(str, row)) + " |")
    first, second = (side["outcomes"] for side in sides)
    worse = [name for name, o in first.items() if o["outcome"] == "passed" and second.get(name, {}).get("outcome") != "passed"]
    more = [name for name, o in second.items() if o["outcome"] == "passed" and first.get(name, {}).get("outcome") != "passed"]
    print(f"\npassed with {sides[0]['backend']}, not with {sides[1]['backend']}: {len(worse)}")
    for name in worse:
        o = second.get(name, {"outcome": "absent", "reason": ""})
        print(f"  {name}: {o['outcome']}: {short(o['reason'])}")
    print(f"passed with {sides[1]['backend']}, not with {sides[0]['backend']}: {', '.join(more) or 'none'}")
    return 1 if worse else 0


def ported_names(arguments: argparse.Namespace) -> int:
    """Prints the names of the tests that torch guards by the name of gloo or mpi, one a line."""
    module, ported = load_tests_of_torch()
    print("\n".join(n for n in unittest.TestLoader().getTestCaseNames(make_case(module)) if n in ported))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="torch_suite", description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="run the tests with one backend")
    one.add_argument("--backend", default="tandem")
    one.add_argument("--world-size", type=int, default=2)
    one.add_argument("--select", default="", help="regular expression of names")
    one.add_argument("--names", default="", help="file with the names of tests that have to pass, one a line, instead of --select")
    one.add_argument("--out", default="", help="file for the outcomes, JSON")
    one.set_defaults(function=run)
    two = commands.add_parser("compare", help="compare the outcomes of two runs")
    two.add_argument("files", nargs=2, metavar="FILE")
    two.set_defaults(function=compare)
    three = commands.add_parser("ported", help="print the names of the tests whose guards are rewritten")
    three.set_defaults(function=ported_names)
    arguments = parser.parse_args()
    return arguments.function(arguments)


if __name__ == "__main__":
    sys.exit(main())
