# SPDX-License-Identifier: Apache-2.0
"""Paths of the file system."""

import os

from tandem._load import load_core

_core = load_core()


def local_path(path: str | os.PathLike[str]) -> str:
    """Returns the absolute form of a path. InvalidArgumentError, naming the scheme: `path` is a URL, such as "s3://bucket/run"."""
    text = os.fspath(path)
    _core.check_local_path(text)
    return os.path.abspath(text)
