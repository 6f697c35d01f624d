# SPDX-License-Identifier: Apache-2.0
"""Installs the package of the build tree as a wheel into a new virtual environment, and uses it there.

The wheel is the one of `scripts/wheel --no-repair`: what pip makes in a clone, without compiling everything again. The environment
sees NumPy and nanobind-backend of this interpreter, so that no network is needed.
"""

import email.parser
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from processes import DEADLINE_S, Process

ROOT = pathlib.Path(__file__).resolve().parents[3]


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=DEADLINE_S, **options)
    assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def outside_of_the_build_tree() -> dict[str, str]:
    """Returns an environment in which nothing points to the build tree."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TANDEM_BINARY", "TANDEM_PLUGIN_PATH", "LD_LIBRARY_PATH")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    build = os.environ.get("TANDEM_BUILD_DIR")
    if not build:
        pytest.skip("TANDEM_BUILD_DIR does not name the build tree")
    pytest.importorskip("scikit_build_core")
    files, out = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("wheel")
    run("cmake", "--install", build, "--component", "python", "--strip", "--prefix", files)
    return pathlib.Path(run(sys.executable, "-B", ROOT / "scripts" / "wheel.py", files, out, cwd=ROOT).strip())


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> pathlib.Path:
    """A virtual environment with the wheel."""
    folder = tmp_path_factory.mktemp("venv") / "env"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", wheel,
        env=outside_of_the_build_tree())
    site = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("platlib") + "\n")
    return folder


def version() -> str:
    return re.search(r"project\(Tandem VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def test_the_wheel_has_all_sources_types_the_program_and_no_leftovers(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [n for n in names if n.endswith(".dist-info/METADATA")]
        fields = email.parser.Parser().parsestr(archive.read(metadata).decode())
    sources = {f"tandem/{p.relative_to(ROOT / 'python' / 'tandem').as_posix()}" for p in (ROOT / "python" / "tandem").rglob("*.py")}
    assert sources <= set(names)
    assert {"tandem/py.typed", "tandem/_core.pyi", "tandem/_core.abi3.so"} <= set(names)
    assert {"tandem/bin/tandem", "tandem/bin/tandem-rl", "tandem/bin/tandem-inspect", "tandem/bin/tandem-bench"} <= set(names)
    assert f"tandem_runtime-{version()}.data/scripts/tandem" in names
    assert not [n for n in names if "__pycache__" in n or n.endswith((".a", ".h", ".cmake"))]
    assert wheel.name.startswith(f"tandem_runtime-{version()}-cp310-abi3-linux_")
    assert fields["Version"] == version()
    assert {r.split(";")[0].split("<")[0].split(">")[0] for r in fields.get_all("Requires-Dist")} == {"numpy", "nanobind-backend", "msgpack", "torch"}


def test_the_snippet_of_the_documentation_runs(environment, tmp_path):
    snippet = re.search(r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.MULTILINE | re.DOTALL)[1]
    program = f"import tandem\nassert {str(environment)!r} in tandem.__file__, tandem.__file__\n{snippet}"
    assert run(environment / "bin" / "python", "-c", program, env=outside_of_the_build_tree(), cwd=tmp_path).strip() == "3"


def test_the_version_is_that_of_the_program_and_of_the_metadata(environment, tmp_path):
    text = "import tandem, importlib.metadata as m; print(tandem.__version__, m.version('tandem-runtime'))"
    options = {"env": outside_of_the_build_tree(), "cwd": tmp_path}
    assert run(environment / "bin" / "python", "-c", text, **options).split() == [version(), version()]
    assert version() in run(environment / "bin" / "tandem", "--version", **options)


def test_torch_finds_the_backend_by_the_entry_point(environment, tmp_path):
    text = "import importlib.metadata as m; [e] = m.entry_points(group='torch.distributed.backends', name='tandem'); print(e.value)"
    assert run(environment / "bin" / "python", "-c", text, env=outside_of_the_build_tree(), cwd=tmp_path).strip() == "tandem.torch:register"


def test_the_installed_command_runs_a_job_of_workers_and_servers(environment, tmp_path):
    (tmp_path / "train.py").write_text(
        "import numpy as np, tandem\n"
        "with tandem.connect() as client:\n"
        "    client.create_table('t', dim=2, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Zeros(), mode='sync')\n"
        "    for step in range(3):\n"
        "        rows, version = client.pull('t', np.arange(4))\n"
        "        client.push('t', np.arange(4), np.ones_like(rows) / client.world_size, version=version)\n"
        "    print('rank', client.rank, 'has', float(client.pull('t', [0])[0][0, 0]))\n"
    )
    variables = outside_of_the_build_tree()
    variables["PATH"] = f"{environment / 'bin'}:{variables['PATH']}"
    inherited = {k: os.environ.pop(k) for k in list(os.environ) if k not in variables}
    try:
        with Process([str(environment / "bin" / "tandem"), "run", "--ps", "2", "--workers", "2", "--log-dir", str(tmp_path / "logs"), "--",
                      str(environment / "bin" / "python"), "-B", str(tmp_path / "train.py")], **variables) as job:
            assert job.wait() == 0, job.output
    finally:
        os.environ.update(inherited)
    assert "rank 0 has -3.0" in job.output and "rank 1 has -3.0" in job.output, job.output


def test_the_command_says_what_to_do_when_the_package_is_gone(environment, tmp_path):
    command = environment / "bin" / "tandem"
    # -I -S: without the folder that has the package.
    done = subprocess.run([environment / "bin" / "python", "-I", "-S", command], capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path)
    assert done.returncode == 1 and "has no package tandem; install it" in done.stderr, done


def test_the_module_needs_no_library_that_must_not_be_loaded_twice(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        module = archive.extract("tandem/_core.abi3.so", tmp_path)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", module))
    assert len(needed) > 5
    # An allocator, and threads of OpenMP or BLAS, that NumPy's and torch's wheels bring as well; libraries that are plugins.
    assert not [n for n in needed if re.match(r"lib(tcmalloc|jemalloc|gomp|openblas|blas|mpi|python|torch|nccl|cuda)", n)], needed
