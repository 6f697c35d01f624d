# SPDX-License-Identifier: Apache-2.0
"""The types of the package: the stub of _core is that of this build, and type checkers know every public name."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest
from test_imports import interpreter

import tandem
from tandem import _core
from tandem._stubs import GROUPS, stub_of

FOLDER = pathlib.Path(tandem.__file__).parent


def names_of_stub(text: str, indent: str) -> set[str]:
    return set(re.findall(rf"^{indent}(?:def|class) (\w+)", text, re.MULTILINE))


def test_the_stub_has_every_name_of_the_module():
    if not (FOLDER / "_core.pyi").exists():
        pytest.skip("this build has no stub (python/CMakeLists.txt)")
    text = (FOLDER / "_core.pyi").read_text()
    here = {name for name in dir(_core) if not name.startswith("__")}
    assert here and here == {n for n in names_of_stub(text, "")}
    for name in here:
        value = getattr(_core, name)
        if isinstance(value, type):
            block = re.search(rf"^class {name}\b.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)[0]
            members = {n for n in vars(value) if not n.startswith("__")}
            assert members <= names_of_stub(block, "    "), name


def test_every_public_name_has_a_complete_type(tmp_path):
    python = interpreter("basedpyright")
    if python is None:
        pytest.skip("not installed: basedpyright (scripts/python-env --extras)")
    pytest.importorskip("torch")
    if not (FOLDER / "_core.pyi").exists():
        pytest.skip("this build has no stub (python/CMakeLists.txt)")
    # A copy without links: the checker would take the sources for another package.
    shutil.copytree(FOLDER, tmp_path / "tandem", ignore=shutil.ignore_patterns("__pycache__", "lib", "*.so"))
    done = subprocess.run(
        [python, "-m", "basedpyright", "--verifytypes", "tandem", "--ignoreexternal", "--outputjson"],
        # The checker finds packages where its interpreter does.
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), sysconfig.get_path("platlib")])},
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )
    report = json.loads(done.stdout)["typeCompleteness"]
    assert report["exportedSymbolCounts"]["withKnownType"] > 100, done.stdout[:1000]
    unknown = [f"{symbol['name']}: {[d['message'] for d in symbol['diagnostics']]}" for symbol in report["symbols"]
               if symbol["isExported"] and not symbol["isTypeKnown"]]
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("module", sorted(GROUPS))
def test_stubs_of_kinds_are_those_of_the_cpp_descriptions(module):
    written = (FOLDER / f"{module}.pyi").read_text()
    assert written == stub_of(GROUPS[module]), "write them again: python -m tandem._stubs python/tandem"


RIGHT = """\
import numpy as np
import torch

import tandem

with tandem.local(servers=2) as client:
    user = tandem.nn.Table("user", dim=8, optimizer=tandem.optim.RowwiseAdagrad(lr=0.05), init=tandem.init.Uniform(-1, 1))
    item = tandem.nn.Table("item", 8, optimizer=tandem.optim.Adam(), eviction=tandem.eviction.LRU(), admission=tandem.admission.Count())
    emb = tandem.nn.EmbeddingCollection([user, item], client)
    bag = tandem.nn.EmbeddingBag(8, mode="sum", name="bag", client=client, optimizer=tandem.optim.Adagrad(lr=0.1))
    optimizer = torch.optim.Adam([*emb.parameters(), *bag.parameters()])
    emb.follow(optimizer)
    bag.follow(optimizer, base_lr=1e-3)
    out: dict[str, torch.Tensor] = emb({"user": torch.tensor([1]), "item": torch.tensor([2])})
    for parameter in emb.parameters():
        if isinstance(parameter, tandem.nn.TableParameter) and parameter.grad is not None:
            print(parameter.grad.shape)
    rows, version = client.pull("user", np.array([1]))
    client.push("user", np.array([1]), np.ones_like(rows), version=version)
    skipped: int = emb.skipped_steps
"""
WRONG = """\
import tandem

tandem.optim.Adagrad(rate=0.1)
tandem.optim.Adagard(lr=0.1)
tandem.nn.Table("user")
with tandem.local() as client:
    client.pull(3)
    bag = tandem.nn.EmbeddingBag(8, name="bag", client=client, optimizer=tandem.optim.SGD(lr="fast"))
    bag.follow(3)
"""
MISTAKES = [3, 4, 5, 7, 8, 9]  # lines of WRONG


def mistakes_of_basedpyright(python, folder, environment):
    command = [python, "-m", "basedpyright", "--level", "error", "--outputjson", "right.py", "wrong.py"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=200)
    found = [d for d in json.loads(done.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    return [(os.path.basename(d["file"]), d["range"]["start"]["line"] + 1) for d in found], done.stdout


def mistakes_of_mypy(python, folder, environment):
    # As in a user's checkout: the package is not among the checked files, so its own errors do not show.
    command = [python, "-m", "mypy", "--strict", "--follow-imports", "silent", "--python-executable", sys.executable, "right.py", "wrong.py"]
    done = subprocess.run(command, env={**environment, "MYPYPATH": str(folder)}, cwd=folder, capture_output=True, text=True, timeout=200)
    found = re.findall(r"^(\S+):(\d+): error", done.stdout, re.MULTILINE)
    return [(file, int(line)) for file, line in found], done.stdout + done.stderr


@pytest.mark.parametrize("checker", [mistakes_of_basedpyright, mistakes_of_mypy])
def test_a_users_file_has_known_types_and_its_mistakes_are_found(tmp_path, checker):
    name = checker.__name__.removeprefix("mistakes_of_")
    python = interpreter(name)
    if python is None:
        pytest.skip(f"not installed: {name} (scripts/python-env --extras)")
    pytest.importorskip("torch")
    shutil.copytree(FOLDER, tmp_path / "tandem", ignore=shutil.ignore_patterns("__pycache__", "lib", "*.so"))
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), sysconfig.get_path("platlib")])}
    found, output = checker(python, tmp_path, environment)
    assert sorted(set(found)) == [("wrong.py", line) for line in MISTAKES], output


def test_dir_has_what_the_package_has():
    assert {"optim", "init", "nn", "data", "torch", "rpc", "replay", "weights", "connect", "Client", "__version__"} <= set(dir(tandem))
    assert set(tandem.__all__) <= set(dir(tandem)) and not any(re.fullmatch("_[^_].*", name) for name in dir(tandem))


def test_the_repr_of_a_kind_makes_it_again():
    assert repr(tandem.optim.Adagrad(lr=0.1)) == "tandem.optim.Adagrad(lr=0.1)"
    kinds = [tandem.optim.Adam(lr=0.003, beta1=0.8), tandem.optim.SGD(), tandem.init.Uniform(-0.5, 0.25), tandem.eviction.TTL(ttl=60)]
    for kind in [*kinds, tandem.eviction.LRU(), tandem.admission.Count(threshold=3), tandem.init.Zeros()]:
        assert eval(repr(kind), {"tandem": tandem}) == kind
