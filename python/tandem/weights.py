# SPDX-License-Identifier: Apache-2.0
"""Versions of a model's weights: a learner publishes them, actors pull them.

    from tandem import weights

    client = weights.local()                                         # or connect("host:port")
    publisher = client.publisher("policy")
    publisher.publish(module.state_dict(), step=0)                   # or a dict of arrays
    model = client.newer("policy", timeout=10)                       # in an actor
    model.load_into(module)

A version becomes visible as a whole, or not at all. docs/weights.md says what else the store promises.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Mapping, NamedTuple

import numpy as np

from tandem import _arrays
from tandem._engine_client import EngineClient, seconds_of
from tandem._load import load_core
from tandem.errors import InvalidArgumentError, NotFoundError
from tandem.replay._client import Client as _ReplayClient
from tandem.replay._client import plain
from tandem.replay._server import _serve
from tandem.replay._tables import count

__all__ = ["Client", "Model", "Publisher", "Subscriber", "Version", "connect", "local"]

_core = load_core()


class Version(NamedTuple):
    """Identifies a version. Versions are ordered by epoch, then by number: a publisher that starts anew has a larger epoch."""

    epoch: int = 0
    number: int = 0


class Model:
    """A version of a model, with its values. Immutable: the arrays are read-only.

    version: Version(epoch, number). step: the learner's updates. items_consumed: as the publisher gave it.
    last: the publisher has ended normally, and no version will follow. publisher: its name.
    """

    def __init__(self, core: Any) -> None:
        self.name: str = core.name
        self.version: Version = Version(*core.version)
        self.step: int = core.step
        self.items_consumed: int = core.items_consumed
        self.last: bool = core.last
        self.publisher: str = core.publisher
        self.tensors: dict[str, np.ndarray] = {name: values.reshape(shape) for name, shape, values in core.tensors()}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.tensors:
            raise NotFoundError(f"model '{self.name}' has no tensor '{name}'; it has {', '.join(self.tensors)}")
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __repr__(self) -> str:
        return f"Model('{self.name}', version {self.version.number} of epoch {self.version.epoch}, {len(self.tensors)} tensors)"

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of the values as tensors of PyTorch, in float32, for load_state_dict()."""
        import torch

        return {name: torch.tensor(values) for name, values in self.tensors.items()}

    def load_into(self, module: Any, *, strict: bool = True) -> None:
        """Copies the values into a PyTorch module, whose parameters keep their dtype and device.

        strict: raise unless the names are the same.
        """
        module.load_state_dict(self.state_dict(), strict=strict)


class Publisher:
    """Publishes the versions of one model, and commits them to a paced table. Made by Client.publisher().

    A server that has started again has lost all versions. The publisher notices that within about half a second, also while no call is
    made, and publishes and commits the last version again. Calls of several threads take turns.
    """

    def __init__(self, client: Client, core: Any, model: str, name: str) -> None:
        self._client = client
        self._core = core
        self.model = model
        self.name = name

    def publish(
        self, tensors: Mapping[str, Any], *, step: int = 0, items_consumed: int = 0, last: bool = False, timeout: float | None = None
    ) -> int:
        """Publishes the tensors as the next version, whose number is returned, and commits it (`commit_to`). They are copied.

        tensors: arrays or tensors by name, such as a state_dict(). Values travel as float32. Others are converted if float32 has them
            exactly, such as float16 and integers up to 2^24; otherwise InvalidArgumentError names the tensor. Counters that grow beyond
            it, such as a BatchNorm's num_batches_tracked, are to be left out, or converted by .float().
        step, items_consumed, last: what readers get with the version. items_consumed: how many sampled items of the table of
            `commit_to` the learner is done with, over the whole run: those that updates have used and those that it has rejected.

        Blocks until the store has it, and then the table. FailedPreconditionError: a newer publisher of this model has begun; this one
        must not go on. After DeadlineExceededError or UnavailableError the version may be there or not, and the publisher goes on with it
        in the background: repeat() waits for it, publish() replaces it by the next version.
        """
        named = [_named(name, value) for name, value in tensors.items()]
        return self._core.publish(named, count(step, "step"), count(items_consumed, "items_consumed"), bool(last), self._client._seconds(timeout))

    def repeat(self, *, timeout: float | None = None) -> None:
        """Publishes and commits the last version again, as the publisher does by itself. Blocks until that is done.

        No effect if it is the head, or if nothing was published. The errors are those of publish().
        """
        self._core.repeat(self._client._seconds(timeout))

    @property
    def version(self) -> Version:
        """The last version that publish() has tried to commit; its number is 0 or that of the head if there is none."""
        return Version(*self._core.version())


class Subscriber:
    """Follows the versions of a model. Made by Client.subscribe(). Used by one thread at a time.

        policy = client.subscribe("policy")
        while not policy.last:
            if policy.update(timeout=0): policy.model.load_into(module)
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name
        self.model: Model | None = None

    def update(self, timeout: float | None = 0.0) -> bool:
        """Takes the newest version if it is newer than `model`. Waits for one at most `timeout`. Returns whether there was one."""
        newer = self._client.newer(self.name, self.model, timeout=timeout)
        if newer is None:
            return False
        self.model = newer
        return True

    @property
    def version(self) -> Version:
        """The version of `model`; Version(0, 0) before there is one."""
        return Version() if self.model is None else self.model.version

    @property
    def last(self) -> bool:
        """Whether the publisher has ended normally."""
        return self.model is not None and self.model.last


class Client(EngineClient):
    """The weights of a server, or of this process. Made by tandem.weights.connect() or local(). Thread-safe.

    Calls are repeated after a broken connection, also to a server that has started again. Such a server has lost all versions; a Publisher
    that is still there publishes its last one again by itself.
    """

    _WHAT = "a weights client"

    def publisher(
        self,
        model: str,
        *,
        name: str = "publisher",
        after_version: int = 0,
        commit_to: tuple[_ReplayClient, str] | None = None,
        timeout: float | None = None,
    ) -> Publisher:
        """Begins to publish a model. Earlier publishers of it are refused from then on.

        name: for messages: "learner/0". after_version: versions are numbered above it, and above the heads of the store and of the table:
        for a learner that resumes.
        commit_to: (replay client, table): each version is committed to this table once it can be pulled, so that the table measures lags
            and paces actors. The learner samples by the same client, which must not be closed before.
        """
        replay, table = _committed_table(commit_to)
        core = self._core.open_publisher(model, name, count(after_version, "after_version"), replay, table, self._seconds(timeout))
        return Publisher(self, core, model, name)

    def newer(self, model: str, than: Model | Version | None = None, *, timeout: float | None = None) -> Model | None:
        """Returns the newest version once it is newer than `than`; None if there is none within `timeout`. The server waits, nobody polls.

        than: a Model or Version; None: any version is newer. Also None if the server is away so long; a call takes up to 5 s more to notice
        that, and may take longer for the values of a version that was announced.
        """
        have = Version() if than is None else than.version if isinstance(than, Model) else Version(*than)
        core = self._core.newer(model, count(have.epoch, "epoch"), count(have.number, "number"), self._seconds(timeout))
        return None if core is None else Model(core)

    def subscribe(self, model: str) -> Subscriber:
        """Returns an object that remembers the version it has."""
        return Subscriber(self, model)

    def head(self, model: str, *, timeout: float | None = None) -> Version | None:
        """Returns the newest version's number, None if nothing has been published."""
        version = Version(*self._core.head(model, self._seconds(timeout)))
        return None if version.epoch == 0 else version

    def models(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Returns the state of all models: "model", "head", "kept", "publishes", "refused", ... (tandem.v1.WeightsModelState)."""
        return plain(json.loads(self._core.list(self._seconds(timeout))))["models"]


def _committed_table(commit_to: Any) -> tuple[Any, str]:
    """Returns the core of the replay client and the table, or raises."""
    if commit_to is None:
        return None, ""
    if not (isinstance(commit_to, tuple) and len(commit_to) == 2 and isinstance(commit_to[0], _ReplayClient) and isinstance(commit_to[1], str)):
        raise InvalidArgumentError(f"commit_to is {commit_to!r}; it must be (client, table): a tandem.replay.Client and a table's name")
    return commit_to[0]._core, commit_to[1]


def _named(name: Any, value: Any) -> tuple[str, list[int], np.ndarray]:
    what = f"tensor '{name}'"
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{what} has a name that is no text")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach()
        value = value.float() if value.dtype == torch.bfloat16 else value
        array = _arrays._from_tensor(value.cpu(), what)
    else:
        array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise InvalidArgumentError(f"{what} has dtype {array.dtype}; weights travel as float32")
    shape = list(array.shape)
    values = array
    if array.dtype != np.float32:
        with np.errstate(over="ignore"):
            values = array.astype(np.float32)
        exact = values.astype(array.dtype) == array if array.dtype.kind == "f" else _same_integers(values, array)
        if not np.all(exact | (array != array)):
            raise InvalidArgumentError(
                f"{what} has dtype {array.dtype} and values that float32 does not have exactly; weights travel as float32: convert it by "
                f".float() or .astype(np.float32) if its rounding does not matter"
            )
    return name, shape, np.ascontiguousarray(values)


def _same_integers(values: np.ndarray, array: np.ndarray) -> Any:
    """Returns for each integer of `array` whether the float32 in `values` equals it."""
    if array.dtype == np.bool_:
        return True
    wide = values.astype(np.float64)  # exact
    fits = wide < float(np.iinfo(array.dtype).max) + 1  # may be one too large after rounding
    # In the integers' own dtype, because the comparison of int64 with float64 rounds.
    return fits & (np.where(fits, wide, 0).astype(array.dtype) == array)


def _connected(make: Callable[[], Any], timeout: float) -> Client:
    client = Client(make(), timeout)
    try:
        client.models()
    except BaseException:
        client.close()
        raise
    return client


def local(*, keep: int = 4, max_bytes: int = 0, timeout: float = 60.0) -> Client:
    """Returns a client of a weight store in this process. close() ends it.

    keep: versions of each model that can be pulled. max_bytes: of all versions; 0: no limit.
    """
    server = _serve((), "", "", False, True, False, 0, 0, None, 0.0, keep, max_bytes, timeout)
    return Client(server.weights(seconds_of(timeout, 60.0)), timeout, server)


def connect(address: str | None = None, *, role: str = "replay", index: int = 0, timeout: float = 60.0) -> Client:
    """Connects to a weight server: of `tandem weights serve`, tandem.replay.serve(), or of this process's job. Waits until it answers.

    address: "host:port" or "unix:/path". None: server `index` of `role` in the job in which `tandem run` has started this process.
    timeout: of each call and wait, in seconds, unless the call has one of its own.
    """
    seconds = seconds_of(timeout, 60.0)
    if address is None:
        return _connected(lambda: _core.connect_weights_in_job(role, index, seconds), seconds)
    return _connected(lambda: _core.connect_weights(address, seconds), seconds)
