# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a model whose tables are on servers: the tables and the dense part in one directory.

    from tandem.torch import checkpoint

    start = 0
    if checkpoint.latest("runs/a"):
        start = checkpoint.load("runs/a", model, optimizer, client).step
    for step in range(start, steps):
        ...
        if step % 1000 == 999:
            checkpoint.save("runs/a", step + 1, model, optimizer, client)

The servers write the tables, and torch.distributed.checkpoint writes the dense part, with its sharded tensors. One manifest, with
a checksum of every file, commits both by a rename. A checkpoint can be loaded with another number of servers and of ranks.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import threading
import time
import warnings
from typing import Any, Callable, Iterable, Mapping

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from tandem._load import load_core
from tandem._paths import local_path
from tandem._storage import CLIENT_STEP
from tandem.client import Client
from tandem.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError, TandemError
from tandem.nn.follower import without_tables
from tandem.torch._dense_reader import DensePlanner, DenseReader, warn_of_code
from tandem.torch._ranks import Ranks

_core = load_core()

__all__ = ["Loaded", "latest", "load", "save"]

Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None

_FORMAT = 1
_DESCRIPTION = "TORCH.json"
_FIELDS = {"format": int, "optimizers": int, "extra": dict}  # that a description always has
# The files of the dense part begin with these names: those of torch.distributed.checkpoint, and ours. Servers check the tables'.
_DENSE_FILES = ["__", ".metadata", _DESCRIPTION, "DENSE"]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What load() has loaded."""

    step: int
    path: str
    extra: dict[str, Any]  # as it was given to save()


def save(
    root: str | os.PathLike[str],
    step: int,
    model: torch.nn.Module,
    optimizer: Optimizers,
    client: Client,
    *,
    extra: Mapping[str, Any] | None = None,
    keep: int | None = None,
    process_group: Any = None,
) -> str:
    """Saves tables and dense part as the checkpoint of `step` below `root`, and returns its path.

    root: a directory that all ranks and all servers can access. An earlier checkpoint of the step is replaced.
    step: any number that grows: of steps, of epochs. load() returns it.
    optimizer: one, several, or None. model: may be wrapped by DistributedDataParallel or FSDP.
    extra: values that JSON can hold, from rank 0: the position in the data, states of schedulers.
    keep: the number of newest checkpoints that stay below `root`; the default is all.

    Every rank calls it, at the end of a step. It blocks until the checkpoint is committed, and raises on all ranks if it fails
    on one; the earlier checkpoints are then as they were. A process that dies meanwhile leaves an unfinished directory, which the
    next save() removes.
    """
    step = operator.index(step)
    if step < 0:
        raise InvalidArgumentError(f"step is {step}; it must be 0 or more")
    if keep is not None and keep < 1:
        raise InvalidArgumentError(f"keep is {keep}; it must be 1 or more, or None for all")
    client._check_writable("save a checkpoint")
    ranks = Ranks(process_group, client.world_size)
    root = local_path(root)
    began = time.time_ns()

    def finish_pushes() -> None:
        client._wait_for_modules()
        client.push_deferred()

    ranks.together("finishing pushes", finish_pushes)
    # In asynchronous modes the workers' steps differ.
    client_steps = {str(worker): worker_step for worker, worker_step in ranks.gather((client.rank, client.step))}
    # Not inside of torch's own saving, in which a rank that fails would let the others wait.
    state = ranks.together("collecting the dense part", lambda: _state_of(model, optimizer))
    unfinished = ranks.on_first(lambda: _core.begin_checkpoint(root, step))
    # The servers write while this process does.
    tables = _Background(lambda: client._core.save_checkpoint(unfinished)) if ranks.rank == 0 else None

    def write_dense() -> None:
        # Not a Stateful of its own, because torch calls state_dict() in load() as well.
        writer = dcp.FileSystemWriter(unfinished)
        dcp.save(state, storage_writer=writer, process_group=ranks.group, no_dist=not ranks.distributed)

    def commit() -> str:
        assert tables is not None
        written = tables.result()
        description = {
            "format": _FORMAT, "ranks": ranks.size, "torch": torch.__version__, "extra": dict(extra or {}),
            "optimizers": len(_list_of(optimizer)), "client_steps": client_steps,
        }
        _write(os.path.join(unfinished, _DESCRIPTION), json.dumps(description))
        name = type(getattr(model, "module", model)).__name__
        manifest = {
            "job_name": "python", "model": f"torch {name}", "step": str(step), "unix_millis": str(began // 1_000_000),
            "metrics": {CLIENT_STEP: client.step},
        }
        path = _core.commit_checkpoint(unfinished, json.dumps(manifest), written)
        if keep is not None:
            _core.prune_checkpoints(root, keep, path)
        return path

    try:
        ranks.together("saving the dense part", write_dense)
    except BaseException:
        if tables is not None:
            tables.wait()  # no server writes into a directory that a later save() removes
        raise
    return ranks.on_first(commit)


def load(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: Optimizers,
    client: Client,
    *,
    weights_only: bool = True,
    process_group: Any = None,
) -> Loaded:
    """Loads tables and dense part, and returns the step and what `extra` was.

    path: a checkpoint, or a directory of checkpoints: then the newest one that is intact. Damaged ones after it are named in a
        warning, and renamed to damaged-step-...
    weights_only: refuses to unpickle anything but tensors and plain values, as torch.load() does. False runs any code that the
        checkpoint names, and warns: only for checkpoints of those whom you trust.

    Every rank calls it, before training or instead of a step, with modules that have the same tables and shapes as those that
    were saved. The numbers of servers and of ranks may differ. client.step becomes what it was when the checkpoint was saved, on
    every rank. Gradients that were not pushed, and rows that were pulled ahead, are dropped.

    Raises DataLossError if the checkpoint, or every one of the directory, is damaged, NotFoundError if there is none, and
    FailedPreconditionError if weights_only refuses a value. Nothing has changed then, except perhaps tables. After other errors
    tables and dense part may be of different steps: load again.
    """
    client._check_writable("load a checkpoint")
    ranks = Ranks(process_group, client.world_size)
    path = local_path(path)
    ranks.together("finishing pushes", client._wait_for_modules)
    if not weights_only:
        warn_of_code(path, stacklevel=2)
    chosen, step, description = ranks.on_first(lambda: _load_tables(path, client))

    optimizers = _list_of(optimizer)

    def collect() -> dict[str, Any]:
        if description["optimizers"] != len(optimizers):
            raise InvalidArgumentError(
                f"{chosen} has {description['optimizers']} optimizers, and load() was given {len(optimizers)}; give those that save() "
                f"was given"
            )
        return _state_of(model, optimizer)

    def read() -> None:
        reader, planner = dcp.FileSystemReader(chosen), None
        if weights_only:
            reader, planner = DenseReader(chosen), DensePlanner()
            reader.read_metadata()  # torch would replace its error
        try:
            dcp.load(state, storage_reader=reader, planner=planner, process_group=ranks.group, no_dist=not ranks.distributed)
        except CheckpointException as error:
            # torch wraps the errors of all ranks.
            for cause, _ in error.failures.values():
                if isinstance(cause, TandemError):
                    raise cause from None
            raise

    def adopt() -> None:
        set_model_state_dict(model, state["model"])
        if optimizers:
            # Reading has found all that the optimizers have. Strict checks would refuse an optimizer without state beside one with.
            with without_tables(optimizers):
                set_optimizer_state_dict(model, optimizers, state["optimizer"], options=StateDictOptions(strict=False))
        client.resume_from(_client_step(description, client, step))

    state = ranks.together("collecting the dense part", collect)
    ranks.together("reading the dense part", read)
    ranks.together("loading the dense part", adopt)
    return Loaded(step, chosen, dict(description["extra"]))


def latest(root: str | os.PathLike[str]) -> str | None:
    """Returns the path of the newest checkpoint of save() below `root`, or None if there is none.

    Those of client.save_checkpoint(), which have no PyTorch part, are left out. Damaged ones are named in a warning and stepped
    past. Reads the dense part to check it; of the tables it checks the sizes. Raises DataLossError if all are damaged.
    """
    root = local_path(root)
    damaged = []
    for path in reversed(_core.checkpoint_paths(root)):
        if not _has_dense_part(path):
            continue
        try:
            _verify(path)
        except DataLossError as error:
            damaged.append((path, error))
            continue
        _warn(damaged, path)
        return path
    if damaged:
        raise _all_damaged(root, damaged)
    return None


# Rank 0's part of load().


def _load_tables(path: str, client: Client) -> tuple[str, int, dict[str, Any]]:
    """Loads the tables of the newest intact checkpoint; returns its path, its step and its description."""
    if os.path.exists(os.path.join(path, "MANIFEST")):
        return path, *_load_one(path, client)
    damaged: list[tuple[str, Exception]] = []
    _core.repair_checkpoints(path)
    candidates = list(reversed(_core.checkpoint_paths(path)))
    if candidates and not any(_has_dense_part(candidate) for candidate in candidates):
        raise _no_dense_part(candidates[0])
    for candidate in candidates:
        if not _has_dense_part(candidate):
            continue
        try:
            step, description = _load_one(candidate, client)
        except DataLossError as error:
            damaged.append((candidate, error))
            continue
        _warn(damaged, candidate)
        for bad, _ in damaged:
            _core.set_checkpoint_aside(bad)
        return candidate, step, description
    if damaged:
        raise _all_damaged(path, damaged)
    raise NotFoundError(f"there is no checkpoint below {path}")


def _client_step(description: dict[str, Any], client: Client, step: int) -> int:
    """Returns the step at which this worker goes on."""
    saved = description.get("client_steps")
    if saved is None:  # an earlier version, which required that the checkpoint's step is the client's
        return step
    # With another number of workers the servers set all clocks to the foremost one.
    return saved[str(client.rank)] if len(saved) == client.world_size and str(client.rank) in saved else max(saved.values())


def _load_one(path: str, client: Client) -> tuple[int, dict[str, Any]]:
    _verify(path)
    manifest = json.loads(_core.read_manifest(path))
    try:
        with open(os.path.join(path, _DESCRIPTION), encoding="utf-8") as file:
            description = json.load(file)
    except FileNotFoundError:
        raise _no_dense_part(path) from None
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"{path}/{_DESCRIPTION} is damaged: {error}") from None
    if not isinstance(description, dict) or not all(type(description.get(name)) is kind for name, kind in _FIELDS.items()):
        raise DataLossError(f"{path}/{_DESCRIPTION} is damaged: it lacks one of {', '.join(_FIELDS)}, or has it as another type")
    if description["format"] > _FORMAT:
        raise FailedPreconditionError(
            f"the PyTorch part of {path} has format {description['format']}; this version of Tandem reads up to {_FORMAT}"
        )
    client._core.load_checkpoint(path)
    return int(manifest.get("step", 0)), description


def _has_dense_part(path: str) -> bool:
    """Returns whether the checkpoint is one of save(), intact or not."""
    try:
        manifest = json.loads(_core.read_manifest(path))
    except DataLossError:
        return True  # _verify() says what is wrong
    return any(file["name"] == _DESCRIPTION for file in manifest.get("files", ()))


def _no_dense_part(path: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{path} has no PyTorch part, so tandem.torch.checkpoint.save() has not saved it; client.load_checkpoint() loads its tables"
    )


def _verify(path: str) -> None:
    try:
        _core.verify_checkpoint(path, _DENSE_FILES)
    except NotFoundError as error:
        raise DataLossError(str(error)) from None


def _warn(damaged: list[tuple[str, Exception]], used: str) -> None:
    for path, error in damaged:
        warnings.warn(f"the checkpoint {path} is damaged, and {os.path.basename(used)} is used instead: {error}", stacklevel=4)


def _all_damaged(root: str, damaged: list[tuple[str, Exception]]) -> DataLossError:
    texts = "; ".join(str(error) for _, error in damaged)
    return DataLossError(f"all {len(damaged)} checkpoints below {root} are damaged: {texts}")


# The dense part


def _list_of(optimizer: Optimizers) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    return [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)


def _state_of(model: torch.nn.Module, optimizer: Optimizers) -> dict[str, Any]:
    optimizers = _list_of(optimizer)
    with without_tables(optimizers):
        of_model, of_optimizers = get_state_dict(model, optimizers)
    return {"model": of_model, "optimizer": of_optimizers} if optimizers else {"model": of_model}


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class _Background:
    """A function that runs on a thread."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tandem-checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        self._thread.join()

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value
