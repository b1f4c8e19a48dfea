"""A simulator of what an oversized request reads from a paged KV cache that is never zeroed.

`Scenario` holds every parameter of a trial, `simulate` runs trials, and `owners` lists whose pages were
read. `PagePool` is a pool to drive by hand, `replay` drives one through recorded operations.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvsim.scenario import Scenario

if TYPE_CHECKING:
    from kvsim.pagepool import PagePool, replay
    from kvsim.simulation import owners, simulate

__all__ = ["PagePool", "Scenario", "owners", "replay", "simulate"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The compiler is imported only when something is simulated.
    module = {"PagePool": "pagepool", "replay": "pagepool", "owners": "simulation", "simulate": "simulation"}
    if name in module:
        return getattr(import_module(f"kvsim.{module[name]}"), name)
    raise AttributeError(f"module 'kvsim' has no attribute {name!r}")
