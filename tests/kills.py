"""Kill runs of the workflow at random moments: the same command must end in the bytes of an undisturbed run.

By hand: ``python tests/kills.py --kills 50``. Every other kill is of a single job, the others are of the whole
process group, Snakemake and its jobs, all without a chance to clean up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tree import Tree

SECONDS = 12.0
"""A kill comes at most this long after the start."""


def kill_group(tree: Tree, chance: random.Random, *arguments: str, within: float = SECONDS) -> bool:
    """Start a run, and kill it and all its jobs at a random moment; say whether it was still at work."""
    process = tree.start(*arguments)
    time.sleep(chance.uniform(0, within))
    alive = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


def kill_job(tree: Tree, chance: random.Random, *arguments: str, within: float = SECONDS) -> bool:
    """Start a run, and kill one of its jobs at a random moment; say whether there was one."""
    process = tree.start(*arguments)
    time.sleep(chance.uniform(0, within))
    jobs: list[int] = []
    while process.poll() is None and not jobs:
        jobs = list(_jobs(process.pid))
        time.sleep(0.02)
    if jobs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(jobs), signal.SIGKILL)
    process.communicate()
    return bool(jobs)


def _jobs(snakemake: int) -> Iterator[int]:
    """The processes that a run has started, and those that they have."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(snakemake)], capture_output=True, text=True)
    for child in map(int, children.stdout.split()):
        yield child
        yield from _jobs(child)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=20261027)
    parser.add_argument("--config", type=Path, help="a study other than the default one")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        trees = [Tree.copied(Path(folder, name)) for name in ("undisturbed", "killed")]
        if options.config:
            for tree in trees:
                tree.write("config/config.yaml", options.config.read_text())
        undisturbed, killed = trees
        started = time.monotonic()
        undisturbed.run()
        seconds = time.monotonic() - started
        print(f"undisturbed run: {seconds:.0f} s, {len(undisturbed.contents())} files", flush=True)
        hits = 0
        for i in range(options.kills):
            kill = kill_job if i % 2 else kill_group
            hit = kill(killed, chance, within=seconds)
            hits += hit
            killed.run()
            same = killed.contents() == undisturbed.contents()
            print(f"{i + 1}: {kill.__name__} {'hit' if hit else 'came too late'}, same bytes: {same}", flush=True)
            if not same:
                sys.exit(1)
            if hit:
                killed.remove_some_results(chance)
        print(f"{hits} of {options.kills} kills hit a run at work; all ended in the same bytes")


if __name__ == "__main__":
    main()
