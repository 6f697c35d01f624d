# SPDX-License-Identifier: Apache-2.0
"""A worker that sends values which an eavesdropper would recognise: gradients, rows and keys (test_secrecy.py)."""

from __future__ import annotations

import struct

import numpy as np
import torch
import torch.distributed as dist

import tandem

GRADIENT, ROW = b"GrAd", b"RoWs"  # the bytes of two floats


def as_float(text: bytes) -> float:
    (value,) = struct.unpack("<f", text)
    return float(value)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("tandem")
    gradient = torch.full((20_000,), as_float(GRADIENT))
    dist.all_reduce(gradient, op=dist.ReduceOp.MAX)
    assert bool((gradient == as_float(GRADIENT)).all())
    with tandem.connect() as client:
        if dist.get_rank() == 0:
            client.create_table("secret_table", dim=64, optimizer=tandem.optim.SGD(lr=0.1),
                                init=tandem.init.Constant(as_float(ROW)))
        dist.barrier()
        rows, _ = client.pull("secret_table", np.arange(2_000))
        assert bool((rows == np.float32(as_float(ROW))).all())
        dist.barrier()
    dist.destroy_process_group()
    print("all values were right", flush=True)
