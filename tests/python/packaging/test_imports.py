# SPDX-License-Identifier: Apache-2.0
"""Imports tandem beside packages that bring protobuf, gRPC, OpenSSL or OpenMP of their own, in different orders.

Each order is a process that imports the packages, uses all of them, and ends with a pull under way. Calls go over gRPC, where
foreign symbols would do harm. PyTorch is that of this interpreter; the other packages may be in the environment that
`scripts/python-env --extras` makes. Orders with a package that is in neither are skipped. TANDEM_ALL_IMPORT_ORDERS=1 runs all
orders of each pair instead of half of them (3 minutes).
"""

import functools
import itertools
import os
import pathlib
import subprocess
import sys
import sysconfig
from typing import Iterator

import pytest

import tandem
from processes import DEADLINE_S, Process, tandem_binary

RUN_S = 200.0  # less than the limit of a test (conftest.py); TensorFlow alone takes 4 s to import, much more on a busy machine
PACKAGES = ["torch", "tensorflow", "grpc", "pyarrow", "numpy"]
FOLDER = pathlib.Path(tandem.__file__).absolute().parents[1]  # in the build tree, whose files are links

PROGRAM = r"""
import concurrent.futures, importlib, sys
for folder in {appended!r}:
    sys.path.append(folder)

import numpy


def use_tandem(rank=0):
    import tandem
    client = tandem.connect(servers=[{address!r}], rank=rank, world_size=2, timeout=30)
    client.create_table("rows", dim=4, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Zeros())
    ids = numpy.arange(3)
    rows, version = client.pull("rows", ids)
    assert rows.shape == (3, 4)
    client.push("rows", ids, numpy.ones((3, 4), numpy.float32), version=version)
    with tandem.local() as inside:
        inside.create_table("rows", dim=4, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Zeros())
        assert inside.pull("rows", ids)[0].sum() == 0
    return client


def use_torch():
    import torch
    assert float((torch.ones(8, 8) @ torch.ones(8, 8)).sum()) == 512


def use_tensorflow():
    import tensorflow
    assert int(tensorflow.reduce_sum(tensorflow.constant([1, 2]))) == 3
    # Parses a message with TensorFlow's own protobuf.
    assert tensorflow.train.Example.FromString(tensorflow.train.Example().SerializeToString()) is not None


def use_grpc():
    import grpc
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel("127.0.0.1:%d" % port) as channel:
        grpc.channel_ready_future(channel).result(timeout=30)
    server.stop(None).wait()


def use_pyarrow():
    import pyarrow
    assert pyarrow.array([1, 2]).to_numpy().sum() == 3


def use_numpy():
    assert float((numpy.ones((8, 8)) @ numpy.ones((8, 8))).sum()) == 512


def use(packages):
    for package in packages:
        result = globals()["use_" + package]()
        if package == "tandem":
            client = result
    return client
"""

IN_ORDER = PROGRAM + r"""
order = {order!r}
for package in order:
    importlib.import_module(package)
client = use(order)
# The process ends with a call under way.
future = client.pull_async("rows", numpy.arange(100_000))
print("used", *order)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a parameter server."""
    with Process([tandem_binary(), "store"]) as store:
        place = store.wait_for_output(r"(127\.0\.0\.1:\d+)")
        with Process([tandem_binary(), "ps", "--index", "0", "--num-servers", "1"], TANDEM_STORE=place) as server:
            yield server.wait_for_output(r"serving at (\S+),")


@functools.cache
def interpreter(package: str) -> str | None:
    """Returns an interpreter that has the package: this one, or that of `scripts/python-env --extras`."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    extras = os.environ.get("TANDEM_PYTHON_ENV", f"{cache}/tandem/python-env") + "-extras/bin/python"
    for python in (sys.executable, extras):
        if os.path.exists(python) and subprocess.run([python, "-c", f"import importlib.util as u; assert u.find_spec({package!r})"],
                                                     capture_output=True, timeout=DEADLINE_S).returncode == 0:
            return python
    return None


def run(program: str, needed: list[str], address: str, **values: object) -> str:
    """Runs the program in an interpreter that has the packages it needs; returns its output."""
    pythons = {package: interpreter(package) for package in needed if package != "tandem"}
    missing = [package for package, python in pythons.items() if python is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/python-env --torch, scripts/python-env --extras)")
    # A package of this interpreter is taken along into the other one, behind that one's own packages.
    others = [python for python in pythons.values() if python != sys.executable]
    python = others[0] if others else sys.executable
    appended = [sysconfig.get_path("platlib")] if others else []
    text = program.format(appended=appended, address=address, **values)
    environment = {**os.environ, "PYTHONPATH": str(FOLDER), "TANDEM_TRANSPORT": "grpc", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-B", "-X", "faulthandler", "-c", text], env=environment, capture_output=True, text=True,
                          timeout=RUN_S)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def orders() -> list[tuple[str, ...]]:
    """Returns orders in which each two packages come before, around and after tandem."""
    result: list[tuple[str, ...]] = []
    for pair in itertools.combinations(PACKAGES, 2):
        for first, second in (pair, pair[::-1]):
            result += [("tandem", first, second), (first, "tandem", second), (first, second, "tandem")]
    if os.environ.get("TANDEM_ALL_IMPORT_ORDERS"):
        return result
    # tandem itself imports NumPy, so that pairs with NumPy add nothing. Of the others, each position of tandem is tested with one
    # order of the pair, and each order of the pair at least once.
    half = [order for order in result if "numpy" not in order]
    return [order for i, order in enumerate(half) if i % 6 in (0, 4, 2)] + [("numpy", "tandem"), ("tandem", "numpy")]


@pytest.mark.parametrize("order", orders(), ids="-".join)
def test_packages_work_whatever_is_imported_first(order, address):
    assert "used" in run(IN_ORDER, list(order), address, order=list(order))


FORKS = PROGRAM + r"""
import os

packages = {packages!r}
for package in packages:
    importlib.import_module(package)
if {imported!r}:
    import tandem
child = os.fork()
if child == 0:
    # Other packages do not promise to work in a forked child.
    client = use_tandem(rank=1)  # a rank pushes from one process at a time
    client.close()
    os._exit(0)
client = use([*packages, "tandem"])
_, status = os.waitpid(child, 0)
assert status == 0, status
print("used")
"""


@pytest.mark.parametrize("imported", [False, True], ids=["before the import", "after the import"])
@pytest.mark.parametrize("packages", [["numpy"], ["torch"], ["torch", "tensorflow", "grpc", "pyarrow"]], ids="-".join)
def test_a_forked_child_and_its_parent_use_tandem(packages, imported, address):
    assert "used" in run(FORKS, packages, address, packages=packages, imported=imported)


SPAWNS = PROGRAM + r"""
import multiprocessing, os, pathlib, tempfile

for package in {packages!r}:
    importlib.import_module(package)
client = use(["tandem"])
text = 'import numpy, tandem\ndef pull(address):\n    with tandem.connect(servers=[address], read_only=True) as client:\n' \
       '        return client.pull("rows", numpy.arange(3))[0].shape\n'
with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / "pulls.py").write_text(text)
    sys.path.insert(0, folder)
    import pulls
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        assert pool.apply(pulls.pull, ({address!r},)) == (3, 4)
print("used")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_multiprocessing_starts_use_tandem(method, address):
    assert "used" in run(SPAWNS, ["numpy"], address, packages=["numpy"], method=method)
