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
