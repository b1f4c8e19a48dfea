"""A simulator of what an oversized request reads from a paged KV cache that is never zeroed.

`Scenario` holds every parameter of a trial, `simulate` runs trials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.scenario import Scenario

if TYPE_CHECKING:
    from kvsim.simulation import simulate

__all__ = ["Scenario", "simulate"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The compiler is imported only when something is simulated.
    if name == "simulate":
        from kvsim.simulation import simulate

        return simulate
    raise AttributeError(f"module 'kvsim' has no attribute {name!r}")
