"""How the simulator is compiled, and where the compiled code is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numba

from kvsim.digest import model_digest


def _keep_compiled_code_by_digest() -> None:
    """Give every version of the model a cache of its own.

    Numba looks at the file of a cached function, not at the files of those it calls: with one cache
    for all, an edited policy would go on running as it was.
    """
    kept = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(kept) if kept else Path(__file__).with_name("__pycache__")
    if kept or os.access(folder if folder.exists() else folder.parent, os.W_OK):
        numba.config.CACHE_DIR = str(folder / f"model-{model_digest()}")


_keep_compiled_code_by_digest()

OPTIONS: Any = {"error_model": "numpy", "nogil": True}
# Without numba's runtime no reference to an array is counted: counting took half of a trial.
HOT_OPTIONS: Any = {**OPTIONS, "_nrt": False}

compiled = numba.njit(cache=True, **OPTIONS)
"""Compile a function. Division by zero is not checked; nothing here divides by what may be zero."""

hot = numba.njit(**HOT_OPTIONS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compile a function that allocates nothing and is called from compiled code only, in every step."""
