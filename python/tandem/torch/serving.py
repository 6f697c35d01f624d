# SPDX-License-Identifier: Apache-2.0
"""Writes the dense part of a model for serving, and loads it over the tables of servers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import Any, Iterator, Mapping, Sequence

import torch

from tandem._load import load_core
from tandem._paths import local_path
from tandem.client import Client
from tandem.errors import AlreadyExistsError, DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from tandem.nn.engine import Engine
from tandem.nn.modules import _Module
from tandem.nn.table import Table
from tandem.torch._dense_reader import warn_of_code

_core = load_core()

__all__ = ["ServingModule", "export", "load_for_serving"]

_FORMAT = 1
_DESCRIPTION, _STATE, _PROGRAM = "SERVING.json", "dense.pt", "program.pt2"


def export(
    model: torch.nn.Module,
    directory: str | os.PathLike[str],
    args: Sequence[Any] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> str:
    """Writes the dense part of a model into a new directory, for load_for_serving(), and returns its path.

    args, kwargs: an example of the model's inputs. With it the model is exported as a program (torch.export), which needs no
        source code of the model, and dynamic_shapes says which dimensions may differ (as for torch.export.export). Without it the
        parameters are written (state_dict), and load_for_serving() is given a model.

    The rows stay on the servers. Replicated tables are parameters, so they are written. The directory appears when it is complete.
    Called by one process; a model of FSDP must be gathered before.
    """
    model = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    directory = local_path(directory)
    if os.path.exists(directory):
        raise AlreadyExistsError(f"{directory} exists; export into a new directory, so that processes that load the old one keep it")
    modules = {name: module for name, module in model.named_modules() if isinstance(module, _Module)}
    if args is None and (kwargs is not None or dynamic_shapes is not None):
        raise InvalidArgumentError("kwargs and dynamic_shapes belong to an example of the inputs; give args, which may be ()")
    description = {
        "format": _FORMAT,
        "model": type(model).__name__,
        "torch": torch.__version__,
        "modules": {name: [table.state() for table in module.tables] for name, module in modules.items()},
    }
    unfinished = f"{directory}.unfinished-{os.getpid()}"
    os.makedirs(unfinished)
    try:
        if args is None:
            torch.save(model.state_dict(), os.path.join(unfinished, _STATE))
        else:
            with _evaluating(model), _numbered([module._engine for module in modules.values()]):
                program = torch.export.export(model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False)
            torch.export.save(program, os.path.join(unfinished, _PROGRAM))
        with open(os.path.join(unfinished, _DESCRIPTION), "w", encoding="utf-8") as file:
            json.dump(description, file, indent=1)
        os.rename(unfinished, directory)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return directory


def load_for_serving(
    directory: str | os.PathLike[str], client: Client, model: torch.nn.Module | None = None, *, weights_only: bool = True
) -> torch.nn.Module:
    """Returns a module that answers as the exported model did in evaluation, with the rows that the servers have now.

    client: of tandem.connect(read_only=True), with cache_bytes for hot rows. Rows that do not exist read as their initial values.
    model: if the export has no program: the model, made over the same client. It gets the parameters and is returned.
    weights_only: refuses an export with a program, because torch.export.load() runs whatever code its file names. False loads it
        and warns: only for exports of those whom you trust.

    The module creates no row and stays in evaluation. Raises NotFoundError or InvalidArgumentError if the servers lack a table
    or have it with another dim.
    """
    directory = local_path(directory)
    try:
        with open(os.path.join(directory, _DESCRIPTION), encoding="utf-8") as file:
            description = json.load(file)
    except FileNotFoundError:
        raise NotFoundError(f"{directory} is no export: it has no {_DESCRIPTION}; tandem.torch.export() writes one") from None
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"{directory}/{_DESCRIPTION} is damaged: {error}") from None
    fields = {"format": int, "model": str, "modules": dict}
    if not isinstance(description, dict) or not all(type(description.get(name)) is kind for name, kind in fields.items()):
        raise DataLossError(f"{directory}/{_DESCRIPTION} is damaged: it lacks one of {', '.join(fields)}, or has it as another type")
    if description["format"] > _FORMAT:
        raise FailedPreconditionError(
            f"{directory} has format {description['format']}; this version of Tandem reads up to {_FORMAT}"
        )
    has_program = os.path.exists(os.path.join(directory, _PROGRAM))
    tables = {name: [_table_of(state) for state in states] for name, states in description["modules"].items()}
    for table in (table for listed in tables.values() for table in listed if not table.replicated):
        table.check(client)
    if has_program:
        if model is not None:
            raise InvalidArgumentError(f"{directory} has a program, so load_for_serving() needs no model; leave it out")
        if weights_only:
            raise FailedPreconditionError(
                f"{directory} has a program, and loading it runs whatever code its file names; if you trust who wrote it, call "
                f"load_for_serving(..., weights_only=False)"
            )
        engines = [
            Engine([table for table in listed if not table.replicated], client, "mean", creates=False) for listed in tables.values()
        ]
        warn_of_code(directory, stacklevel=2)
        program = torch.export.load(os.path.join(directory, _PROGRAM)).module()
        _renumber(program, engines)
        return ServingModule(program, engines, client)
    if model is None:
        raise InvalidArgumentError(
            f"{directory} has the parameters of {description['model']} and no program; give load_for_serving() a model over the client, "
            f"or export with an example of the inputs"
        )
    model.load_state_dict(torch.load(os.path.join(directory, _STATE), weights_only=True))
    return model.eval()


class ServingModule(torch.nn.Module):
    """An exported program over the tables of a client."""

    def __init__(self, program: torch.nn.Module, engines: list[Engine], client: Client) -> None:
        super().__init__()
        self._program = program
        self._engines = engines  # programs know them by number
        self.client = client
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self._program(*args, **kwargs)

    def train(self, mode: bool = True) -> ServingModule:
        if mode:
            raise FailedPreconditionError("a module of load_for_serving() cannot be trained: it has no optimizer, and creates no rows")
        return self


def _table_of(state: dict[str, Any]) -> Table:
    """Returns the table of Table.state(), with what a lookup needs."""
    fields = {name: state.get(name) for name in ("name", "dim", "features", "pooling", "padding_idx", "num_embeddings")}
    return Table(**fields, placement="replicated" if state.get("replicated") else "sharded")


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    trains = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in trains.items():
            module.training = training


# In a program an engine is a number. Those of exported programs are negative: -1 is the first module, -2 the second.


@contextlib.contextmanager
def _numbered(engines: Sequence[Engine]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for slot, engine in enumerate(engines):
            stack.enter_context(engine.renumbered(-1 - slot))
        yield


def _renumber(program: Any, engines: Sequence[Engine]) -> None:
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.tandem.lookup.default:
            arguments = list(node.args)
            arguments[1] = engines[-1 - arguments[1]].number
            node.args = tuple(arguments)
    program.graph.lint()
    program.recompile()
