"""The reference study's tables A to D, made from trials: what kvsim is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvsim.scenario import PARAMETERS, Scenario, Value, as_text

if TYPE_CHECKING:
    import pandas as pd

    Chosen = list[tuple[Scenario, "pd.DataFrame"]]


class Study(NamedTuple):
    """The trials behind one table: every scenario with every seed."""

    scenarios: tuple[Scenario, ...]
    seeds: range


class ExperimentLike(Protocol):
    """What `covers` needs to know of an experiment."""

    @property
    def scenarios(self) -> Sequence[Scenario]:
        """All of them, without repetition."""

    @property
    def seeds(self) -> range:
        """Those of every scenario."""


_FIRST_SEED = 20261027
_SEEDS = range(_FIRST_SEED, _FIRST_SEED + 30)
_BASE = Scenario()

REFERENCE: dict[str, Study] = {
    "warm-up": Study(tuple(Scenario(warm_steps=steps) for steps in (0, 1, 5, 20, 100, 500, 3000)), _SEEDS),
    "policies": Study(
        tuple(
            Scenario(policy=policy, utilisation=cap)
            for policy in ("lifo", "fifo", "random")
            for cap in (0.3, 0.6)
        ),
        _SEEDS,
    ),
    "replies": Study((_BASE,), range(_FIRST_SEED, _FIRST_SEED + 100)),
    "prompts": Study(
        tuple(
            Scenario(prompt_tokens=tokens)
            for tokens in (_BASE.prefill_pool_tokens + 1, 850_000, _BASE.context_tokens)
        ),
        _SEEDS,
    ),
}
"""What tables A (`warm-up`), B (`policies`), C (`replies`) and D (`prompts`) are made of, by experiment."""


def covers(experiments: Mapping[str, ExperimentLike]) -> bool:
    """Whether these experiments hold all trials of the reference's tables.

    Parameters
    ----------
    experiments : mapping of str to experiment
        ``Config.experiments``: anything with `scenarios` and `seeds`. More of either does no harm.
    """
    return all(
        name in experiments
        and set(study.scenarios) <= set(experiments[name].scenarios)
        and all(seed in experiments[name].seeds for seed in study.seeds)
        for name, study in REFERENCE.items()
    )


def printed(trials: Mapping[str, pd.DataFrame]) -> str:
    """Print the reference's tables A to D, byte for byte.

    Parameters
    ----------
    trials : mapping of str to pandas.DataFrame
        Trials of the experiments that `REFERENCE` names. Other scenarios and seeds among them are
        passed over; rows may come in any order.

    Raises
    ------
    ValueError
        If an experiment, or one of its trials, is missing.
    """
    blocks = [_sizes(), *(table(_chosen(trials, name)) for name, table in _TABLES.items())]
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _chosen(trials: Mapping[str, pd.DataFrame], name: str) -> Chosen:
    """Pick the trials of one table: each scenario's, in the order of the seeds."""
    if name not in trials:
        raise ValueError(f"experiment {name}: its trials are missing")
    study, frame = REFERENCE[name], trials[name]
    frame = frame[(frame["seed"] >= study.seeds[0]) & (frame["seed"] <= study.seeds[-1])]
    chosen = []
    for scenario in study.scenarios:
        match = np.ones(len(frame), dtype=bool)
        for parameter in PARAMETERS:
            match &= _equal(frame[parameter], getattr(scenario, parameter))
        rows = frame[match].drop_duplicates("seed").sort_values("seed")
        if len(rows) != len(study.seeds):
            raise ValueError(
                f"experiment {name}: {len(study.seeds) - len(rows)} of {len(study.seeds)} trials "
                f"of {scenario.name} are missing"
            )
        chosen.append((scenario, rows))
    return chosen


def _equal(column: pd.Series, value: Value) -> npt.NDArray[np.bool_]:
    """Compare with a canonical value; a column of words and integers may spell the integers."""
    if column.dtype.kind in "iuf":
        return (column == value).to_numpy()
    return (column.map(as_text) == as_text(value)).to_numpy()


def _sizes() -> list[str]:
    page = _BASE.page_size
    return [
        f"page={page} tokens, prefill pool={_BASE.prefill_pool_tokens // page} pages, "
        f"context={_BASE.context_tokens // page} pages, decode pool={_BASE.pool_pages} pages"
    ]


def _warm_up(chosen: Chosen) -> list[str]:
    base = chosen[0][0]
    lines = [
        "A. Fraction of the oversized request's context that is another request's leftovers,",
        " by how much traffic the pool has seen first "
        f"({base.policy.upper()} allocator, {base.utilisation:.0%} utilization)",
        " warm_steps mean_foreign_frac never_written_frac detected_by_content_check",
    ]
    for scenario, rows in chosen:
        foreign = _mean(rows["foreign_frac"])
        never_written = _mean(rows["never_written"] / rows["pages"])
        detected = _mean(rows["foreign_pages"] > 0)
        lines.append(f" {scenario.warm_steps:>9} {foreign:>17.3f} {never_written:>18.3f} {detected:>25.2f}")
    return lines


def _policies(chosen: Chosen) -> list[str]:
    lines = [
        f"B. After warm-up ({chosen[0][0].warm_steps} steps): who is exposed, "
        "by allocator policy and utilization",
        " policy util foreign_frac distinct_requests distinct_tenants median_age_in_finishes",
    ]
    for scenario, rows in chosen:
        # pandas leaves the trials without a foreign page out of the median.
        age = rows["median_age"].median()
        lines.append(
            f" {scenario.policy:>6} {scenario.utilisation:.1f} {_mean(rows['foreign_frac']):>12.3f} "
            f"{_mean(rows['distinct_requests']):>17.1f} {_mean(rows['distinct_tenants']):>16.1f} {age:>22.0f}"
        )
    return lines


def _replies(chosen: Chosen) -> list[str]:
    (scenario, rows), n = chosen[0], len(chosen[0][1])
    share, tenants = rows["foreign_frac"], rows["distinct_tenants"]
    return [
        f"C. {n} oversized requests (one per server) on a warm pool "
        f"({scenario.warm_steps} steps, {scenario.policy.upper()}, {scenario.utilisation:.0%})",
        " HTTP status of every reply: 200 (the stale pages decode as normal tokens)",
        f" replies with >=1 foreign page : {(rows['foreign_pages'] > 0).sum()} / {n}",
        f" foreign share of context : min {share.min():.4f} max {share.max():.4f}",
        f" foreign tenants per reply : min {tenants.min()} median {tenants.median():.0f} max {tenants.max()}",
    ]


def _prompts(chosen: Chosen) -> list[str]:
    return [
        "D. Smallest and largest rejected prompt, warm pool",
        *(
            f" {scenario.prompt_tokens:>9} tokens -> pages {rows['pages'].iloc[0]:>6}, "
            f"foreign share {_mean(rows['foreign_frac']):.3f}"
            for scenario, rows in chosen
        ),
    ]


def _mean(values: pd.Series[float] | pd.Series[int] | pd.Series[bool]) -> float:
    """Average as NumPy does, so that the last digit rounds as in the reference."""
    return float(values.to_numpy(dtype=np.float64).mean())


_TABLES: dict[str, Callable[[Chosen], list[str]]] = {
    "warm-up": _warm_up,
    "policies": _policies,
    "replies": _replies,
    "prompts": _prompts,
}
