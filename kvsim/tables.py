"""From trials to the tables that people read and cite.

`summarise` makes one row a scenario: every metric's mean with its Monte Carlo standard error and
95% interval, median, extremes, and counts of what could not be averaged. `compare` makes paired
differences against a baseline. `write_summary` and friends put them into words and files.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tabulate import tabulate

from kvsim.files import atomic_write, write_text
from kvsim.outcomes import OUTCOMES, column_type
from kvsim.scenario import PARAMETERS, Scenario, Value, as_text
from kvsim.statistics import holm, mean_interval, median_interval, paired_difference, share_interval

Trials: TypeAlias = "pa.Table | pd.DataFrame"
Column = Callable[[str], npt.NDArray[Any]]
"""Gives a column of trials by name."""

CAP_BINDS_FROM = 0.05
"""A cap is said to bind if at least this share of a scenario's servers stand at it."""


@dataclass(frozen=True)
class Metric:
    """What a table or a figure can show of a trial: an outcome, or what follows from several.

    Attributes
    ----------
    name : str
        The first part of its columns.
    unit, label, doc : str
        As in `kvsim.outcomes.Outcome`.
    values : callable
        Its value in every trial, from the columns of a table of trials.
    share : bool
        Whether it lies between 0 and 1.
    of_trials : bool
        Whether it is true or false in a trial: its mean is a share of trials.
    missing : float or None
        The value that stands for "this trial has none".
    """

    name: str
    unit: str
    label: str
    doc: str
    values: Callable[[Column], npt.NDArray[Any]]
    share: bool = False
    of_trials: bool = False
    missing: float | None = None


def _outcome_metrics() -> Iterable[Metric]:
    for name, outcome in OUTCOMES.items():
        yield Metric(
            name=name,
            unit=outcome.unit,
            label=outcome.label,
            doc=outcome.doc,
            values=lambda column, name=name: column(name),  # type: ignore[misc]
            share=outcome.share,
            missing=outcome.missing,
        )


_DERIVED = (
    Metric(
        "never_written_frac",
        "share of context",
        "never-written share of context",
        "never_written / pages",
        lambda column: column("never_written") / column("pages"),
        share=True,
    ),
    Metric(
        "exposed",
        "share of trials",
        "exposed",
        "whether at least one foreign page was read",
        lambda column: column("foreign_pages") > 0,
        share=True,
        of_trials=True,
    ),
    Metric(
        "at_cap",
        "share of trials",
        "at the cap",
        "whether used pages stand at or above the cap on admission when the warm-up ends",
        lambda column: column("used_pages") >= column("utilisation") * column("pool_pages"),
        share=True,
        of_trials=True,
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*_outcome_metrics(), *_DERIVED)}
"""Every metric by name: the outcomes in their order, then what is derived from them."""

MAIN_METRICS = (
    "kv_cache_usage",
    "exposed",
    "foreign_frac",
    "never_written_frac",
    "distinct_requests",
    "distinct_tenants",
    "median_age",
)
"""The metrics that a table for reading shows unless told otherwise."""


def chosen_metrics(names: Iterable[str]) -> list[Metric]:
    """Look metrics up.

    Raises
    ------
    ValueError
        If a name is unknown; the message gives the nearest known ones.
    """
    metrics = []
    for name in names:
        if name not in METRICS:
            near = difflib.get_close_matches(name, METRICS) or list(METRICS)
            raise ValueError(f"metrics: {name!r} is not allowed; must be one of {', '.join(near)}")
        metrics.append(METRICS[name])
    return metrics


# --- Trials to numbers -----------------------------------------------------------------------------


def summarise(trials: Trials, scenarios: Sequence[Scenario] | None = None) -> pd.DataFrame:
    """Summarise trials, one row a scenario.

    Parameters
    ----------
    trials : pyarrow.Table or pandas.DataFrame
        Trials with the rows of each scenario together, as `kvsim.simulate` and `kvsim.trials.collect`
        give them. A part of an experiment may be summarised at a time, and the results concatenated.
    scenarios : sequence of Scenario, optional
        What the rows must be trials of, in order.

    Returns
    -------
    pandas.DataFrame
        All parameters; `trials`, the number of them; `cap_binds`: whether at least 5% of the
        servers stand at their cap on admission when the warm-up ends (where none does,
        `utilisation` changes nothing, and `kv_cache_usage` is what the traffic alone makes it).
        Then, for every metric m of `METRICS`: `m_mean`, `m_se` (Monte Carlo standard error),
        `m_low` and `m_high` (95% interval), `m_median` with `m_median_low` and `m_median_high`
        (order statistics; NaN for fewer than six), `m_min`, `m_max`. The interval is Wilson's
        for shares of trials; `kvsim.statistics.mean_interval`'s otherwise, with bounds 0 and 1 for
        shares. Shares of trials have no median and extremes, but `m_mean`, the share. Besides:
        `m_missing` counts the trials without a value, which are in no other number; `m_constant`
        says that all values are equal, hence the interval of zero width; `m_clipped` that the
        interval of a share would have left [0, 1].

    Raises
    ------
    ValueError
        If there are no trials, if the rows of one scenario do not stand together, or if they are
        not of `scenarios`.
    """
    column = _columns(trials)
    starts, lengths = _blocks(column, len(trials))
    parameters = _parameters(column, starts)
    if scenarios is not None:
        _check_scenarios(parameters, scenarios)
    parts = []
    # Scenarios with equally many seeds form one array; usually that is all of them.
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        rows = starts[places][:, None] + np.arange(length)
        summary = {"trials": np.full(len(places), length)}
        for metric in METRICS.values():
            summary |= _summary_columns(metric, metric.values(column)[rows])
        parts.append(pd.DataFrame(summary, index=places))
    summary_frame = (pd.concat(parts) if len(parts) > 1 else parts[0]).sort_index()
    binds = (summary_frame["at_cap_mean"] >= CAP_BINDS_FROM).to_numpy()
    summary_frame.insert(1, "cap_binds", binds)
    return pd.concat([parameters, summary_frame], axis="columns")


def summarise_all(parts: Iterable[Trials]) -> pd.DataFrame:
    """Summarise trials that come in parts, each of whole scenarios: only one part is held at a time."""
    return pd.concat([summarise(part) for part in parts], ignore_index=True)


def _columns(trials: Trials) -> Column:
    if isinstance(trials, pd.DataFrame):
        return lambda name: trials[name].to_numpy()
    return lambda name: trials.column(name).to_numpy()


def _blocks(column: Column, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first row of each scenario, and how many rows it has."""
    if not rows:
        raise ValueError("trials: none given; must be at least one")
    new = np.zeros(rows, dtype=bool)
    new[0] = True
    for name in PARAMETERS:
        values = column(name)
        new[1:] |= values[1:] != values[:-1]
    starts = np.flatnonzero(new)
    return starts, np.diff(starts, append=rows)


def _parameters(column: Column, starts: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Return the parameters of the scenarios that start at these rows, in canonical form."""
    parameters = {}
    for name, parameter in PARAMETERS.items():
        values: Any = column(name)[starts]
        if parameter.choices:
            # Text, where a word may stand for an integer.
            values = [parameter.parse(v) if isinstance(v, str) else parameter.canonical(v) for v in values]
            dtype = "str" if parameter.kind == "choice" else "object"
            parameters[name] = pd.Series(values, dtype=dtype)
        else:
            parameters[name] = pd.Series(values, dtype=column_type(name))
    frame = pd.DataFrame(parameters)
    repeated = frame[frame.duplicated()]
    if len(repeated):
        raise ValueError(f"trials: the rows of {_scenarios(repeated)[0].name} do not stand together")
    return frame


def _scenarios(parameters: pd.DataFrame) -> list[Scenario]:
    """Return scenarios that are given as rows."""
    columns = [parameters[name].tolist() for name in PARAMETERS]
    return [Scenario(*values) for values in zip(*columns, strict=True)]


def _check_scenarios(parameters: pd.DataFrame, scenarios: Sequence[Scenario]) -> None:
    found = [scenario.name for scenario in _scenarios(parameters)]
    wanted = [scenario.name for scenario in scenarios]
    if found == wanted:
        return
    for name in wanted:
        if name not in found:
            raise ValueError(f"trials: there are none of {name}")
    extra = [name for name in found if name not in wanted]
    raise ValueError(f"trials: there are unexpected ones of {extra[0]}" if extra else "trials: wrong order")


def _summary_columns(metric: Metric, values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Summarise values of one metric, shaped (scenarios, seeds)."""
    name = metric.name
    if metric.of_trials:
        share = share_interval(values.sum(axis=-1), values.shape[-1])
        return {f"{name}_mean": share.share, f"{name}_se": share.se} | {
            f"{name}_low": share.low,
            f"{name}_high": share.high,
        }
    mean = mean_interval(values, missing=metric.missing, bounds=(0, 1) if metric.share else None)
    middle = median_interval(values, missing=metric.missing)
    kept = values
    if metric.missing is not None:
        kept = np.where(values == metric.missing, np.nan, values)
    elif mean.missing.any():
        raise ValueError(f"{name}: NaN is not allowed; no value that stands for a missing one is declared")
    columns = {
        "mean": mean.mean,
        "se": mean.se,
        "low": mean.low,
        "high": mean.high,
        "median": middle.quantile,
        "median_low": middle.low,
        "median_high": middle.high,
        "min": np.fmin.reduce(kept, axis=-1),
        "max": np.fmax.reduce(kept, axis=-1),
        "constant": mean.constant,
    }
    if metric.missing is not None:
        columns["missing"] = mean.missing
    if metric.share:
        columns["clipped"] = mean.clipped
    return {f"{name}_{column}": array for column, array in columns.items()}


def compare(
    parts: Iterable[Trials],
    baseline: Mapping[str, Value],
    metrics: Sequence[str] = ("foreign_frac", "distinct_tenants"),
) -> pd.DataFrame:
    """Paired differences of scenarios from their baselines, seed by seed.

    Every scenario is compared with the one that has the baseline's values for the parameters that
    `baseline` names, and is otherwise the same.

    Parameters
    ----------
    parts : iterable of pyarrow.Table or pandas.DataFrame
        Trials of one experiment, as for `summarise_all`.
    baseline : mapping of str to value
        For example ``{"policy": "lifo"}``.
    metrics : sequence of str
        Of `METRICS`; each is its own family for `p_holm`.

    Returns
    -------
    pandas.DataFrame
        One row a metric and scenario that has a baseline other than itself: all parameters,
        `baseline` (its canonical name), `metric`, and the fields of
        `kvsim.statistics.PairedDifference` (`difference` for its mean), and `p_holm`, adjusted over
        the rows of the metric.

    Raises
    ------
    ValueError
        If a metric, or a parameter or value of the baseline, is unknown; or if no scenario has a baseline.
    """
    chosen = chosen_metrics(metrics)
    for name in baseline:
        if name not in PARAMETERS:
            raise ValueError(f"baseline: {name!r} is not allowed; must be one of {', '.join(PARAMETERS)}")
    at = {name: PARAMETERS[name].canonical(value) for name, value in baseline.items()}

    seeds: dict[Scenario, npt.NDArray[np.uint64]] = {}
    values: dict[Scenario, list[npt.NDArray[Any]]] = {}
    for part in parts:
        column = _columns(part)
        starts, lengths = _blocks(column, len(part))
        ends = (starts + lengths)[:-1]
        scenarios = _scenarios(_parameters(column, starts))
        seeds |= zip(scenarios, np.split(column("seed"), ends), strict=True)
        by_metric = [np.split(metric.values(column).astype(float), ends) for metric in chosen]
        values |= zip(scenarios, map(list, zip(*by_metric, strict=True)), strict=True)

    fields = [{name: getattr(scenario, name) for name in PARAMETERS} for scenario in seeds]
    rows = []
    for i, metric in enumerate(chosen):
        for scenario, own in zip(seeds, fields, strict=True):
            other = Scenario(**(own | at))
            if other == scenario or other not in seeds:
                continue
            _, here, there = np.intersect1d(seeds[scenario], seeds[other], return_indices=True)
            if not len(here):
                continue
            paired = paired_difference(
                values[scenario][i][here], values[other][i][there], missing=metric.missing
            )._asdict()
            numbers = {"difference" if k == "mean" else k: v.item() for k, v in paired.items()}
            rows.append(own | {"baseline": other.name, "metric": metric.name} | numbers)
    if not rows:
        spelled = ", ".join(f"{name}={as_text(value)}" for name, value in at.items())
        raise ValueError(f"baseline: {spelled} is not allowed; no other scenario shares seeds with one there")
    frame = pd.DataFrame(rows)
    frame["p_holm"] = np.concatenate([holm(p) for _, p in frame.groupby("metric", sort=False)["p_value"]])
    return frame


# --- Numbers to words ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table of texts: heads in words, their units, rows, and a caption that explains it."""

    heads: tuple[str, ...]
    units: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str

    def text(self) -> str:
        """Lay it out for a terminal."""
        return f"{self._laid_out('simple', maxheadercolwidths=16)}\n\n{textwrap.fill(self.caption, 100)}\n"

    def markdown(self) -> str:
        """Lay it out as Markdown, the caption below."""
        return f"{self._laid_out('pipe')}\n\n{self.caption}\n"

    def latex(self, label: str) -> str:
        """Lay it out as a LaTeX table environment that needs the package booktabs."""
        longest = [max(map(len, cells)) for cells in zip(*self.rows, strict=True)]
        align = [
            "r" if number else "l" if length <= 40 else r"p{0.3\textwidth}"
            for number, length in zip(self._numeric(), longest, strict=True)
        ]
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_escape(self.caption)}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{{''.join(align)}}}",
            r"\toprule",
            _latex_row([_stacked(head) for head in self.heads]),
        ]
        if any(self.units):
            lines.append(_latex_row([_stacked(f"({unit})") if unit else "" for unit in self.units]))
        lines.append(r"\midrule")
        lines += [_latex_row(map(_latex_cell, row)) for row in self.rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def _laid_out(self, form: str, **options: Any) -> str:
        # The pipe form alone reads a bar as the end of a cell.
        cells = [[cell.replace("|", r"\|") if form == "pipe" else cell for cell in row] for row in self.rows]
        pairs = zip(self.heads, self.units, strict=True)
        heads = [f"{head} ({unit})" if unit else head for head, unit in pairs]
        align = ["right" if number else "left" for number in self._numeric()]
        return str(tabulate(cells, heads, form, disable_numparse=True, colalign=align, **options))

    def _numeric(self) -> list[bool]:
        """Say which columns hold numbers."""
        return [all(cell[:1] in "0123456789-<∞" for cell in cells) for cells in zip(*self.rows, strict=True)]


def summary_table(
    frame: pd.DataFrame, metrics: Iterable[str] = MAIN_METRICS, columns: Sequence[str] = ()
) -> Table:
    """Put a summary into words: parameters that vary, n, and metrics rounded to their error.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `summarise`.
    metrics : iterable of str
        Of `METRICS`, in the order of the columns.
    columns : sequence of str
        Parameters whose values stand side by side instead of below one another. All others that
        vary make the rows: no scenario is left out or averaged over.

    Raises
    ------
    ValueError
        If a metric or a parameter is unknown.
    """
    chosen = chosen_metrics(metrics)
    for name in columns:
        if name not in PARAMETERS:
            near = difflib.get_close_matches(name, PARAMETERS) or list(PARAMETERS)
            raise ValueError(f"columns: {name!r} is not allowed; must be one of {', '.join(near)}")
    shown = [_Column("trials", "n", [str(n) for n in frame["trials"]])]
    for metric in chosen:
        shown.append(_Column(metric.label, metric.unit, _metric_cells(frame, metric)))
        if metric.name == "kv_cache_usage":
            shown.append(_Column("cap binds", "", ["yes" if binds else "no" for binds in frame["cap_binds"]]))
    unexposed = np.rint(frame["trials"] * (1 - frame["exposed_mean"])).astype(int)
    counted = [metric for metric in chosen if metric.missing is not None]
    if counted:
        shown.append(_Column("without a foreign page", "trials", [str(n) for n in unexposed]))
    for metric in counted:
        # Trials may lack a value for another reason than that nothing was read.
        missing = frame[f"{metric.name}_missing"]
        if (missing != unexposed).any():
            shown.append(_Column(f"without {metric.label}", "trials", [str(n) for n in missing]))
    caption = _summary_caption(frame, chosen)
    if columns:
        return _table(_spread(frame, shown, columns), caption)
    return _table([*_varying_columns(frame), *shown], caption)


class _Column(NamedTuple):
    head: str
    unit: str
    cells: Sequence[str]


def _table(columns: Sequence[_Column], caption: str) -> Table:
    heads, units, cells = zip(*columns, strict=True)
    return Table(heads, units, tuple(zip(*cells, strict=True)), caption)


def _varying_columns(frame: pd.DataFrame, without: Sequence[str] = ()) -> list[_Column]:
    """Return the parameters that take more than one value."""
    return [
        _Column(_words(name), parameter.unit, [as_text(value) for value in frame[name]])
        for name, parameter in PARAMETERS.items()
        if name not in without and len(set(frame[name])) > 1
    ]


def _spread(frame: pd.DataFrame, shown: Sequence[_Column], names: Sequence[str]) -> list[_Column]:
    """Lay scenarios that differ only in these parameters side by side."""
    across = [
        ", ".join(f"{_words(name)} {as_text(value)}" for name, value in zip(names, values, strict=True))
        for values in zip(*(frame[name] for name in names), strict=True)
    ]
    varying = _varying_columns(frame, without=names)
    down = list(zip(*(column.cells for column in varying), strict=True)) or [()] * len(frame)
    place = {key: i for i, key in enumerate(zip(down, across, strict=True))}
    lines, sides = list(dict.fromkeys(down)), list(dict.fromkeys(across))
    columns = [_Column(*column[:2], [line[i] for line in lines]) for i, column in enumerate(varying)]
    for head, unit, cells in shown:
        grid = [
            [cells[place[line, side]] if (line, side) in place else "" for line in lines] for side in sides
        ]
        if all(one == grid[0] for one in grid):
            # The same for all: once is enough.
            columns.append(_Column(head, unit, grid[0]))
        else:
            columns += [_Column(f"{head}, {side}", unit, one) for side, one in zip(sides, grid, strict=True)]
    return columns


def _summary_caption(frame: pd.DataFrame, metrics: Sequence[Metric]) -> str:
    sentences = [
        f"{_counted(len(frame), 'scenario')}, {_counted(int(frame['trials'].sum()), 'trial')}.",
        "Means over n trials ± half the width of the 95% interval, rounded to two digits of it, "
        "or the interval itself in brackets where it is not symmetric.",
        "Means: Student t; shares of context or pool: Student t corrected for skewness (Hall 1992); "
        "shares of trials: Wilson.",
    ]
    if any(frame[f"{m.name}_constant"].any() for m in metrics if not m.of_trials):
        sentences.append(
            "A mean marked * is that of equal values: its interval has no width, "
            "which says nothing about values not met."
        )
    if any((frame[f"{m.name}_low"].isna() & frame[f"{m.name}_mean"].notna()).any() for m in metrics):
        sentences.append("A single value (n = 1) has no interval.")
    if any(metric.missing is not None for metric in metrics):
        sentences.append("Ages are averaged over trials with a foreign page; the others are counted.")
    if any(metric.name == "kv_cache_usage" for metric in metrics):
        sentences.append(
            f"The cap on admission (utilisation) binds where at least {CAP_BINDS_FROM:.0%} of the servers "
            "stand at it when the warm-up ends; elsewhere it changes little or nothing."
        )
    fixed = []
    for name, parameter in PARAMETERS.items():
        values = set(frame[name].tolist())
        if len(values) == 1 and values != {parameter.default}:
            unit = "" if parameter.unit in name else parameter.unit
            fixed.append(f"{_words(name)} {as_text(values.pop())} {unit}".rstrip())
    rest = "All other parameters have their defaults."
    sentences.append(f"In all rows: {'; '.join(fixed)}. {rest}" if fixed else rest)
    return " ".join(sentences)


def comparison_table(frame: pd.DataFrame) -> Table:
    """Put paired differences, from `compare`, into words."""
    metrics = [METRICS[name] for name in frame["metric"]]
    columns = [
        *_varying_columns(frame),
        _Column("baseline", "", list(frame["baseline"])),
        _Column("metric", "", [f"{m.label} ({m.unit})" if m.unit else m.label for m in metrics]),
        _Column("pairs", "n", [str(n) for n in frame["n"]]),
        _Column("difference", "of means", _interval_cells(frame, frame["difference"])),
        _Column("p", "Holm", [_p_text(p) for p in frame["p_holm"]]),
        _Column("correlation", "", [_two_places(value) for value in frame["correlation"]]),
        _Column("trials saved", "factor", [_two_places(value) for value in frame["variance_ratio"]]),
    ]
    caption = (
        "Differences from the baseline on common random numbers, ± half the width of the 95% interval "
        "(paired Student t). A difference marked * is the same for every seed. p values of no difference are "
        "adjusted by Holm's method over the rows of a metric. Trials saved: how many times as many trials "
        "independent seeds would need for the same error."
    )
    return _table(columns, caption)


def parameter_table(scenarios: Iterable[Scenario] | None = None) -> Table:
    """List every parameter: symbol, values, unit, meaning, and where the default comes from.

    Parameters
    ----------
    scenarios : iterable of Scenario, optional
        Whose values to list beside the defaults; at most ten each, or their number and extremes.
    """
    heads = ["parameter", "symbol", "default", "unit", "what it is", "source of the default"]
    rows = [
        [_words(name), f"${p.symbol}$", as_text(p.default), p.unit, p.doc, p.source]
        for name, p in PARAMETERS.items()
    ]
    if scenarios is not None:
        listed = list(scenarios)
        heads.insert(3, "values")
        for row, name in zip(rows, PARAMETERS, strict=True):
            row.insert(3, _values_text({getattr(scenario, name) for scenario in listed}))
    return Table(tuple(heads), ("",) * len(heads), tuple(map(tuple, rows)), "The parameters of a trial.")


def _values_text(values: set[Value]) -> str:
    words = sorted(value for value in values if isinstance(value, str))
    numbers = sorted(value for value in values if not isinstance(value, str))
    if len(numbers) > 10:
        return ", ".join(
            [*words, f"{len(numbers)} values from {as_text(numbers[0])} to {as_text(numbers[-1])}"]
        )
    return ", ".join(map(as_text, [*words, *numbers]))


def _metric_cells(frame: pd.DataFrame, metric: Metric) -> list[str]:
    named = {part: frame[f"{metric.name}_{part}"] for part in ("low", "high")}
    if not metric.of_trials:
        named["constant"] = frame[f"{metric.name}_constant"]
    return _interval_cells(named, frame[f"{metric.name}_mean"])


def _interval_cells(named: Mapping[str, Any] | pd.DataFrame, means: pd.Series[float]) -> list[str]:
    constant = named["constant"] if "constant" in named else [False] * len(means)
    return [
        estimate_text(mean, low, high, constant=same)
        for mean, low, high, same in zip(means, named["low"], named["high"], constant, strict=True)
    ]


def estimate_text(mean: float, low: float, high: float, *, constant: bool = False) -> str:
    """Spell an estimate, rounded to its error: ``0.588 ± 0.086``, or ``0.03 [0.01, 0.17]``.

    Parameters
    ----------
    mean, low, high : float
        The interval's half-width is given to two digits, the mean to the same place. Brackets
        stand where the interval is not symmetric about the mean. A mean without an interval is
        that of one value, and says so; no mean at all is a dash.
    constant : bool
        Whether the interval has zero width because all values are equal: marked with a star.
    """
    if math.isnan(mean):
        return "-"
    half = (high - low) / 2
    if math.isnan(half):
        return f"{_short(mean)} (n = 1)"
    if constant or half == 0:
        return f"{_short(mean)}*"
    places = max(0, 1 - math.floor(math.log10(float(f"{half:.1e}"))))
    if abs(mean - low - half) <= 0.1 * half:
        return f"{mean:.{places}f} ± {half:.{places}f}"
    return f"{mean:.{places}f} [{low:.{places}f}, {high:.{places}f}]"


def _short(number: float) -> str:
    """Spell a number that has no error: four digits, or all digits of a whole number."""
    return str(int(number)) if float(number).is_integer() else f"{number:.4g}"


def _two_places(number: float) -> str:
    return "-" if math.isnan(number) else "∞" if math.isinf(number) else f"{number:.2f}"


def _p_text(p: float) -> str:
    return "-" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "∞": r"$\infty$",
} | {character: f"\\{character}" for character in "&%$#_{}"}


def latex_escape(text: str) -> str:
    """Escape text for LaTeX: it is shown as it is."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


def _latex_cell(cell: str) -> str:
    """Escape a cell, unless it is a formula."""
    return cell if re.fullmatch(r"\$[^$]+\$", cell) else latex_escape(cell)


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _stacked(text: str) -> str:
    """Set the words of a head below one another, so that columns stay narrow."""
    return r"\shortstack{" + r"\\".join(latex_escape(word) for word in text.split()) + "}"


# --- Files -----------------------------------------------------------------------------------------


def write_summary(
    frame: pd.DataFrame,
    folder: str | os.PathLike[str],
    name: str = "summary",
    *,
    metrics: Iterable[str] = MAIN_METRICS,
    columns: Sequence[str] = (),
    provenance: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write a summary: Parquet and CSV with every column, Markdown and LaTeX for reading.

    The same frame gives the same bytes. Each file is whole or absent.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `summarise`.
    folder : path-like
        Made if need be.
    name : str
        The files are called ``<name>.parquet``, ``.csv``, ``.md`` and ``.tex``.
    metrics, columns
        What Markdown and LaTeX show: as for `summary_table`.
    provenance : mapping of str to str, optional
        Versions and digests, kept in the Parquet metadata and in comments of Markdown and LaTeX. (CSV
        has no place for it.)

    Returns
    -------
    list of Path

    Raises
    ------
    ValueError
        If a metric or a parameter is unknown.
    OSError
        If a file cannot be written.
    """
    return write_table(summary_table(frame, metrics, columns), frame, folder, name, provenance=provenance)


def write_table(
    table: Table,
    frame: pd.DataFrame | None,
    folder: str | os.PathLike[str],
    name: str,
    *,
    provenance: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write a table as Markdown and LaTeX, and the numbers behind it, if given, as Parquet and CSV."""
    provenance = dict(provenance or {})
    folder = Path(folder)
    written = []
    if frame is not None:
        exact = _exact(frame)
        with atomic_write(folder / f"{name}.parquet") as temporary:
            pq.write_table(exact.replace_schema_metadata(provenance or None), temporary)
        csv = exact.to_pandas().to_csv(index=False, lineterminator="\n")
        write_text(folder / f"{name}.csv", csv)
        written = [folder / f"{name}.parquet", folder / f"{name}.csv"]
    notes = [f"{key}: {value}" for key, value in sorted(provenance.items())]
    comment = f"<!-- {'; '.join(notes)} -->\n\n" if notes else ""
    write_text(folder / f"{name}.md", comment + table.markdown())
    label = f"{folder.name}-{name}"
    write_text(folder / f"{name}.tex", "".join(f"% {note}\n" for note in notes) + table.latex(label))
    return [*written, folder / f"{name}.md", folder / f"{name}.tex"]


def read_summary(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a summary's Parquet file back, as `summarise` gave it."""
    frame: pd.DataFrame = pq.read_table(path).to_pandas()
    for name, parameter in PARAMETERS.items():
        if parameter.choices and parameter.kind != "choice":
            frame[name] = pd.Series([parameter.parse(text) for text in frame[name]], dtype="object")
    return frame


def summary_text(frame: pd.DataFrame, metrics: Iterable[str] = MAIN_METRICS) -> str:
    """Lay a summary out for a terminal."""
    return summary_table(frame, metrics).text()


def _exact(frame: pd.DataFrame) -> pa.Table:
    """Make an Arrow table with declared types for the parameters, whatever the values."""
    arrays = {}
    for name in frame.columns:
        values = frame[name]
        if name in PARAMETERS and PARAMETERS[name].choices:
            arrays[name] = pa.array([as_text(value) for value in values], pa.string())
        elif values.dtype.kind in "bif":
            arrays[name] = pa.array(values.to_numpy(), from_pandas=False)
        else:
            arrays[name] = pa.array(values.tolist(), pa.string())
    return pa.table(arrays)
