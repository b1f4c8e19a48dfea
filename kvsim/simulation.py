"""From scenarios and seeds to a table of trials: the entry to the compiled simulator."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvsim.outcomes import TRIAL_COLUMNS, column_type
from kvsim.pcg64 import seed_words
from kvsim.policies import open_pool
from kvsim.scenario import MAX_SEED, Scenario
from kvsim.server import COUNTS, MEDIANS, UNIFORM, Oversized, Workload, open_server, run_trials
from kvsim.trials import arrow_array, numbered_prompts, scenario_columns, trials_schema

if TYPE_CHECKING:
    import pandas as pd


def simulate(scenarios: Scenario | Iterable[Scenario], seeds: Iterable[int]) -> pd.DataFrame:
    """Run one trial for every scenario and seed.

    Parameters
    ----------
    scenarios : Scenario or iterable of Scenario
        Those that differ only in `warm_steps` or `prompt_tokens` share one warm-up.
    seeds : iterable of int
        Any integers 0 .. 2**64 - 1. A trial's random numbers are those of
        ``numpy.random.default_rng(seed)``.

    Returns
    -------
    pandas.DataFrame
        One row a trial, in the order scenarios x seeds: every field of the scenario, `seed`, and the
        outcomes (`kvsim.outcomes.OUTCOMES` says what each is, and its unit).

    Raises
    ------
    ValueError
        If there is no scenario, or no seed, or a seed is out of range.
    TypeError
        If a scenario is not a `Scenario`.
    """
    return numbered_prompts(simulate_table(scenarios, seeds).to_pandas())


def simulate_table(scenarios: Scenario | Iterable[Scenario], seeds: Iterable[int]) -> pa.Table:
    """Run the same trials as `simulate`, into an Arrow table of `trials_schema`.

    A parameter that takes words beside integers (`prompt_tokens`) is text here.
    """
    scenarios = (scenarios,) if isinstance(scenarios, Scenario) else tuple(scenarios)
    if not scenarios:
        raise ValueError("scenarios: none given; must be at least one")
    for scenario in scenarios:
        if not isinstance(scenario, Scenario):
            raise TypeError(f"scenarios: {scenario!r} is not allowed; must be a Scenario")
    checked_seeds = _check_seeds(seeds)
    words = seed_words(checked_seeds)

    counts = np.empty((len(scenarios), len(words), len(COUNTS)), dtype=np.int64)
    medians = np.empty((*counts.shape[:2], len(MEDIANS)))
    for places in _by_server(scenarios):
        counts[places], medians[places] = _run_server([scenarios[place] for place in places], words)

    columns: dict[str, Any] = {name: counts[:, :, i].ravel() for i, name in enumerate(COUNTS)}
    columns |= {name: medians[:, :, i].ravel() for i, name in enumerate(MEDIANS)}
    columns["foreign_frac"] = columns["foreign_pages"] / columns["pages"]
    columns["largest_request_frac"] = columns["largest_request_pages"] / columns["pages"]
    columns["largest_tenant_frac"] = columns["largest_tenant_pages"] / columns["pages"]
    pool_pages = np.repeat([scenario.pool_pages for scenario in scenarios], len(words))
    columns["kv_cache_usage"] = columns["used_pages"] / pool_pages
    arrays = scenario_columns(scenarios, checked_seeds)
    arrays |= {name: arrow_array(column, column_type(name)) for name, column in columns.items()}
    return pa.Table.from_arrays([arrays[name] for name in TRIAL_COLUMNS], schema=trials_schema())


def _check_seeds(seeds: Iterable[int]) -> npt.NDArray[np.uint64]:
    if isinstance(seeds, range) and seeds and min(seeds) >= 0 and max(seeds) <= MAX_SEED:
        # Python's integers, one by one, only where NumPy's arange would overflow.
        if max(seeds) + abs(seeds.step) <= MAX_SEED and seeds.step > 0:
            return np.arange(seeds.start, seeds.stop, seeds.step, dtype=np.uint64)
        return np.array(list(seeds), dtype=np.uint64)
    checked = []
    try:
        listed = list(seeds)
    except TypeError:
        raise ValueError(f"seeds: {seeds!r} is not allowed; must be several integers") from None
    for seed in listed:
        try:
            if isinstance(seed, bool | np.bool_) or not 0 <= operator.index(seed) <= MAX_SEED:
                raise TypeError
        except TypeError:
            message = f"seeds: {seed!r} is not allowed; must be an integer from 0 to {MAX_SEED}"
            raise ValueError(message) from None
        checked.append(operator.index(seed))
    if not checked:
        raise ValueError("seeds: none given; must be at least one")
    return np.array(checked, dtype=np.uint64)


def _by_server(scenarios: Sequence[Scenario]) -> Iterator[list[int]]:
    """Group the places of the scenarios that share a server."""
    servers: dict[Scenario, list[int]] = {}
    for place, scenario in enumerate(scenarios):
        if scenario.decode_tokens_per_step:
            # Requests that grow while the oversized one waits change the server: one look at each.
            yield [place]
            continue
        server = replace(scenario, warm_steps=0, prompt_tokens=1)
        servers.setdefault(server, []).append(place)
    yield from servers.values()


def _run_server(
    scenarios: Sequence[Scenario], words: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Run scenarios that share a server; outcomes are shaped (scenarios, seeds, ...)."""
    one = scenarios[0]
    by_warm_up = sorted(range(len(scenarios)), key=lambda place: scenarios[place].warm_steps)
    prompts = [scenarios[place].prompt_tokens for place in by_warm_up]
    oversized = Oversized(
        warm_steps=np.array([scenarios[place].warm_steps for place in by_warm_up], dtype=np.int64),
        prompt_tokens=np.array([UNIFORM if p == "uniform" else p for p in prompts], dtype=np.int64),
        shortest=one.prefill_pool_tokens + 1,
        longest=one.context_tokens,
    )
    finish_p = 1.0 / one.request_lifetime_steps
    workload = Workload(
        cap_pages=one.utilisation * one.pool_pages,
        page_size=one.page_size,
        log_median=float(np.log(one.request_tokens_median)),
        sigma=one.request_tokens_sigma,
        tokens_min=one.request_tokens_min,
        tokens_max=one.request_tokens_max,
        tenants=one.tenants,
        finish_p=finish_p,
        finish_log_q=math.log1p(-finish_p) if finish_p < 1 else -math.inf,
        decode_tokens=one.decode_tokens_per_step,
    )
    steps = int(oversized.warm_steps[-1])
    pool, runs = open_pool(one.policy, one.pool_pages, one.page_size, steps)
    counts = np.empty((len(scenarios), len(words), len(COUNTS)), dtype=np.int64)
    medians = np.empty((*counts.shape[:2], len(MEDIANS)))
    run_trials(pool, runs, open_server(steps), workload, oversized, words, counts, medians)
    back = np.argsort(by_warm_up)
    return counts[back], medians[back]
