"""Time the compiled simulator against the plain-Python model, in one run, on one thread.

    python benchmarks/kernel.py

Prints trials a second and ratios per policy, how a trial's cost grows with `warm_steps` and
`pool_pages`, what 28 looks at one server cost, and the peak memory of this process. Each figure is the
best of several rounds, in which what is compared runs in turn: absolute times drift with the machine,
ratios hardly do.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

import model

from kvsim import Scenario, simulate
from kvsim.scenario import POLICIES

SEEDS = range(2000)


def seconds(work: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Time each piece of work, in turn, and return the least seconds a trial."""
    for run in work.values():
        run()  # Compiles, or loads what is compiled.
    best = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, run in work.items():
            start = time.process_time()
            trials = run()
            best[name] = min(best[name], (time.process_time() - start) / trials)
    return best


def kernel(scenarios: Scenario | list[Scenario], seeds: range = SEEDS) -> Callable[[], int]:
    """Work for `seconds`: servers of the compiled simulator, counted by seed."""

    def run() -> int:
        simulate(scenarios, seeds)
        return len(seeds)

    return run


def plain(scenario: Scenario, trials: int) -> Callable[[], int]:
    """Work for `seconds`: trials of the plain-Python model."""

    def run() -> int:
        for seed in range(trials):
            model.trial(scenario, seed)
        return trials

    return run


def main() -> None:
    """Print every table."""
    print(f"{'policy':>24} {'kernel ms':>10} {'trials/s':>9} {'model ms':>9} {'ratio':>7} {'x lifo':>7}")
    lifo = None
    for policy in POLICIES:
        scenario = Scenario(policy=policy)
        slow = policy == "random"
        seeds = range(200) if slow else SEEDS
        best = seconds({"kernel": kernel(scenario, seeds), "model": plain(scenario, 1 if slow else 4)}, 5)
        lifo = lifo or best["kernel"]
        print(
            f"{policy:>24} {best['kernel'] * 1e3:10.3f} {1 / best['kernel']:9.0f} {best['model'] * 1e3:9.1f} "
            f"{best['model'] / best['kernel']:7.0f} {best['kernel'] / lifo:7.2f}"
        )

    prompts = ("uniform", 681_281, 850_000, 1_048_576)
    variants: dict[str, Scenario | list[Scenario]] = {
        "lifo, 3,000 steps, 32,768 pages": Scenario(),
        **{f"{steps:,} steps": Scenario(warm_steps=steps) for steps in (300, 1000, 10_000, 30_000)},
        **{f"{pages:,} pages": Scenario(pool_pages=pages) for pages in (131_072, 1_048_576)},
        "28 warm-ups and prompts, one server": [
            Scenario(warm_steps=steps, prompt_tokens=prompt)
            for steps in (0, 1, 5, 20, 100, 500, 3000)
            for prompt in prompts
        ],
    }
    best = seconds({name: kernel(scenarios) for name, scenarios in variants.items()}, 5)
    print(f"\n{'server':>36} {'ms':>8} {'ratio':>7}")
    base = next(iter(best.values()))
    for name, each in best.items():
        print(f"{name:>36} {each * 1e3:8.3f} {each / base:7.3f}")
    print(f"\npeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
