"""A simulator of what an oversized request reads from a paged KV cache that is never zeroed.

`Scenario` holds every parameter of a trial, `simulate` runs trials; `PagePool` is a pool to drive by hand,
`replay` drives one through recorded operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.scenario import Scenario

if TYPE_CHECKING:
    from kvsim.pagepool import PagePool, replay
    from kvsim.simulation import simulate

__all__ = ["PagePool", "Scenario", "replay", "simulate"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The compiler is imported only when something is simulated.
    if name == "simulate":
        from kvsim.simulation import simulate

        return simulate
    if name in ("PagePool", "replay"):
        import kvsim.pagepool

        return getattr(kvsim.pagepool, name)
    raise AttributeError(f"module 'kvsim' has no attribute {name!r}")
