"""The command line: ``kvsim`` or ``python -m kvsim``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from kvsim import __version__
from kvsim.grid import Config, ConfigError, Experiment, load_config, overlaps, parse_grid, parse_seeds
from kvsim.scenario import PARAMETERS

STEP_SECONDS = {"random": 0.9e-6}
OTHER_STEP_SECONDS = 0.07e-6
"""Seconds that a step of one server costs by policy, measured with the default load."""

JOB_SECONDS = 1.2
"""Seconds that a job costs besides: a process with NumPy, PyArrow and Numba, and Snakemake's own part."""

FEW_JOBS, MANY_JOBS = 500, 1000
"""Snakemake is at ease up to the first, and at work itself beyond the second."""

SHORT_JOB, LONG_JOB = 1.0, 600.0
"""Seconds of work under which a job is mostly overhead, and over which an interruption loses much."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, or 2 after one line on what is wrong."""
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
        print(f"kvsim: {str(where) or 'not enough memory'}", file=sys.stderr)
        return 2
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
    if options.output:
        # Asked before the work, which may be long, and not after it.
        _check_writable(options.output)

    from kvsim.simulation import simulate_table

    table = simulate_table(scenarios, seeds)
    if options.output:
        from kvsim.grid import grid_arguments
        from kvsim.trials import about_job, write_trials

        write_trials(options.output, table, about_job(grid_arguments(scenarios), seeds))
        print(f"{options.output}: {len(table)} trials of {_count(len(scenarios), 'scenario')}")
    else:
        from kvsim.tables import summarise, summary_text

        print(summary_text(summarise(table)))


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"--output: {path} is a folder; must be a file")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"--output: {path} cannot be written; {folder} is not a folder that one can write to"
        )


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
            len(experiment.jobs),
            _duration(work_seconds(experiment) + JOB_SECONDS * len(experiment.jobs)),
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
    servers: dict[tuple[object, ...], int] = {}
    for scenario in experiment.scenarios:
        server = tuple(getattr(scenario, name) for name in PARAMETERS if name not in _SHARED)
        servers[server] = max(servers.get(server, 0), scenario.warm_steps)
    policy = list(PARAMETERS).index("policy")
    seconds = sum(
        steps * STEP_SECONDS.get(str(s[policy]), OTHER_STEP_SECONDS) for s, steps in servers.items()
    )
    return seconds * len(experiment.seeds)


_SHARED = ("warm_steps", "prompt_tokens")


def advice(config: Config) -> list[str]:
    """Say what to put in `job_by` or `seeds_per_job` where jobs are too small, too many, or too long."""
    lines = []
    for experiment in config.experiments.values():
        jobs = len(experiment.jobs)
        seconds = work_seconds(experiment) / jobs
        levels = {
            name: len({getattr(scenario, name) for scenario in experiment.scenarios})
            for name in experiment.job_by
            if name in experiment.dimensions
        }
        if jobs > MANY_JOBS or (jobs > FEW_JOBS and seconds < SHORT_JOB):
            kept: list[str] = []
            for name in sorted(levels, key=levels.__getitem__):
                product = len(experiment.blocks) * levels[name]
                for other in kept:
                    product *= levels[other]
                if product <= FEW_JOBS:
                    kept.append(name)
            text = f"job_by: [{', '.join(kept)}]"
            if len(experiment.blocks) > FEW_JOBS:
                text += f" and seeds_per_job: {-(-len(experiment.seeds) // 100)}"
            lines.append(f"{experiment.name}: {jobs} jobs of {_duration(seconds)} of work; put {text}")
        elif seconds > LONG_JOB and len(experiment.seeds) > 1:
            block = max(1, int(experiment.seeds_per_job * LONG_JOB / 10 / seconds))
            block = min(block, len(experiment.seeds))
            lines.append(
                f"{experiment.name}: a job is {_duration(seconds)} of work; put seeds_per_job: {block}"
            )
    return lines


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


if __name__ == "__main__":
    sys.exit(main())
