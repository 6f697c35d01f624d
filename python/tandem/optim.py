# SPDX-License-Identifier: Apache-2.0
"""Optimizers of tables, for example tandem.optim.Adagrad(lr=0.05). They run on the parameter servers."""

from tandem._kinds import make_functions as _make_functions

globals().update(_make_functions("optimizer"))
__all__ = sorted(_make_functions("optimizer"))
