# SPDX-License-Identifier: Apache-2.0
"""Finds the PyTorch that Tandem is compared with: one place for all comparison programs."""
import glob
import os
import subprocess

DEBIAN_PYTHON = "/usr/bin/python3"


class TorchPeer:
    """An interpreter with torch.distributed and the environment in which its programs run.

    python: the interpreter, the first of $TANDEM_TORCH_PYTHON, the environment of scripts/python-env and Debian's Python that
      imports torch.distributed.rpc; None if none does.
    missing: why there is none, or None.
    version: that of the package torch, such as "2.15.0"; "" if it is missing.
    env: one thread a process, and OpenBLAS for Debian's PyTorch, which comes with the reference BLAS.
    """

    def __init__(self):
        named = os.environ.get("TANDEM_TORCH_PYTHON")
        candidates = [named] if named else [os.path.join(_python_env(), "bin", "python"), DEBIAN_PYTHON]
        self.python, self.version, self.missing = None, "", None
        self.env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1",
                        PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore")
        for python in candidates:
            version = _torch_version(python)
            if version is not None:
                self.python, self.version = python, version
                break
        else:
            self.missing = f"no torch with torch.distributed.rpc in {' or '.join(candidates)} (scripts/python-env --torch installs it)"
        if self.python == DEBIAN_PYTHON:
            openblas = glob.glob("/usr/lib/*/openblas-pthread")
            if openblas:
                self.env["LD_LIBRARY_PATH"] = openblas[0]
            else:
                print("torch runs with reference BLAS: libopenblas0-pthread is not installed")

    def command(self, program, *arguments):
        """Returns the command that runs a program of bench/peers."""
        peers = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "peers")
        return [self.python or DEBIAN_PYTHON, os.path.join(peers, program), *arguments]


def versions(measured):
    """Returns {"torch": its version} if torch is among the measured peers' names, for summary.write_comparison()."""
    return {"torch": TorchPeer().version} if "torch" in measured else {}


def _python_env():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("TANDEM_PYTHON_ENV") or os.path.join(cache, "tandem", "python-env")


def _torch_version(python):
    """Returns the version of the torch that an interpreter imports, or None."""
    try:
        done = subprocess.run([python, "-c", "import torch, torch.distributed.rpc; print(torch.__version__.split('+')[0])"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
