# SPDX-License-Identifier: Apache-2.0
"""Reads the files of torch.distributed.checkpoint without running code that they name.

torch.distributed.checkpoint unpickles two things: the metadata, and values that are not tensors (settings of optimizers, extra state
of modules). Here the metadata may name only the classes that describe tensors, and the values only what torch.load(weights_only=True)
accepts.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from tandem.errors import FailedPreconditionError

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


class _MetadataUnpickler(pickle.Unpickler):
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
            try:
                metadata = _MetadataUnpickler(file).load()
            except FailedPreconditionError as error:
                raise FailedPreconditionError(f"{path} is not loaded: {error}; {_REMEDY}") from None
        if not isinstance(metadata, Metadata):
            raise FailedPreconditionError(f"{path} is not loaded: it has a {type(metadata).__name__}, not torch's metadata")
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


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
