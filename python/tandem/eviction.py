# SPDX-License-Identifier: Apache-2.0
"""Which rows leave memory when a table's byte budget is used up."""

from tandem._kinds import make_functions as _make_functions

globals().update(_make_functions("eviction"))
__all__ = sorted(_make_functions("eviction"))
