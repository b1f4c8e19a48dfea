"""Which version of the model a result comes from."""

from __future__ import annotations

import hashlib
from pathlib import Path

MODEL_MODULES = ("scenario", "outcomes", "compiled", "pcg64", "chains", "policies", "server", "simulation")
"""The modules of kvsim that can change a result."""


def model_digest() -> str:
    """Digest of the sources that can change a result, 16 hexadecimal digits."""
    return modules_digest(MODEL_MODULES)


def modules_digest(modules: tuple[str, ...]) -> str:
    """Digest of the sources of some modules of kvsim, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]
