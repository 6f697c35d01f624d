# SPDX-License-Identifier: Apache-2.0
"""Whole tables: pretrained rows, scans, checkpoints."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Iterator

import numpy as np

from tandem import _arrays
from tandem._load import load_core
from tandem._paths import local_path
from tandem.errors import InvalidArgumentError

_core = load_core()

# The entry of a manifest's metrics that has the client's step, which may differ from the number of the checkpoint.
CLIENT_STEP = "client_step"


class Storage:
    """The part of a Client that writes, reads and saves rows as they are stored."""

    _core: Any
    _step_lock: Any
    step: int

    def _dim(self, table: str) -> int:
        raise NotImplementedError

    def _info(self, table: str) -> Any:
        raise NotImplementedError

    def _check_writable(self, what: str) -> None:
        raise NotImplementedError

    def _wait_for_modules(self) -> None:
        raise NotImplementedError

    def _discard(self) -> None:
        raise NotImplementedError

    def assign(self, table: str, ids: Any, rows: Any) -> None:
        """Creates or replaces rows, for example by pretrained vectors. Their optimizer state begins anew.

        ids: int64 or uint64 [n], distinct. rows: float32 [n, dim]; tables of f16 and bf16 round them to nearest.

        Admission is not asked. Blocks until the servers have the rows. No push of these rows may be under way, and one worker
        assigns. After an error some rows may have been written; the call may be repeated.
        """
        self._check_writable("assign rows")
        info = self._info(table)
        dim = self._dim(table)
        ids = _arrays.as_ids(ids, f"ids of table '{table}'")
        rows = _arrays.as_rows(rows, f"rows of table '{table}'", (len(ids), dim))
        address = _core.check_ids(ids, table)
        distinct, counts = np.unique(ids, return_counts=True)
        if len(distinct) < len(ids):
            raise InvalidArgumentError(f"the ids of table '{table}' contain {distinct[counts > 1][0]} twice; they must be distinct")
        if not np.all(np.isfinite(rows)):
            bad = ids[~np.isfinite(rows).all(axis=1)][0]
            raise InvalidArgumentError(f"the row of id {bad} of table '{table}' is NaN or infinite; no row was written")
        self._wait_for_modules()
        self._core.write_rows(json.dumps(info.config), address, len(ids), _core.address(rows))

    def scan(self, table: str, *, block: int = 65536, optimizer_state: bool = False) -> Iterator[tuple[np.ndarray, ...]]:
        """Returns an iterator over all rows of a table: (ids, rows), or (ids, rows, state), of at most `block` rows each.

            for ids, rows in client.scan("user"):      # uint64 [n], float32 [n, dim]

        The order depends neither on the number of servers nor on that of arrival. A row that exists throughout the scan is
        returned once. Rows are read while training goes on, so those of different blocks are of different steps; a checkpoint
        (save_checkpoint) is of one. Optimizer state is laid out as ps/optimizers/optimizer.h says.
        """
        if not isinstance(block, int) or block < 1:
            raise InvalidArgumentError(f"block is {block!r}; it must be a number of rows, 1 or more")
        return self._scan(table, self._dim(table), block, optimizer_state)

    def _scan(self, table: str, dim: int, block: int, optimizer_state: bool) -> Iterator[tuple[np.ndarray, ...]]:
        bucket, first_id, at_end = 0, 0, False
        while not at_end:
            ids, values, bucket, first_id, at_end = self._core.scan_rows(table, bucket, first_id, block)
            if len(ids) == 0:
                continue
            rows = np.ascontiguousarray(values[:, :dim])
            yield (ids, rows, np.ascontiguousarray(values[:, dim:])) if optimizer_state else (ids, rows)

    # Checkpoints

    def save_checkpoint(self, root: str | os.PathLike[str], step: int | None = None) -> str:
        """Writes all tables, with optimizer state, into a new directory below `root`, and returns its path.

        root: a directory that every server can access; a URL is an InvalidArgumentError. step: the number in the directory's name, by which the latest is found; the
        default is self.step.

        Blocks. To be called by one worker while no worker pushes: after a barrier, before which each has waited for its pushes.
        The directory appears under its name when it is complete; an earlier checkpoint of this step is replaced. `tandem ckpt`
        lists, verifies and exports checkpoints.
        """
        self._check_writable("save a checkpoint")
        self._wait_for_modules()
        step = self.step if step is None else step
        unfinished = _core.begin_checkpoint(local_path(root), step)
        written = self._core.save_checkpoint(unfinished)
        manifest = {
            "job_name": "python", "step": step, "unix_millis": str(time.time_ns() // 1_000_000),
            "metrics": {CLIENT_STEP: self.step},
        }  # fmt: skip
        return _core.commit_checkpoint(unfinished, json.dumps(manifest), written)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> int:
        """Loads the rows of all tables from a checkpoint, whatever number of servers wrote it. Returns self.step.

        path: a checkpoint, or a directory of checkpoints, of which the one with the highest step is loaded.

        The tables must have been created with the same dim, row_type and kind of optimizer. self.step becomes what it was when the
        checkpoint was saved, whatever number was given to save_checkpoint(). Gradients that were not pushed, and rows that were
        pulled ahead or are cached, are dropped. To be called by one worker while none pushes; the others then call
        resume_from(step) with the number that it returns. After an error of a server, no table of it has changed.
        """
        self._check_writable("load a checkpoint")
        self._wait_for_modules()
        path = local_path(path)
        if not os.path.exists(os.path.join(path, "MANIFEST")):
            path = _core.latest_checkpoint(path)
        manifest = json.loads(_core.read_manifest(path))
        step = int(manifest.get("metrics", {}).get(CLIENT_STEP, manifest.get("step", 0)))
        self._core.load_checkpoint(path)
        self.resume_from(step)
        return step

    def resume_from(self, step: int) -> None:
        """Continues at `step` after another worker has loaded a checkpoint: its load_checkpoint() returns the step.

        Drops gradients of this worker that were not pushed, and rows that were pulled ahead or are cached.
        """
        self._check_writable("push")
        self._discard()
        self._core.start_push_epoch()
        with self._step_lock:
            self.step = step


def export_checkpoint(
    checkpoint: str | os.PathLike[str], to: str | os.PathLike[str], *, format: str = "npy", optimizer_state: bool = False
) -> dict[str, list[str]]:
    """Writes a checkpoint's tables as files that NumPy and others read, and returns their names by table.

    checkpoint: as save_checkpoint() returns it. Needs no server.
    format: "npy": NAME.ids.npy, uint64 [rows], and NAME.rows.npy, float32 [rows, dim]; "csv": NAME.csv.
    """
    if format not in ("npy", "csv"):
        raise InvalidArgumentError(f"format is {format!r}; it must be 'npy' or 'csv'")
    exported = _core.export_checkpoint(local_path(checkpoint), local_path(to), format == "csv", optimizer_state)
    return {name: list(files) for name, _, _, files in exported}
