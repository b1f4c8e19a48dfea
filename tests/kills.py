"""Kill runs of the workflow at random moments: the same command must end in an undisturbed run's bytes.

By hand: ``python tests/kills.py --kills 50``. A kill is of Snakemake and all its jobs, or of one job alone,
and leaves them no chance to clean up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tree import Tree

SECONDS = 8.0
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


def kill_and_go_on(tree: Tree, kills: int, within: float, chance: random.Random) -> Iterator[str]:
    """Kill runs, each started by the same command, until so many were hit; give a line for each.

    What a run has finished stays for the next. Once all is done, the study starts again from nothing.
    """
    hit = 0
    while hit < kills:
        kill = chance.choice([kill_group, kill_job])
        if kill(tree, chance, within=within):
            hit += 1
            yield f"{hit}: {kill.__name__}, {len(tree.contents())} files so far"
        else:
            yield "came to its end"
            tree.run()
            yield "whole"
            shutil.rmtree(tree.results)


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=20261027, help="of the moments (default %(default)s)")
    parser.add_argument("--config", type=Path, help="another study than config/config.yaml")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trees = [Tree.copied(Path(folder, name)) for name in ("undisturbed", "killed")]
        for tree in trees if options.config else ():
            tree.write("config/config.yaml", options.config.read_text())
        undisturbed, killed = trees
        start = time.monotonic()
        undisturbed.run()
        seconds = time.monotonic() - start
        whole = undisturbed.contents()
        print(f"undisturbed: {seconds:.0f} s, {len(whole)} files", flush=True)

        for line in kill_and_go_on(killed, options.kills, seconds, random.Random(options.seed)):
            print(line, flush=True)
            if line == "whole" and killed.contents() != whole:
                sys.exit("its bytes differ from those of the undisturbed run")
        killed.run()
        if killed.contents() != whole:
            sys.exit("the bytes differ from those of the undisturbed run")
        print(f"{options.kills} kills: the bytes are those of the undisturbed run")


if __name__ == "__main__":
    main()
