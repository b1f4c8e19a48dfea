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
from kvsim.scenario import MAX_SEED, PARAMETERS, Scenario
from kvsim.server import COUNTS, EXPOSURE, MEDIANS, UNIFORM, Oversized, Workload, open_server, run_trials
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
    checked = _check_scenarios(scenarios)
    checked_seeds = _check_seeds(seeds)
    return _trials_table(checked, checked_seeds, *_run(checked, checked_seeds))


def owners(scenarios: Scenario | Iterable[Scenario], seeds: Iterable[int]) -> pd.DataFrame:
    """Run the same trials as `simulate`; list whose pages each oversized request read.

    Returns
    -------
    pandas.DataFrame
        As `owners_table` says.
    """
    return numbered_prompts(owners_table(scenarios, seeds).to_pandas())


def owners_table(scenarios: Scenario | Iterable[Scenario], seeds: Iterable[int]) -> pa.Table:
    """Run the same trials as `simulate`; list whose pages each oversized request read.

    Returns
    -------
    pyarrow.Table
        One row a trial and previous owner, in the order scenarios x seeds x requests: every field of the
        scenario; `seed`; `request`, the owner's number, counted from 0 as they arrive; `tenant`; `pages`
        read of it; `age` in requests finished since it finished, and `age_steps` in steps.
    """
    checked = _check_scenarios(scenarios)
    checked_seeds = _check_seeds(seeds)
    counts, _ = _run(checked, checked_seeds)
    words = seed_words(checked_seeds)
    exposed = counts[:, :, COUNTS.index("distinct_requests")]
    rows = np.empty((int(exposed.sum()), len(EXPOSURE)), dtype=np.int64)
    done = 0
    for places in _by_server(checked):
        # The second run has room for exactly what the first one counted.
        size = int(exposed[places].sum())
        part = rows[done : done + size]
        _run_server([checked[place] for place in places], words, part)
        part[:, 0] = np.array(places)[part[:, 0]]
        done += size
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    columns = {name: arrow_array(rows[:, i], "int64") for i, name in enumerate(EXPOSURE)}
    columns["request"] = arrow_array(rows[:, 2] - 1, "int64")
    which = scenario_columns(checked, checked_seeds[:1])
    table = {name: which[name].take(columns["look"]) for name in PARAMETERS}
    table["seed"] = arrow_array(checked_seeds[rows[:, 1]], "uint64")
    return pa.Table.from_pydict(table | {name: columns[name] for name in EXPOSURE[2:]})


def _run(
    scenarios: Sequence[Scenario], seeds: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Run every server; outcomes are shaped (scenarios, seeds, ...)."""
    words = seed_words(seeds)
    counts = np.empty((len(scenarios), len(words), len(COUNTS)), dtype=np.int64)
    medians = np.empty((*counts.shape[:2], len(MEDIANS)))
    nothing = np.empty((0, len(EXPOSURE)), dtype=np.int64)
    for places in _by_server(scenarios):
        counts[places], medians[places] = _run_server([scenarios[p] for p in places], words, nothing)
    return counts, medians


def _trials_table(
    scenarios: Sequence[Scenario],
    seeds: npt.NDArray[np.uint64],
    counts: npt.NDArray[np.int64],
    medians: npt.NDArray[np.float64],
) -> pa.Table:
    columns: dict[str, Any] = {name: counts[:, :, i].ravel() for i, name in enumerate(COUNTS)}
    columns |= {name: medians[:, :, i].ravel() for i, name in enumerate(MEDIANS)}
    columns["foreign_frac"] = columns["foreign_pages"] / columns["pages"]
    columns["largest_request_frac"] = columns["largest_request_pages"] / columns["pages"]
    columns["largest_tenant_frac"] = columns["largest_tenant_pages"] / columns["pages"]
    pool_pages = np.repeat([scenario.pool_pages for scenario in scenarios], len(seeds))
    columns["kv_cache_usage"] = columns["used_pages"] / pool_pages
    arrays = scenario_columns(scenarios, seeds)
    arrays |= {name: arrow_array(column, column_type(name)) for name, column in columns.items()}
    return pa.Table.from_arrays([arrays[name] for name in TRIAL_COLUMNS], schema=trials_schema())


def _check_scenarios(scenarios: Scenario | Iterable[Scenario]) -> tuple[Scenario, ...]:
    checked = (scenarios,) if isinstance(scenarios, Scenario) else tuple(scenarios)
    if not checked:
        raise ValueError("scenarios: none given; must be at least one")
    for scenario in checked:
        if not isinstance(scenario, Scenario):
            raise TypeError(f"scenarios: {scenario!r} is not allowed; must be a Scenario")
    return checked


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
    scenarios: Sequence[Scenario], words: npt.NDArray[np.uint64], exposures: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Run scenarios that share a server; outcomes are shaped (scenarios, seeds, ...).

    `exposures` is filled with the exposed requests, `look` being the place in `scenarios`.
    """
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
    run_trials(pool, runs, open_server(steps), workload, oversized, words, counts, medians, exposures)
    exposures[:, 0] = np.array(by_warm_up)[exposures[:, 0]]
    back = np.argsort(by_warm_up)
    return counts[back], medians[back]
