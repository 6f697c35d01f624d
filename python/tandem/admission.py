# SPDX-License-Identifier: Apache-2.0
"""When an id gets a row, for example after it was seen several times."""

from tandem._kinds import make_functions as _make_functions

globals().update(_make_functions("admission"))
__all__ = sorted(_make_functions("admission"))
