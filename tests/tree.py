"""Runs of the workflow in a folder of their own, for tests and scripts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PARTS = ("Snakefile", "workflow", "config", "profiles")


class Tree:
    """A copy of the workflow, which can be run and changed.

    It uses the package of this checkout, whose compiled code is kept by its place, until it gets its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results"

    @classmethod
    def copied(cls, folder: Path) -> Tree:
        """Copy the workflow."""
        tree = cls(folder)
        for part in PARTS:
            tree.copy(part)
        return tree

    def copy(self, part: str) -> None:
        """Copy a file or a folder of the project."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_file():
            shutil.copy2(ROOT / part, self.folder / part)
        else:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, self.folder / part, ignore=ignored)

    def clone(self, folder: Path) -> Tree:
        """Copy it with its results and with what Snakemake knows of them."""
        shutil.copytree(self.folder, folder)
        return Tree(folder)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def start(self, *arguments: str, cores: int = 2) -> subprocess.Popen[str]:
        """Start Snakemake in a process group of its own."""
        command = [sys.executable, "-m", "snakemake", "--cores", str(cores), *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, cores: int = 2, status: int = 0) -> str:
        """Run Snakemake and return what it prints; its exit status must be the one expected."""
        process = self.start(*arguments, cores=cores)
        printed, _ = process.communicate()
        assert process.returncode == status, printed
        return printed

    def planned(self, *arguments: str) -> dict[str, int]:
        """Count the jobs of a dry run by rule, `all` apart."""
        printed = self.run("--dry-run", "--quiet", "rules", *arguments)
        table = re.search(r"^job +count\n-.*\n((?:\w+ +\d+\n)+)", printed, re.MULTILINE)
        if table is None:
            assert "Nothing to be done" in printed, printed
            return {}
        counts = dict(line.split() for line in table[1].splitlines())
        return {rule: int(count) for rule, count in counts.items() if rule not in ("all", "total")}

    def contents(self) -> dict[str, bytes]:
        """Every file under results by its path."""
        files = sorted(path for path in self.results.rglob("*") if path.is_file())
        return {str(path.relative_to(self.results)): path.read_bytes() for path in files}
