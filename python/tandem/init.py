# SPDX-License-Identifier: Apache-2.0
"""Initial values of rows, for example tandem.init.Uniform(-0.01, 0.01)."""

from tandem._kinds import make_functions as _make_functions

globals().update(_make_functions("initializer"))
__all__ = sorted(_make_functions("initializer"))
