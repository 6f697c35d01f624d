# SPDX-License-Identifier: Apache-2.0
"""The client of parameter servers, for NumPy arrays and CPU tensors."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from tandem import _arrays
from tandem._ending import describe, fatal_error
from tandem._futures import COMPLETER, Future
from tandem._load import load_core
from tandem._storage import Storage
from tandem._tables import Tables
from tandem.errors import FailedPreconditionError, InvalidArgumentError

_core = load_core()

# The version of a table when its rows were read, one number for each server. Opaque: pass it to push().
Version = tuple[int, ...]

_POOLING = {"sum": 1, "mean": 2}

# How a program ends its use of a client: tandem::python::Ending.
_FINISHED, _FAILED, _EXITS = range(3)
_NO_OFFSETS = np.zeros(0, dtype=np.uint32)
_IN_HOST_MEMORY = (-1, None)  # the GPU and the stream of an array


class _PushStep:
    """The step of one push. The client counts it when the push has been started; one that is refused before leaves the count.

    A push from a signal handler that interrupts the start of another one is refused: both would have the same number.
    """

    def __init__(self, client: Client, step: int | None) -> None:
        self._client = client
        self._counts = step is None
        self._held = False
        self.number = 0 if step is None else step

    def __enter__(self) -> _PushStep:
        if self._counts:
            client = self._client
            client._step_lock.acquire()
            if client._starts_push:
                client._step_lock.release()
                raise FailedPreconditionError(
                    "this thread is starting another push: a signal handler has interrupted it; let the handler set a flag, and push "
                    "where the program looks at the flag"
                )
            client._starts_push = True
            self._held = True
            self.number = client.step
        return self

    def started(self) -> None:
        """Counts the step. The next push may start."""
        if self._held:
            self._client.step = self.number + 1
            self._release()

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._release()

    def _release(self) -> None:
        self._held = False
        self._client._starts_push = False
        self._client._step_lock.release()


def _close_unfinished(core: Any) -> None:
    """Closes the client of a program that ends, or drops it, without having called close()."""
    error = fatal_error()
    if error is not None:
        core.close(_FAILED, describe(error))
    else:
        core.close(_EXITS, "")


class Client(Tables, Storage):
    """Pulls rows of tables from parameter servers and pushes gradients to them. Thread-safe.

    Made by tandem.connect() or tandem.local(). Each push() is one step of this worker: `step` counts them. Tables in sync
    and bounded mode let a pull of a step wait for all workers' pushes of earlier steps.
    """

    def __init__(
        self,
        core: Any,
        *,
        world_size: int | None = None,
        read_only: bool = False,
        wire: str = "f32",
        read_cache: tuple[int, float] | None = None,
        first_worker: int = 0,
    ) -> None:
        self._core = core
        self._first_worker = first_worker  # of the tables that this client creates
        self._world_size: int = core.world_size if world_size is None else world_size
        self._read_only = read_only
        self._wire = wire
        self._read_cache = read_cache
        self._cached = frozenset()
        self._session: Any = None  # tandem.nn.session.Session, if modules use this client
        self._dims: dict[str, int] = {}
        self._elements: dict[str, tuple[int, int]] = {}  # of dense tables: the number of elements, and dim
        # Reentrant, because a signal handler may pull.
        self._lock = threading.RLock()
        # Held while a push is started whose step is self.step. Reentrant, so that a push of a signal handler gets an error.
        self._step_lock = threading.RLock()
        self._starts_push = False
        self._completer = COMPLETER
        self.step = 0
        weakref.finalize(self, _close_unfinished, core)

    # Life

    def close(self) -> None:
        """Waits for calls under way, leaves the job, and releases everything. Later calls raise CancelledError. Idempotent.

        It tells the job that this process has done its work. A process that ends without it, or that leaves a `with` block by
        an exception, does not; docs/python.md says what follows. Ctrl-C cancels the calls. Raises the error of a push that a
        backward pass has started; the client is closed then, and the job learns of the failure.
        """
        try:
            if self._session is not None:
                self._session.warn_of_gradients_left()
            self._wait_for_modules()
        except BaseException as error:
            self._core.close(_FAILED, describe(error))
            raise
        self._core.close(_FINISHED, "")

    @property
    def closed(self) -> bool:
        return self._core.closed

    def __enter__(self) -> Client:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
        else:
            self._core.close(_FAILED, describe(error))

    def __reduce__(self) -> Any:
        raise TypeError("a Client cannot be pickled: connect in the process that uses it")

    @property
    def rank(self) -> int:
        """This worker's rank in its job; 0 without a job."""
        return self._core.rank

    @property
    def world_size(self) -> int:
        """The number of workers of the job, or the one that connect() was given."""
        return self._world_size

    @property
    def read_only(self) -> bool:
        """Whether this client only reads."""
        return self._read_only

    @property
    def num_servers(self) -> int:
        return self._core.num_servers

    @property
    def addresses(self) -> list[str]:
        """The servers' addresses, with which other processes connect; empty after tandem.local()."""
        return self._core.addresses

    def _check_writable(self, what: str) -> None:
        if self._read_only:
            raise FailedPreconditionError(f"this client is read-only, so it cannot {what}; connect without read_only=True")

    # Rows

    def pull(
        self,
        table: str | Mapping[str, Any],
        ids: Any = None,
        *,
        out: Any = None,
        step: int | None = None,
        read_only: bool = False,
        pooling: str | None = None,
        offsets: Any = None,
    ) -> Any:
        """Returns rows and their version.

            rows, version = client.pull("user", ids)                      # float32 [len(ids), dim]
            rows, version = client.pull({"user": ids, "item": others})    # dicts of both, in one request to each server

        ids: int64 or uint64, one dimension; they may repeat.
        out: an array (or dict of arrays) to write the rows to, instead of a new one. It may be on a GPU: a CUDA tensor, or an array
            with __cuda_array_interface__. The rows are written after the work that its stream (of a tensor: torch's current
            stream) has now, and later work of that stream sees them.
        step: the default is self.step, the number of this client's pushes.
        read_only: creates no rows; an absent one reads as its initial value.
        pooling, offsets: "sum" or "mean" of the rows of each bag ids[offsets[b]:offsets[b+1]]; the rows are [bags, dim].

        Blocks. Raises DeadlineExceededError naming the workers or servers for which it has waited in vain.
        """
        # The short way, for NumPy arrays that need no conversion. It checks the arrays in C++.
        dim = self._dims.get(table) if type(table) is str else None
        if dim is not None and type(ids) is np.ndarray and ids.ndim == 1 and pooling is None and offsets is None:
            target = np.empty((len(ids), dim), np.float32) if out is None else out
            if type(target) is np.ndarray:
                of_step = self.step if step is None else step
                version = self._core.pull_rows(of_step, read_only or self._read_only, table, dim, ids, target)
                if version is not None:
                    return target, version
        parts, keep, convert = self._pull_parts(table, ids, out, pooling, offsets)
        return convert(self._core.pull(self.step if step is None else step, read_only or self._read_only, parts, keep))

    def pull_async(
        self,
        table: str | Mapping[str, Any],
        ids: Any = None,
        *,
        out: Any = None,
        step: int | None = None,
        read_only: bool = False,
        pooling: str | None = None,
        offsets: Any = None,
    ) -> Future[Any]:
        """Starts pull() and returns a future of its result. Do not change ids, offsets or out before the future is done."""
        parts, keep, convert = self._pull_parts(table, ids, out, pooling, offsets)
        call = self._core.start_pull(self.step if step is None else step, read_only or self._read_only, parts, keep)
        return Future(call, convert, self._completer)

    def _pull_parts(
        self, table: str | Mapping[str, Any], ids: Any, out: Any, pooling: str | None, offsets: Any
    ) -> tuple[list[Any], Any, Callable[[list[Version]], Any]]:
        number = self._core.next_pull()
        if isinstance(table, str):
            part, arrays = self._pull_part(table, ids, out, pooling, offsets)
            rows = arrays[1] if out is None else out

            def convert_one(versions: list[Version]) -> tuple[Any, Version]:
                self._core.set_pulled(table, number, versions[0])
                return rows, versions[0]

            return [part], arrays, convert_one
        if ids is not None or offsets is not None or pooling is not None:
            raise InvalidArgumentError("with a dict of tables, give ids in the dict; pooling needs one pull for each table")
        if out is not None and set(out) != set(table):
            raise InvalidArgumentError(f"out has the keys {sorted(out)}; it must have those of the tables, {sorted(table)}")
        parts, keep, results = [], [], {}
        for name, wanted in table.items():
            part, arrays = self._pull_part(name, wanted, None if out is None else out[name], None, None)
            parts.append(part)
            keep.append(arrays)
            results[name] = arrays[1] if out is None else out[name]

        def convert(versions: list[Version]) -> tuple[dict[str, Any], dict[str, Version]]:
            named = dict(zip(results, versions))
            for name, version in named.items():
                self._core.set_pulled(name, number, version)
            return results, named

        return parts, keep, convert

    def _pull_part(self, table: str, ids: Any, out: Any, pooling: str | None, offsets: Any) -> tuple[tuple[Any, ...], Any]:
        dim = self._dims.get(table) or self._dim(table)
        ids = _arrays.as_ids(ids, f"ids of table '{table}'")
        code, offsets, rows = _bags(table, ids, pooling, offsets)
        of_ids = (table, _core.check_ids(ids, table), len(ids))
        of_bags = (code, _core.address(offsets), len(offsets))
        if _arrays.on_gpu(out):
            given = _arrays.gpu_output(out, "out", (rows, dim))
            return (*of_ids, given.address, *of_bags, given.gpu, given.stream), (ids, out, offsets)
        target = np.empty((rows, dim), np.float32) if out is None else _arrays.as_output(out, "out", (rows, dim))
        return (*of_ids, _core.address(target), *of_bags, *_IN_HOST_MEMORY), (ids, target, offsets)

    def push(
        self,
        table: str | Mapping[str, Any],
        ids: Any = None,
        gradients: Any = None,
        *,
        version: Any = None,
        step: int | None = None,
        lr_factor: float = 1.0,
        batch_share: float = 1.0,
        pooling: str | None = None,
        offsets: Any = None,
    ) -> None:
        """Applies gradients: each server exactly once.

            client.push("user", ids, gradients, version=version)
            client.push({"user": (ids, gradients), "item": (others, more)}, version=version)

        gradients: float32 [len(ids), dim] (with pooling: [bags, dim]). They may be on a GPU, like `out` of pull(): they are taken
            after the work that their stream has now, for which the call waits. Gradients of an id that repeats add up. Those of rows
            that were never pulled, or were evicted, are dropped; stats(table)["missing_rows"] counts them.
        version: as the pull returned it; staleness is measured from it. The default is that of this client's latest pull of
            the table. Give it where pulls overlap, as with pull_async().
        step: the default is self.step, which grows by one when the push has been started. A push that is refused before, for
            example because a gradient is NaN, is no step: push the corrected gradients. All tables in sync or bounded mode must be in the one push
            of a step.
        lr_factor: multiplies the tables' learning rates for this push, as schedules do.
        batch_share: the share of a global batch that these gradients carry: 1/N for each of N workers. Regularization (l2,
            weight decay) of tables that are not in sync mode is multiplied by it.

        Blocks until the servers have acknowledged it. Gradients that are NaN or infinite raise InvalidArgumentError.
        """
        parts = self._push_parts(table, ids, gradients, version, pooling, offsets)
        with self._push_step(step) as push:
            self._core.push(push.number, parts, lr_factor, batch_share, push.started)

    def push_async(
        self,
        table: str | Mapping[str, Any],
        ids: Any = None,
        gradients: Any = None,
        *,
        version: Any = None,
        step: int | None = None,
        lr_factor: float = 1.0,
        batch_share: float = 1.0,
        pooling: str | None = None,
        offsets: Any = None,
    ) -> Future[None]:
        """Starts push() and returns a future. The arrays are copied and may be changed at once.

        Raises at once if the push cannot be started, for example because a gradient is NaN. It is then no step.
        """
        parts = self._push_parts(table, ids, gradients, version, pooling, offsets)
        with self._push_step(step) as push:
            call = self._core.start_push(push.number, parts, lr_factor, batch_share)
            push.started()
        return Future(call, lambda _: None, self._completer)

    def _push_step(self, step: int | None) -> _PushStep:
        self._check_writable("push")
        return _PushStep(self, step)

    def _push_parts(
        self, table: str | Mapping[str, Any], ids: Any, gradients: Any, version: Any, pooling: str | None, offsets: Any
    ) -> list[Any]:
        if isinstance(table, str):
            return [self._push_part(table, ids, gradients, version, pooling, offsets)]
        if ids is not None or gradients is not None or offsets is not None or pooling is not None:
            raise InvalidArgumentError(
                "with a dict of tables, give (ids, gradients) in the dict; pooling needs one push for each table"
            )
        if version is not None and not isinstance(version, Mapping):
            raise InvalidArgumentError(f"version is {version!r}; with a dict of tables it must be the dict that pull() returned")
        versions: Mapping[str, Version] = version or {}
        return [self._push_part(n, i, g, versions.get(n), None, None) for n, (i, g) in table.items()]

    def _push_part(
        self, table: str, ids: Any, gradients: Any, version: Sequence[int] | None, pooling: str | None, offsets: Any
    ) -> tuple[Any, ...]:
        dim = self._dims.get(table) or self._dim(table)
        ids = _arrays.as_ids(ids, f"ids of table '{table}'")
        code, offsets, rows = _bags(table, ids, pooling, offsets)
        what = f"gradients of table '{table}'"
        if version is None:
            version = self._core.pulled(table)
        else:
            self._check_version(table, version)
        if _arrays.on_gpu(gradients):
            gradients = _arrays.gpu_rows(gradients, what, (rows, dim))
            address, memory = gradients.address, (gradients.gpu, gradients.stream)
        else:
            gradients = _arrays.as_rows(gradients, what, (rows, dim))
            address, memory = _core.address(gradients), _IN_HOST_MEMORY
        # The tuple keeps the arrays alive until the push has copied them.
        return (
            table, _core.check_ids(ids, table), len(ids), address, code, _core.address(offsets), len(offsets), version, 1.0,
            *memory, ids, gradients, offsets,
        )

    def _check_version(self, table: str, version: Any) -> None:
        servers = self._core.num_servers
        if not isinstance(version, (tuple, list)) or len(version) != servers or not all(
            isinstance(v, (int, np.integer)) and 0 <= v < 1 << 64 for v in version
        ):
            raise InvalidArgumentError(
                f"the version of table '{table}' is {version!r}; it must be that of a pull of this table: a tuple of "
                f"{servers} integers, one for each server"
            )

    # Dense tables

    def pull_dense(self, table: str, *, out: Any = None, step: int | None = None, read_only: bool = False) -> np.ndarray:
        """Returns all numbers of a dense table, float32 [elements]. Blocks like pull(). read_only: for processes that do not train."""
        elements, dim = self._dense(table)
        target = np.empty(elements, np.float32) if out is None else _arrays.as_output(out, "out", (elements,))
        ids = np.arange((elements + dim - 1) // dim, dtype=np.uint64)
        # The last row may extend past the elements.
        rows = target if len(ids) * dim == elements else np.empty(len(ids) * dim, np.float32)
        part = (table, _core.address(ids), len(ids), _core.address(rows), 0, _core.address(_NO_OFFSETS), 0, *_IN_HOST_MEMORY)
        self._core.pull(self.step if step is None else step, read_only or self._read_only, [part], (ids, rows))
        if rows is not target:
            target[:] = rows[:elements]
        return target if out is None else out

    def push_dense(self, table: str, gradients: Any, *, step: int | None = None) -> None:
        """Applies gradients, float32 [elements], to a dense table. Blocks like push(), and is a step like it."""
        elements, dim = self._dense(table)
        gradients = _arrays.as_rows(gradients, f"gradients of table '{table}'", (elements,))
        ids = np.arange((elements + dim - 1) // dim, dtype=np.uint64)
        if len(ids) * dim != elements:
            gradients = np.concatenate([gradients, np.zeros(len(ids) * dim - elements, np.float32)])
        part = (
            table, _core.address(ids), len(ids), _core.address(gradients), 0, _core.address(_NO_OFFSETS), 0, (), 1.0,
            *_IN_HOST_MEMORY, ids, gradients,
        )
        with self._push_step(step) as push:
            self._core.push(push.number, [part], 1.0, 1.0, push.started)

    def _dense(self, table: str) -> tuple[int, int]:
        found = self._elements.get(table)
        if found is not None:
            return found
        info = self._open(table)
        if not info.dense:
            raise InvalidArgumentError(f"table '{table}' is not dense; use pull() and push()")
        return info.elements, info.dim

    def _wait_for_modules(self) -> None:
        if self._session is not None:
            self._session.wait()

    def _discard(self) -> None:
        """Drops what belongs to rows that a checkpoint has replaced."""
        if self._session is not None:
            self._session.discard()
        self._core.drop_cached()


def _bags(table: str, ids: np.ndarray, pooling: str | None, offsets: Any) -> tuple[int, np.ndarray, int]:
    """Returns the code of the pooling, its offsets, and the number of rows that belong to `ids`."""
    if pooling is None and offsets is None:
        return 0, _NO_OFFSETS, len(ids)
    if pooling not in _POOLING or offsets is None:
        raise InvalidArgumentError(f"pooling is {pooling!r}; it must be 'sum' or 'mean', and offsets must be given with it")
    offsets = _arrays.as_offsets(offsets, f"offsets of table '{table}'", len(ids))
    return _POOLING[pooling], offsets, len(offsets) - 1
