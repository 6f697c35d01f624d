# SPDX-License-Identifier: Apache-2.0
"""Embedding tables on parameter servers as modules of PyTorch.

    tables = [tandem.nn.Table("user", dim=64, optimizer=tandem.optim.RowwiseAdagrad(lr=0.05))]
    emb = tandem.nn.EmbeddingCollection(tables, tandem.connect())
    out = emb({"user": ids})["user"]     # [B, 64]; backward() pushes the gradients

The rows are not parameters of the module: they live on the servers, which also have their optimizer.
"""

from tandem.nn.modules import Embedding, EmbeddingBag, EmbeddingCollection
from tandem.nn.table import Table

__all__ = ["Embedding", "EmbeddingBag", "EmbeddingCollection", "Table"]
