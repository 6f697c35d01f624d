# SPDX-License-Identifier: Apache-2.0
"""Reads the files of torch.distributed.checkpoint without running code that they name.

torch.distributed.checkpoint unpickles two things: the metadata, and values that are not tensors (settings of optimizers, extra state
of modules). Here the metadata may name only the classes that describe tensors, and the values only what torch.load(weights_only=True)
accepts. The metadata may name only files of the checkpoint that have been checked.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from tandem._load import load_core
from tandem.errors import DataLossError, FailedPreconditionError

_core = load_core()

_METADATA = ".metadata"
_REMEDY = "if you trust who wrote it, call load(..., weights_only=False)"

# What torch's own metadata consists of, by module.
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},  # Python 3.13
}  # fmt: skip


class _MetadataUnpickler(pickle._Unpickler):
    """The unpickler written in Python, because that in C allocates and fills as much memory as a damaged file says."""

    dispatch = dict(pickle._Unpickler.dispatch)
    del dispatch[pickle.BYTEARRAY8[0]]  # allocates before it reads, and no metadata has one

    def load_build(self) -> None:
        kind = type(self.stack[-2])
        # Not what find_class() returns: its attributes are those of the program.
        if kind.__name__ not in _ALLOWED.get(kind.__module__, ()):
            raise FailedPreconditionError(f"it changes a {kind.__name__}, which a description of tensors does not need")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise FailedPreconditionError(f"it names {module}.{name}, which a description of tensors does not need")


class DenseReader(dcp.FileSystemReader):
    """Reads the tensors of a checkpoint. Raises FailedPreconditionError if its metadata names other classes than torch's own."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._directory = path

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        rank = kwargs.get("rank")
        path = os.path.join(self._directory, _METADATA if rank is None else f"__{rank}{_METADATA}")
        with open(path, "rb") as file:
            content = io.BytesIO(file.read())  # which a size in the file cannot make larger
        try:
            metadata = _MetadataUnpickler(content).load()
        except FailedPreconditionError as error:
            raise FailedPreconditionError(f"{path} is not loaded: {error}; {_REMEDY}") from None
        except Exception as error:  # whatever the constructors of torch's classes raise
            raise DataLossError(f"{path} is damaged: {type(error).__name__}: {error}") from None
        if not isinstance(metadata, Metadata):
            raise FailedPreconditionError(f"{path} is not loaded: it has a {type(metadata).__name__}, not torch's metadata")
        self._check_places(path, metadata)
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def _check_places(self, path: str, metadata: Metadata) -> None:
        """Raises DataLossError if a value lies in no file of the checkpoint, or outside of its file."""
        sizes = {file["name"]: int(file.get("bytes", 0)) for file in json.loads(_core.read_manifest(self._directory)).get("files", ())}
        places = getattr(metadata, "storage_data", None)
        if not isinstance(places, dict) or not isinstance(getattr(metadata, "state_dict_metadata", None), dict):
            raise DataLossError(f"{path} is damaged: it does not say where the values are")
        for place in places.values():
            name, offset, length = (getattr(place, field, None) for field in ("relative_path", "offset", "length"))
            if not isinstance(name, str) or not name.startswith("__") or name not in sizes:
                raise DataLossError(f"{path} is damaged: a value would lie in {name!r}, which is no file of values of the checkpoint")
            if type(offset) is not int or type(length) is not int or not 0 <= offset <= offset + length <= sizes[name]:
                raise DataLossError(f"{path} is damaged: a value would be {length} bytes at {offset} of {name}, which has {sizes[name]}")


class DensePlanner(dcp.DefaultLoadPlanner):
    """Loads values that are not tensors as torch.load(weights_only=True) does."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            content = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            # The rest of the text advises on torch.load().
            named = re.search(r"GLOBAL (\S+)", str(error))
            reason = f"it names {named[1]}" if named else type(error).__name__
            raise FailedPreconditionError(f"'{name}' of the checkpoint is neither a tensor nor a plain value: {reason}; {_REMEDY}") from None
        # The base class unpickles without limits, so it gets a copy of what was read within them.
        checked = io.BytesIO()
        torch.save(content, checked)
        checked.seek(0)
        super().load_bytes(read_item, checked)


def warn_of_code(path: str, stacklevel: int) -> None:
    """Warns that loading `path` runs code that its files name."""
    warnings.warn(
        f"weights_only=False: loading {path} runs whatever code its files name, with the rights of this process; do so only with files "
        f"of those whom you trust", stacklevel=stacklevel + 1,
    )  # fmt: skip
