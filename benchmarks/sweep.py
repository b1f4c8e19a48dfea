"""Time a sweep of a million trials from config to summary, and the plan of ten thousand jobs.

    python benchmarks/sweep.py

The sweep runs on two cores. It is compared with the compiled simulator's own time for these trials,
on the same two cores in the same run: at most 2.2 times as long, and no process over 1.5 GB. A dry
run of 10,000 jobs takes at most 20 s.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from tree import Tree

from kvsim.grid import Job, load_config

CORES = 2
SWEEP = """\
seeds: {first: 1, count: SEEDS}
experiments:
  sweep:
    grid:
      policy: [lifo, fifo]
      utilisation: {from: 0.2, to: 0.6, step: 0.1}
      request_tokens_sigma: [0.9, 1.0, 1.1, 1.2, 1.3]
      request_lifetime_steps: {from: 10, to: 100, step: 10}
      tenants: {from: 50, to: 500, step: 50}
    job_by: [policy, utilisation]
"""
"""5,000 scenarios of 3,000 steps, each on servers of its own."""

MANY_JOBS = """\
experiments:
  many:
    grid:
      policy: [lifo, fifo]
      utilisation: {from: 0.01, to: 0.5, step: 0.01}
      tenants: {from: 1, to: 100, step: 1}
"""


def simulate_job(job: Job) -> int:
    """Simulate the trials of a job, and do nothing with them."""
    from kvsim.simulation import simulate_table

    return len(simulate_table(job.scenarios, job.seeds))


def kernel_seconds(jobs: tuple[Job, ...]) -> float:
    """Seconds that the simulator takes for the trials of jobs, shared by two processes that are warm."""
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        warm_up = [Job("", "", range(1), job.scenarios, "") for job in jobs]
        pool.map(simulate_job, warm_up, chunksize=len(jobs) // CORES)
        start = time.perf_counter()
        pool.map(simulate_job, jobs, chunksize=1)
        return time.perf_counter() - start


def workflow_seconds(tree: Tree, *arguments: str) -> float:
    """Seconds that Snakemake takes, from its start to its end."""
    start = time.perf_counter()
    tree.run(*arguments, cores=CORES)
    return time.perf_counter() - start


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=200, help="of each scenario (default %(default)s)")
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree.copied(Path(folder, "many"))
        tree.write("config/config.yaml", MANY_JOBS)
        seconds = workflow_seconds(tree, "--dry-run", "--quiet", "rules")
        print(f"dry run of 10,000 jobs: {seconds:.1f} s", flush=True)

        tree = Tree.copied(Path(folder, "sweep"))
        tree.write("config/config.yaml", SWEEP.replace("SEEDS", str(seeds)))
        jobs = load_config([tree.folder / "config" / "config.yaml"]).experiments["sweep"].jobs
        trials = sum(len(job.scenarios) * len(job.seeds) for job in jobs)
        alone = kernel_seconds(jobs)
        print(f"simulator alone, {trials:,} trials on {CORES} cores: {alone:.1f} s", flush=True)
        whole = workflow_seconds(tree)
        print(f"config to summary, {len(jobs)} jobs: {whole:.1f} s, {whole / alone:.2f} times as long")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(f"peak memory of a process: {peak:.2f} GB")
        subprocess.run(["du", "-sh", tree.results], check=True)


if __name__ == "__main__":
    main()
