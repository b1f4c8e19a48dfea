"""The command line: ``kvsim`` or ``python -m kvsim``."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from kvsim import __version__
from kvsim.grid import (
    INNER,
    Config,
    ConfigError,
    Experiment,
    grid_arguments,
    load_config,
    overlaps,
    parse_grid,
    parse_seeds,
)
from kvsim.scenario import PARAMETERS

STEP_SECONDS = {
    "random": 0.9e-6,
    "sglang-disaggregated": 0.3e-6,
    "sglang": 0.5e-6,
    "vllm": 0.35e-6,
    "vllm-prefix-caching": 0.35e-6,
    "lmdeploy": 0.25e-6,
}
OTHER_STEP_SECONDS = 0.07e-6
"""Seconds that a step of one server costs by policy, measured with the default load."""

JOB_SECONDS = 1.2
"""Seconds that a job costs besides: a process with NumPy, PyArrow and Numba, and Snakemake's own part."""

FEW_JOBS, MANY_JOBS = 500, 1000
"""Snakemake is at ease up to the first, and at work itself beyond the second."""

SHORT_JOB, GOOD_JOB, LONG_JOB = 1.0, 10.0, 600.0
"""Seconds of work under which a job is mostly overhead, from which it is not, and over which an interruption
loses much."""

CORES = 16
"""Jobs that a study should have at least, if there is any reason to split it."""

MAX_TRIALS = 100_000_000
"""Trials of one ``kvsim run``, which holds them in memory."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status.

    It is 0, 2 after a line on each thing that is wrong, or 130 after an interruption.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except ConfigError as error:
        print("\n".join(error.lines), file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output has read enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, MemoryError) as error:
        where = (
            f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
        )
        print(f"kvsim: {' '.join(str(where).split()) or 'not enough memory'}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kvsim: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kvsim", description="How much of somebody else's context a request reads.")
    parser.add_argument("--version", action="version", version=f"kvsim {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run trials and print a summary, or write them",
        description="Run trials: one for every scenario and seed. Prints a summary, or writes the trials.",
        epilog="parameters:\n"
        + "\n".join(f"  {name:24} {p.doc} (default {p.default})" for name, p in PARAMETERS.items())
        + "\n\nexamples:\n"
        "  kvsim run --set policy=fifo --set utilisation=0.3 --seeds 5:25\n"
        "  kvsim run --set policy=lifo,fifo --set warm_steps=100,1000 --output trials.parquet\n"
        "  kvsim run --grid 'policy=lifo warm_steps=0,100' --grid 'policy=fifo warm_steps=3000'\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PARAMETER=VALUE[,VALUE]",
        help="give a parameter one or several values; several --set make a product",
    )
    run.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="'PARAMETER=VALUE[,VALUE] ...'",
        help="a product of values; several --grid make a union",
    )
    run.add_argument(
        "--seeds",
        default="20261027:20261057",
        metavar="FIRST:STOP",
        help="seeds, STOP excluded (default %(default)s)",
    )
    run.add_argument("--output", type=Path, metavar="FILE", help="write the trials to a Parquet file")
    run.add_argument(
        "--owners",
        type=Path,
        metavar="FILE",
        help="write whose pages were read to a Parquet file: a row for every trial and previous owner",
    )
    run.set_defaults(run=_run)

    plan = commands.add_parser(
        "plan",
        help="say what a config expands to",
        description="Say what a config expands to: experiments, scenarios, trials, jobs and expected time. "
        "Nothing is run.",
        epilog="example:\n  kvsim plan config/config.yaml\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plan.add_argument("config", nargs="+", type=Path, help="YAML file; later ones change earlier ones")
    plan.set_defaults(run=_plan)
    return parser


def _run(options: argparse.Namespace) -> None:
    if options.set and options.grid:
        raise ValueError("--set and --grid: only one of them is allowed; --grid takes what --set takes")
    scenarios = parse_grid(options.grid or [" ".join(options.set)])
    seeds = parse_seeds(options.seeds)
    trials = len(scenarios) * (seeds.stop - seeds.start)
    if trials > MAX_TRIALS:
        raise ValueError(f"{trials} trials are not allowed; must be at most {MAX_TRIALS} at once")
    for name in ("output", "owners"):
        if getattr(options, name):
            # Asked before the work, which may be long, and not after it.
            _check_writable(getattr(options, name), f"--{name}")

    from kvsim.simulation import owners_table, simulate_table
    from kvsim.trials import about_job, write_table, write_trials

    about = about_job(grid_arguments(scenarios), seeds)
    table = simulate_table(scenarios, seeds)
    if options.output:
        write_trials(options.output, table, about)
        print(f"{options.output}: {len(table)} trials of {_count(len(scenarios), 'scenario')}")
    if options.owners:
        owners = owners_table(scenarios, seeds)
        write_table(options.owners, owners, about)
        print(f"{options.owners}: {len(owners)} previous owners in {len(table)} trials")
    if not options.output and not options.owners:
        from kvsim.tables import summarise, summary_text

        print(summary_text(summarise(table)))


def _check_writable(path: Path, option: str) -> None:
    if path.is_dir():
        raise ValueError(f"{option}: {path} is a folder; must be a file")
    if path.exists() and not path.is_file():
        raise ValueError(f"{option}: {path} is a device; must be a file")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    try:
        # Tried rather than asked for: permissions do not tell of file systems that are read-only or full.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{option}: {path} cannot be written; {folder}: {error.strerror}") from None


def _plan(options: argparse.Namespace) -> None:
    from tabulate import tabulate

    from kvsim import figures

    config = load_config(options.config, figure_check=figures.check)
    rows = [
        [
            experiment.name,
            ", ".join(experiment.dimensions) or "-",
            len(experiment.scenarios),
            f"{experiment.seeds[0]} .. {experiment.seeds[-1]}",
            len(experiment.scenarios) * len(experiment.seeds),
            len(experiment.cells) * len(experiment.blocks),
            _duration(
                work_seconds(experiment) + JOB_SECONDS * len(experiment.cells) * len(experiment.blocks)
            ),
        ]
        for experiment in config.experiments.values()
    ]
    heads = ["experiment", "dimensions", "scenarios", "seeds", "trials", "jobs", "time on one core"]
    print(tabulate(rows, heads, disable_numparse=True, colalign=("left", "left", *["right"] * 5)))
    for line in [*overlaps(config), *advice(config)]:
        print(f"note: {line}")


def work_seconds(experiment: Experiment) -> float:
    """Seconds that the simulation of an experiment takes on one core: a rough estimate.

    Scenarios that differ only in warm-up or prompt share a server, which costs as much as its longest
    warm-up.
    """
    outer = [name for name in PARAMETERS if name not in INNER]
    seconds: dict[tuple[object, ...], float] = {}
    for scenario in experiment.scenarios:
        server = tuple(getattr(scenario, name) for name in outer)
        warm_up = scenario.warm_steps * STEP_SECONDS.get(scenario.policy, OTHER_STEP_SECONDS)
        seconds[server] = max(seconds.get(server, 0.0), warm_up)
    return sum(seconds.values()) * len(experiment.seeds)


def advice(config: Config) -> list[str]:
    """Say what to put in `job_by` or `seeds_per_job` where jobs are too small, too many, or too long.

    One line for each experiment that would run better; none is left once the advice is taken.
    """
    lines = []
    for experiment in config.experiments.values():
        jobs = len(experiment.cells) * len(experiment.blocks)
        seconds = work_seconds(experiment) / jobs
        too_many = jobs > MANY_JOBS or (jobs > FEW_JOBS and seconds < SHORT_JOB)
        if too_many or seconds > LONG_JOB:
            changes = _better_split(experiment, fewer_cells=too_many)
            if changes:
                stated = " and ".join(f"{key}: {value}" for key, value in changes.items())
                lines.append(
                    f"{experiment.name}: {_count(jobs, 'job')} of {_duration(seconds)} of work; put {stated}"
                )
    return lines


def _better_split(experiment: Experiment, fewer_cells: bool) -> dict[str, str]:
    """The keys of an experiment that make its jobs fit, where they differ from what they are."""
    good = min(FEW_JOBS, max(CORES, int(work_seconds(experiment) / GOOD_JOB)))
    cells, changes = len(experiment.cells), {}
    if fewer_cells and cells > good:
        kept: list[str] = []
        levels = _split_levels(experiment)
        for name in sorted(levels, key=levels.__getitem__):
            if math.prod(levels[other] for other in (*kept, name)) <= good:
                kept.append(name)
        kept = [name for name in PARAMETERS if name in kept]
        cells = len(replace(experiment, job_by=tuple(kept)).cells)
        changes["job_by"] = f"[{', '.join(kept)}]"
    seeds = len(experiment.seeds)
    blocks = max(1, min(good // cells, seeds))
    per_job = -(-seeds // blocks)
    if -(-seeds // per_job) != len(experiment.blocks):
        changes["seeds_per_job"] = str(per_job)
    return changes


def _split_levels(experiment: Experiment) -> dict[str, int]:
    """How many values each parameter takes that splits the jobs of an experiment."""
    return {
        name: len({getattr(scenario, name) for scenario in experiment.scenarios})
        for name in experiment.job_by
        if name in experiment.dimensions
    }


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


if __name__ == "__main__":
    sys.exit(main())
