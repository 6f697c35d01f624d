# SPDX-License-Identifier: Apache-2.0
"""Embedding tables on parameter servers as modules of PyTorch.

    tables = [tandem.nn.Table("user", dim=64, optimizer=tandem.optim.RowwiseAdagrad(lr=0.05))]
    emb = tandem.nn.EmbeddingCollection(tables, tandem.connect())
    emb.follow(optimizer)                # an optimizer of torch, whose step() pushes the gradients of rows
    out = emb({"user": ids})["user"]     # [B, 64]

The rows live on the servers, which also have their optimizer. The module's parameters stand for its tables.
"""

try:
    import torch as _torch
except ModuleNotFoundError as _error:
    raise ImportError("tandem.nn needs PyTorch, which is not installed; `import tandem` alone works without") from _error
if not hasattr(_torch.library, "custom_op"):
    raise ImportError(f"tandem.nn needs PyTorch 2.4 or later; this is {_torch.__version__}")

from tandem.nn.handle import TableParameter  # noqa: E402
from tandem.nn.modules import Embedding, EmbeddingBag, EmbeddingCollection  # noqa: E402
from tandem.nn.table import Table  # noqa: E402

__all__ = ["Embedding", "EmbeddingBag", "EmbeddingCollection", "Table", "TableParameter"]
