# SPDX-License-Identifier: Apache-2.0
"""Remote functions: processes call registered functions of each other by name.

    import numpy as np
    from tandem import rpc

    @rpc.function
    def scale(values, factor):
        return values * factor

    rpc.start("worker/0", peers={"worker/0": "127.0.0.1:7000"})     # under `tandem run`: rpc.start()
    print(rpc.call("worker/0", scale, np.ones(3), 2.0))
    rpc.shutdown()

Arguments and results are None, bool, int (64 bits), float, str, bytes, list, tuple, dict, references, NumPy arrays and CPU tensors
of PyTorch. Arrays and tensors travel outside of the message, as they are in memory. docs/python_rpc.md describes the module.
"""

try:
    import msgpack as _msgpack  # noqa: F401
except ImportError as _error:
    raise ImportError("tandem.rpc needs the package msgpack, 1.0.4 or later: pip install msgpack (or install tandem-runtime[rpc])") from _error

from tandem.rpc._agent import Reference, RpcFuture, call, call_async, current, name, own, remote, shutdown, start, workers
from tandem.rpc._errors import RemoteError
from tandem.rpc._functions import Context, function

__all__ = [
    "Context", "Reference", "RemoteError", "RpcFuture", "call", "call_async", "current", "function", "name", "own", "remote",
    "shutdown", "start", "workers",
]  # fmt: skip
