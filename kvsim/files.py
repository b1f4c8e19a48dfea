"""Files that are whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name beside `path`, which becomes `path` once the block ends well.

    Whoever reads `path` meets the old file or the whole new one. If the block raises, the
    temporary file is removed and `path` stays as it was; a killed process leaves at most a hidden
    ``.part`` file.

    Parameters
    ----------
    path : path-like
        The file to write; its folder is made if need be.

    Raises
    ------
    OSError
        If the folder or the file cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: writers choose a format by it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, UTF-8 with Unix line ends, under a temporary name first."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
