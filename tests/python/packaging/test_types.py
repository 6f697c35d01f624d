# SPDX-License-Identifier: Apache-2.0
"""The types of the package: the stub of _core is that of this build, and type checkers know every public name."""

import json
import os
import pathlib
import re
import shutil
import subprocess
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


def test_a_users_file_has_known_types_and_its_mistakes_are_found(tmp_path):
    python = interpreter("basedpyright")
    if python is None:
        pytest.skip("not installed: basedpyright (scripts/python-env --extras)")
    shutil.copytree(FOLDER, tmp_path / "tandem", ignore=shutil.ignore_patterns("__pycache__", "lib", "*.so"))
    program = "import tandem\ntandem.optim.Adagrad(lr=0.1)\ntandem.init.Uniform(-1, 1)\ntandem.eviction.LRU()\ntandem.admission.Count()\n"
    (tmp_path / "right.py").write_text(program)
    (tmp_path / "wrong.py").write_text("import tandem\ntandem.optim.Adagrad(rate=0.1)\ntandem.optim.Adagard(lr=0.1)\n")
    done = subprocess.run(
        [python, "-m", "basedpyright", "--outputjson", "right.py", "wrong.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), sysconfig.get_path("platlib")])},
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )
    found = [d for d in json.loads(done.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    assert {(os.path.basename(d["file"]), d["range"]["start"]["line"]) for d in found} == {("wrong.py", 1), ("wrong.py", 2)}, done.stdout


def test_dir_has_what_the_package_has():
    assert {"optim", "init", "nn", "data", "torch", "rpc", "replay", "weights", "connect", "Client", "__version__"} <= set(dir(tandem))
    assert set(tandem.__all__) <= set(dir(tandem)) and not any(re.fullmatch("_[^_].*", name) for name in dir(tandem))


def test_the_repr_of_a_kind_makes_it_again():
    assert repr(tandem.optim.Adagrad(lr=0.1)) == "tandem.optim.Adagrad(lr=0.1)"
    kinds = [tandem.optim.Adam(lr=0.003, beta1=0.8), tandem.optim.SGD(), tandem.init.Uniform(-0.5, 0.25), tandem.eviction.TTL(ttl=60)]
    for kind in [*kinds, tandem.eviction.LRU(), tandem.admission.Count(threshold=3), tandem.init.Zeros()]:
        assert eval(repr(kind), {"tandem": tandem}) == kind
