# SPDX-License-Identifier: Apache-2.0
# Written by python -m tandem._stubs; do not edit.

from tandem._kinds import Kind

def Always() -> Kind: ...
def Count(threshold: float = 2, counters: float = 16777216) -> Kind: ...
def Probability(probability: float = 0.1) -> Kind: ...

__all__ = ["Always", "Count", "Probability"]
