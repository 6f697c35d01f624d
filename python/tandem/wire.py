# SPDX-License-Identifier: Apache-2.0
"""How pulls and pushes of one client encode a table's numbers: ``client.set_wire("user", pull="f16", push="int8")``."""

FORMATS = {"f32": 0, "f16": 1, "bf16": 2, "int8": 3}
