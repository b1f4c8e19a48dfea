"""Figures declared in the config, drawn from trials, with intervals computed by `kvsim.statistics`.

A declaration is a mapping in seaborn's words::

    {experiment: policies, kind: points, x: kv_cache_usage, y: [foreign_frac, distinct_tenants], hue: policy}

A parameter that varies in the experiment and that no axis, hue or facet shows is never averaged in
silence: it becomes a facet while there are few panels; otherwise caption and log say that it is pooled.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvsim.outcomes import OUTCOMES
from kvsim.scenario import PARAMETERS, Scenario, Value, as_text
from kvsim.style import MAX_HUES, NEUTRAL, PALETTE, PARTS, WIDTHS, Look, looks, save_figure, settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kvsim.tables import Metric

    Floats = npt.NDArray[np.float64]

KINDS: dict[str, tuple[str, ...]] = {
    "parts": ("x", "col", "row", "scale"),
    "points": ("x", "y", "hue", "col", "row", "units", "scale"),
    "line": ("x", "y", "hue", "col", "row", "scale"),
    "ecdf": ("x", "hue", "col", "row", "scale"),
    "heatmap": ("x", "y", "values", "col", "row"),
}
"""Kinds of figure, and the keys that each takes beside those of every kind.

``parts``
    Stacked shares of the oversized request's context against a parameter `x`.
``points``
    Means of one or several metrics `y`, a panel each, against a parameter or a metric's mean `x`.
``line``
    The same against a numeric parameter, as lines with bands.
``ecdf``
    The distribution over trials of a metric `x`.
``heatmap``
    The means of a metric `values`, by two parameters `x` and `y`.

`scale` is that of x; unless it is said, a parameter that spans two decades is not shown on a linear one.
"""

COMMON_KEYS = ("experiment", "kind", "where", "width", "caption")
REQUIRED = {"points": ("x", "y"), "line": ("x", "y"), "heatmap": ("x", "y", "values")}
SCALES = ("linear", "log", "symlog")
MAX_PANELS = 12
"""Panels that a figure may have; what would need more is pooled, or refused if it was asked for."""

_PANELS_A_ROW = 4
_LIMITS = {"prefill_pool_tokens": "prefill pool", "context_tokens": "context limit"}
_PROMPT_SIZES = ("prompt_tokens", "prompt_tokens_drawn")
_log = logging.getLogger(__name__)


class Experiment(Protocol):
    """What `check` reads of an experiment of the config."""

    @property
    def scenarios(self) -> Sequence[Scenario]: ...  # noqa: D102


@dataclass(frozen=True)
class Drawing:
    """A drawn figure.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
    caption : str
        What is shown, over how many trials, what bars and bands mean, what is pooled, and which
        parameters differ from their defaults throughout.
    pooled : tuple of str
        One sentence for each dimension that the figure averages over.
    """

    figure: Figure
    caption: str
    pooled: tuple[str, ...] = ()


# --- Declarations ----------------------------------------------------------------------------------


def check(declaration: Mapping[str, Any], experiment: Experiment) -> list[str]:
    """List what is wrong with a figure's declaration, one line each; nothing heavy is imported.

    Parameters
    ----------
    declaration : mapping
        A figure of the config.
    experiment : Experiment
        The experiment that it names.
    """
    levels = {
        name: list(dict.fromkeys(getattr(s, name) for s in experiment.scenarios)) for name in PARAMETERS
    }
    return list(_problems(declaration, levels))


def _problems(declaration: Mapping[str, Any], levels: Mapping[str, Sequence[Value]]) -> Iterator[str]:
    kind = declaration.get("kind")
    if kind not in KINDS:
        yield _refusal("kind", kind, KINDS)
        return
    allowed = (*COMMON_KEYS, *KINDS[kind])
    for key in declaration:
        if key not in allowed:
            yield f"{key}: is not allowed in a figure of kind {kind}; must be one of {', '.join(allowed)}"
    for key in REQUIRED.get(kind, ("x",)):
        if key not in declaration:
            yield f"{key}: is missing; a figure of kind {kind} needs it"
    if declaration.get("width", "one") not in WIDTHS:
        yield _refusal("width", declaration["width"], WIDTHS)
    if declaration.get("scale", "linear") not in SCALES:
        yield _refusal("scale", declaration["scale"], SCALES)
    levels = dict(levels)
    for name, values in declaration.get("where", {}).items():
        if name not in PARAMETERS:
            yield _refusal("where", name, PARAMETERS)
            continue
        for value in _listed(values):
            if value not in levels[name]:
                yield f"where: {name} {value!r} does not occur; must be one of {_enumerated(levels[name])}"
        levels[name] = [value for value in levels[name] if value in _listed(values)]
    known = {key: value for key, value in declaration.items() if key in allowed}
    yield from _column_problems(known, levels)


def _column_problems(declaration: Mapping[str, Any], levels: Mapping[str, Sequence[Value]]) -> Iterator[str]:
    kind = declaration["kind"]
    metric_keys = {"points": ("y",), "line": ("y",), "ecdf": ("x",), "heatmap": ("values",)}.get(kind, ())
    used: dict[str, str] = {}
    for key in ("x", "y", "values", "hue", "col", "row", "units"):
        for name in _listed(declaration.get(key, ())):
            if key in metric_keys:
                if not _is_metric(name):
                    yield _refusal(key, name, _metric_names())
            elif name not in PARAMETERS and not (kind == "points" and key == "x" and _is_metric(name)):
                choices = [*PARAMETERS, *_metric_names()] if (kind, key) == ("points", "x") else PARAMETERS
                yield _refusal(key, name, choices)
            elif name in used:
                yield f"{key}: {name} is shown already, as {used[name]}"
            used[name] = key
    x, hue = declaration.get("x"), declaration.get("hue")
    numeric = x not in PARAMETERS or _is_numeric(levels[x])
    if not numeric and kind == "line":
        yield f"x: {x} is not numeric; a figure of kind line needs numbers"
    if not numeric and declaration.get("scale", "linear") != "linear":
        yield f"scale: {declaration['scale']} is not allowed; {x} is not numeric"
    if numeric and x in PARAMETERS and declaration.get("scale") == "log" and min(levels[x]) <= 0:  # type: ignore[operator]
        yield f"scale: log is not allowed; {x} takes the value 0, which symlog can show"
    if hue in PARAMETERS and len(levels[hue]) > MAX_HUES and not set(levels[hue]) <= set(PALETTE):
        yield f"hue: {hue} takes {len(levels[hue])} values; at most {MAX_HUES} can be told apart"
    ys = len(_listed(declaration.get("y", "")))
    if ys > 1 and "row" in declaration:
        yield "row: is not allowed with several y; they take the rows"
    panels = ys * math.prod(
        len(levels[declaration[k]]) for k in ("col", "row") if declaration.get(k) in PARAMETERS
    )
    if panels > MAX_PANELS:
        yield f"col: {panels} panels are too many; must be at most {MAX_PANELS} (restrict them with where)"
    units = declaration.get("units")
    if units is not None and x in PARAMETERS:
        yield f"units: is not allowed; x is a parameter, {x}, and tells the points apart itself"


def _refusal(key: str, value: object, allowed: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(value), list(allowed)) or list(allowed)
    return f"{key}: {value!r} is not allowed; must be one of {', '.join(near)}"


def _is_metric(name: str) -> bool:
    return name in OUTCOMES or name in _metric_names()


def _metric_names() -> list[str]:
    from kvsim.tables import METRICS

    return list(METRICS)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_numeric(levels: Iterable[Value]) -> bool:
    return not any(isinstance(level, str) for level in levels)


def _ordered(levels: Iterable[Value]) -> list[Value]:
    """Return unique levels in the order in which they are shown: numbers ascending, then words as met."""
    unique = list(dict.fromkeys(levels))
    return [
        *sorted(level for level in unique if not isinstance(level, str)),
        *(level for level in unique if isinstance(level, str)),
    ]


# --- What goes where -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Which parameter or metric each part of a figure shows, with facets and pooling decided."""

    kind: str
    x: str
    ys: tuple[str, ...]
    hue: str | None
    col: str | None
    row: str | None
    units: str | None
    values: str | None
    scale: str
    pooled: tuple[str, ...]
    levels: Mapping[str, Sequence[Value]]
    looks: tuple[Look, ...]
    reach: tuple[float, float]

    @property
    def keys(self) -> list[str]:
        """Parameters whose values tell the cells of one panel apart."""
        names = (self.hue, self.units, self.x, *(self.ys if self.kind == "heatmap" else ()))
        return [name for name in names if name is not None and name in PARAMETERS]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that the figure shows."""
        return {
            "parts": ("foreign_frac", "never_written_frac"),
            "ecdf": (self.x,),
            "heatmap": (self.values or "",),
        }.get(self.kind, self.ys)

    @property
    def hues(self) -> list[tuple[Value | None, Look]]:
        """Levels of the hue with their looks; one without a level if there is no hue."""
        if self.hue is None:
            return [(None, NEUTRAL)]
        return list(zip(self.levels[self.hue], self.looks, strict=True))

    @property
    def categorical(self) -> bool:
        """Whether x stands for categories, side by side, instead of numbers on a scale."""
        if self.x not in PARAMETERS:
            return False
        levels = self.levels[self.x]
        return not _is_numeric(levels) or (self.kind == "parts" and len(levels) == 1)


def _plan(declaration: Mapping[str, Any], trials: pd.DataFrame) -> Plan:
    kind, x = declaration["kind"], declaration["x"]
    levels = {name: _ordered(trials[name].tolist()) for name in PARAMETERS}
    ys = tuple(_listed(declaration["y"])) if "y" in declaration else ()
    hue, units = declaration.get("hue"), declaration.get("units")
    facets = {key: declaration.get(key) for key in ("col", "row")}
    placed = {x, *ys, hue, units, *facets.values()}
    left = [name for name in PARAMETERS if len(levels[name]) > 1 and name not in placed]

    if kind == "points" and x not in PARAMETERS and units is None and left:
        # What moves x most traces the points of a hue.
        units = max(left, key=lambda name: _spread(trials, x, name))
        left.remove(units)
    several = len(ys) > 1 and kind != "heatmap"
    panels = (len(ys) if several else 1) * math.prod(len(levels[f]) for f in facets.values() if f)
    for name in list(left):
        free = [key for key in ("col", "row") if facets[key] is None and not (key == "row" and several)]
        if free and panels * len(levels[name]) <= MAX_PANELS:
            facets[free[0]] = name
            panels *= len(levels[name])
            left.remove(name)
    return Plan(
        kind=kind,
        x=x,
        ys=ys,
        hue=hue,
        units=units,
        values=declaration.get("values"),
        scale=declaration.get("scale") or _default_scale(levels.get(x, ())),
        pooled=tuple(left),
        levels=levels,
        looks=tuple(looks(levels[hue])) if hue else (NEUTRAL,),
        reach=_reach(_values(trials, x)) if kind == "ecdf" else (0.0, 0.0),
        **facets,
    )


def _default_scale(levels: Sequence[Value]) -> str:
    """Return the scale of an axis of which nothing is said: not linear if a parameter spans two decades."""
    positive = [level for level in levels if not isinstance(level, str) and level > 0]
    if not positive or not _is_numeric(levels) or max(positive) < 100 * min(positive):
        return "linear"
    return "log" if len(positive) == len(levels) else "symlog"


def _reach(values: pd.Series[float]) -> tuple[float, float]:
    """Return the ends of an axis that shows these values, some way beyond them."""
    least, most = float(values.min()), float(values.max())
    pad = 0.04 * (most - least) or 0.5
    return (least - pad if least < 0 else max(least - pad, least / 2), most + pad)


def _spread(trials: pd.DataFrame, metric: str, name: str) -> float:
    """Return the spread of a metric's means over the values of one parameter."""
    means = _values(trials, metric).groupby(trials[name].map(as_text)).mean()
    return 0.0 if means.isna().all() else float(means.max() - means.min())


# --- Numbers ---------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A mean with its interval, NaN where there is none.

    `n` values were averaged (seeds, where scenarios are pooled), `missing` trials had none, and
    `constant` says that all values are equal.
    """

    mean: float
    low: float
    high: float
    n: int
    missing: int
    constant: bool

    @property
    def reach(self) -> tuple[float, float]:
        """How far the interval reaches below and above the mean; zero where there is none."""
        return (0.0, 0.0) if math.isnan(self.low) else (self.mean - self.low, self.high - self.mean)


def _metric(name: str) -> Metric:
    from kvsim.tables import METRICS

    return METRICS[name]


def _values(trials: pd.DataFrame, name: str) -> pd.Series[float]:
    """Return a metric's value in each trial, NaN where there is none."""
    import pandas as pd

    metric = _metric(name)
    values = metric.values(lambda column: trials[column].to_numpy()).astype(float)
    series = pd.Series(values, index=trials.index)
    return series if metric.missing is None else series.mask(series == metric.missing)


def estimate(trials: pd.DataFrame, name: str) -> Estimate:
    """Estimate the mean of a metric over trials, of one scenario or of several that are pooled.

    Scenarios share their seeds, so that their trials are not independent: pooled ones are averaged
    seed by seed first, over the seeds that all of them have, and the interval is over seeds.

    Parameters
    ----------
    trials : pandas.DataFrame
    name : str
        Of `kvsim.tables.METRICS`.
    """
    metric = _metric(name)
    return _estimate(_values(trials, name), trials["seed"], share=metric.share, of_trials=metric.of_trials)


def _estimate(
    values: pd.Series[float], seeds: pd.Series[int], *, share: bool, of_trials: bool = False
) -> Estimate:
    from kvsim.statistics import mean_interval, share_interval

    missing = int(values.isna().sum())
    scenarios = int(seeds.value_counts().max())
    if scenarios > 1:
        by_seed = values.groupby(seeds)
        values = by_seed.mean()[by_seed.size() == scenarios]
    elif of_trials:
        wilson = share_interval(int(values.sum()), len(values))
        return Estimate(float(wilson.share), float(wilson.low), float(wilson.high), len(values), 0, False)
    found = mean_interval(values.to_numpy(), bounds=(0, 1) if share else None)
    low, high = float(found.low), float(found.high)
    return Estimate(float(found.mean), low, high, int(found.n), missing, bool(found.constant))


class Curve(NamedTuple):
    """A distribution function as steps, with a simultaneous band, and its median with an interval."""

    x: Floats
    share: Floats
    low: Floats
    high: Floats
    median: tuple[float, float, float]


def distribution(trials: pd.DataFrame, name: str, reach: tuple[float, float]) -> Curve:
    """Estimate the distribution function of a metric over trials, drawn out to both ends of `reach`.

    Of several scenarios, the mean of their distribution functions: each has a band that holds with
    1 - 0.05 / scenarios, so that all hold at once with 95%, whatever the dependence (Bonferroni), and
    the mean lies between their mean limits. The median has no interval then (NaN).

    Parameters
    ----------
    trials : pandas.DataFrame
        With at least one value of the metric.
    name : str
        Of `kvsim.tables.METRICS`.
    reach : (float, float)
        Ends of the curve: below and above all values.
    """
    import numpy as np

    from kvsim.statistics import ecdf_band, median_interval

    samples = [_values(cell, name).dropna().to_numpy() for cell in _cells(trials, _varying(trials)).values()]
    samples = [sample for sample in samples if len(sample)]
    bands = [ecdf_band(sample, 1 - 0.05 / len(samples)) for sample in samples]
    x = np.unique(np.concatenate([[reach[0]], *(band.x for band in bands), [reach[1]]]))
    curves = []
    for band in bands:
        # Below the least value the function is 0, and the band as wide as at the other end.
        steps = np.searchsorted(band.x, x, side="right")
        below = (0.0, 0.0, 1 - band.low[-1])
        sides = (band.share, band.low, band.high)
        curves.append([np.concatenate([[end], side])[steps] for end, side in zip(below, sides, strict=True)])
    share, low, high = np.mean(curves, axis=0)
    if len(samples) == 1:
        middle = median_interval(samples[0])
        return Curve(x, share, low, high, (float(middle.quantile), float(middle.low), float(middle.high)))
    return Curve(x, share, low, high, (float(x[np.argmax(share >= 0.5 - 1e-12)]), math.nan, math.nan))


def _varying(trials: pd.DataFrame) -> list[str]:
    return [name for name in PARAMETERS if len(trials[name].unique()) > 1]


def _cells(trials: pd.DataFrame, keys: Sequence[str]) -> dict[tuple[Value, ...], pd.DataFrame]:
    """Split trials by parameters, in the order in which levels are shown."""
    if not keys:
        return {(): trials}
    # By position: a level may be a word or a number in the same column.
    groups = trials.groupby([trials[key].map(as_text) for key in keys], sort=False).indices
    cells = {}
    for rows in groups.values():
        cell = trials.iloc[rows]
        cells[tuple(cell[key].tolist()[0] for key in keys)] = cell
    rank = {key: {level: i for i, level in enumerate(_ordered(trials[key].tolist()))} for key in keys}
    return {
        k: cells[k] for k in sorted(cells, key=lambda k: [rank[n][v] for n, v in zip(keys, k, strict=True)])
    }


def _canonical(trials: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Return trials with parameters in canonical form, restricted to some of their values."""
    trials = trials.reset_index(drop=True)
    for name, parameter in PARAMETERS.items():
        if parameter.choices and parameter.kind != "choice":
            words = {v: parameter.parse(v) if isinstance(v, str) else v for v in trials[name].unique()}
            trials[name] = trials[name].map(words).astype(object)
    for name, values in where.items():
        trials = trials[trials[name].isin(_listed(values))]
    return trials.reset_index(drop=True)


# --- Drawing ---------------------------------------------------------------------------------------


def draw(declaration: Mapping[str, Any], trials: pd.DataFrame) -> Drawing:
    """Draw a declared figure.

    Parameters
    ----------
    declaration : mapping
        Keys as in `KINDS` and `COMMON_KEYS`.
    trials : pandas.DataFrame
        Trials of its experiment, in the order of the config: words are shown in that order.

    Returns
    -------
    Drawing
        Its figure belongs to no window and needs no closing.

    Raises
    ------
    ValueError
        If the declaration does not fit the trials; the message is the first line of `check`.
    """
    from matplotlib import rc_context

    levels = {name: _ordered(_canonical(trials, {})[name].tolist()) for name in PARAMETERS}
    for problem in _problems(declaration, levels):
        raise ValueError(problem)
    trials = _canonical(trials, declaration.get("where", {}))
    plan = _plan(declaration, trials)
    with rc_context(settings()):
        figure, panels = _panels(plan, trials, declaration.get("width"))
        drawn = _DRAWERS[plan.kind](figure, panels, plan)
        _finish(figure, panels, plan, drawn)
    pooled = _pooled_sentences(plan, trials)
    for sentence in pooled:
        _log.warning("%s", sentence)
    caption = _caption(declaration.get("caption", ""), plan, trials, drawn, pooled)
    return Drawing(figure, caption, pooled)


def save(drawing: Drawing, stem: Path, *, provenance: Mapping[str, str]) -> list[Path]:
    """Write a drawing as PDF, SVG and PNG, and its caption as text: `kvsim.style.save_figure`."""
    return save_figure(drawing.figure, drawing.caption, stem, provenance)


class Panel(NamedTuple):
    """One set of axes with the trials that it shows and, if there are several, its metric y."""

    axes: Axes
    trials: pd.DataFrame
    y: str
    heading: str
    row: int
    column: int


def _panels(plan: Plan, trials: pd.DataFrame, width: str | None) -> tuple[Figure, list[Panel]]:
    """Make a figure with one set of axes for each y and each facet that has trials."""
    from matplotlib.figure import Figure

    ys: Sequence[str] = plan.ys if plan.ys and plan.kind != "heatmap" else ("",)
    facets = [name for name in (plan.row, plan.col) if name]
    shown = []
    for key, part in _cells(trials, facets).items():
        at = dict(zip(facets, key, strict=True))
        row = plan.levels[plan.row].index(at[plan.row]) if plan.row else 0
        column = plan.levels[plan.col].index(at[plan.col]) if plan.col else 0
        heading = ", ".join(_heading(name, value) for name, value in at.items())
        for i, y in enumerate(ys):
            # Several y take the rows if facets take the columns, and stand side by side otherwise.
            place = (row, column) if len(ys) == 1 else (i, column) if plan.col else (0, i)
            shown.append((place, part, y, heading))
    columns = 1 + max(column for (_, column), *_ in shown)
    if columns > _PANELS_A_ROW and all(row == 0 for (row, _), *_ in shown):
        # As even as the rows can be.
        columns = math.ceil(columns / math.ceil(columns / _PANELS_A_ROW))
        shown = [(divmod(i, columns), part, y, heading) for i, (_, part, y, heading) in enumerate(shown)]
    rows = 1 + max(row for (row, _), *_ in shown)

    wide = columns > 1 or (plan.kind == "heatmap" and len(plan.levels[plan.x]) > 4)
    inches = WIDTHS[width or ("two" if wide else "one")]
    figure = Figure(figsize=(inches, _height(plan, inches, rows, columns)), layout="constrained")
    share_y: Any = len(ys) == 1 or ("row" if plan.col else False)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=share_y)
    panels = [Panel(grid[place], part, y, heading, *place) for place, part, y, heading in shown]
    used = {(panel.row, panel.column) for panel in panels}
    for row in range(rows):
        for column in range(columns):
            if (row, column) not in used:
                grid[row, column].remove()
    for panel in panels:
        # Inner tick labels are hidden, but for the lowest panel of a column that ends early.
        if (panel.row + 1, panel.column) not in used:
            panel.axes.tick_params(labelbottom=True)
        if (panel.row, panel.column - 1) not in used:
            panel.axes.tick_params(labelleft=True)
    return figure, panels


def _height(plan: Plan, inches: float, rows: int, columns: int) -> float:
    """Return the height of a figure in inches."""
    if plan.kind == "heatmap":
        panel = max(0.32 * len(plan.levels[plan.ys[0]]) + 0.25, 1.4)
    else:
        panel = min(max(0.62 * inches / columns, 1.25), 1.9)
    legend = {"parts": len(PARTS), "heatmap": 0}.get(plan.kind, len(plan.hues) if plan.hue else 0)
    lines = math.ceil(legend / (3 if inches == WIDTHS["one"] else 6))
    return rows * panel + 0.5 + 0.16 * lines


def _draw_parts(panel: Panel, plan: Plan) -> list[Estimate]:
    import numpy as np

    ax, cells = panel.axes, _cells(panel.trials, [plan.x])
    x = _positions(plan, [key[0] for key in cells])
    foreign = [estimate(cell, "foreign_frac") for cell in cells.values()]
    read = [_estimate(_read_share(cell), cell["seed"], share=True) for cell in cells.values()]
    edges = np.array([[0.0] * len(x), [e.mean for e in foreign], [e.mean for e in read], [1.0] * len(x)])
    for i, (label, colour) in enumerate(PARTS.values()):
        look: dict[str, Any] = dict(label=label, facecolor=colour, edgecolor="#555555", linewidth=0.4)
        if plan.categorical:
            ax.bar(x, edges[i + 1] - edges[i], 0.6, edges[i], **look)
        else:
            ax.fill_between(x, edges[i], edges[i + 1], **look)
    look = dict(color="black", linestyle="none", clip_on=False, zorder=3)
    _bars(ax, x, foreign, marker="o", markersize=2.5, **look)
    _bars(ax, x, read, capsize=0, **look)
    ax.set_ylim(0, 1)
    ax.grid(visible=False)
    return foreign


def _read_share(cell: pd.DataFrame) -> pd.Series[float]:
    """Return the share of the context that is read without having been written by its reader."""
    return (cell["foreign_pages"] + cell["never_written"]) / cell["pages"]


def _bars(
    ax: Axes,
    x: Sequence[float] | Sequence[Estimate],
    y: Sequence[Estimate],
    *,
    capsize: float = 1.8,
    **look: Any,
) -> None:
    """Draw means with their intervals, in either direction; no bar where there is no interval."""
    drawn = ax.errorbar(
        [e.mean if isinstance(e, Estimate) else e for e in x],
        [e.mean for e in y],
        xerr=_reaches(x),
        yerr=_reaches(y),
        elinewidth=0.8,
        capsize=capsize,
        **look,
    )
    for cap in drawn.lines[1]:
        # The edge that sets markers off would make caps thin.
        cap.set_markeredgewidth(0.8)
    # Whatever becomes of its bar, a mark at the edge of the axes is shown whole.
    drawn.lines[0].set_clip_on(False)


def _reaches(side: Sequence[float] | Sequence[Estimate]) -> Floats | None:
    import numpy as np

    reaches = [e.reach for e in side if isinstance(e, Estimate)]
    return np.array(reaches).T if any(map(any, reaches)) else None


def _edged(look: Look, size: float) -> dict[str, Any]:
    """Return the settings of a marker, a little larger where the line is wide."""
    size = size + (1 if look.width > NEUTRAL.width else 0)
    return dict(marker=look.marker, markersize=size, markeredgecolor="white", markeredgewidth=0.4)


def _stroke(look: Look) -> tuple[int, tuple[float, ...]]:
    return (0, look.dash or (1, 0))


def _of_hue(trials: pd.DataFrame, plan: Plan, level: Value | None) -> pd.DataFrame:
    return trials if level is None else trials[trials[plan.hue] == level]


def _label(level: Value | None) -> str:
    return "_" if level is None else _text(level)


def _positions(plan: Plan, levels: Sequence[Value]) -> list[float]:
    """Return where levels of x stand on the axis."""
    if plan.categorical:
        return [float(plan.levels[plan.x].index(level)) for level in levels]
    return [float(level) for level in levels]


def _draw_points(panel: Panel, plan: Plan) -> list[Estimate]:
    drawn = []
    step = 0.7 / len(plan.hues) if plan.categorical else 0.0
    for i, (level, look) in enumerate(plan.hues):
        part = _of_hue(panel.trials, plan, level)
        cells = _cells(part, [k for k in plan.keys if k != plan.hue])
        y = [estimate(cell, panel.y) for cell in cells.values()]
        drawn += y
        x: list[Any]
        if plan.x in PARAMETERS:
            x = [
                at + step * (i - (len(plan.hues) - 1) / 2) for at in _positions(plan, [k[-1] for k in cells])
            ]
        else:
            x = [estimate(cell, plan.x) for cell in cells.values()]
        pairs = [(a, b) for a, b in zip(x, y, strict=True) if not _is_missing(a) and not _is_missing(b)]
        if pairs:
            _bars(
                panel.axes,
                [a for a, _ in pairs],
                [b for _, b in pairs],
                label=_label(level),
                color=look.colour,
                linestyle="none",
                clip_on=not _metric(panel.y).share,
                zorder=3 + look.width,
                **_edged(look, 4.5),
            )
    return drawn


def _is_missing(value: float | Estimate) -> bool:
    return math.isnan(value.mean if isinstance(value, Estimate) else value)


def _draw_line(panel: Panel, plan: Plan) -> list[Estimate]:
    drawn = []
    for level, look in plan.hues:
        cells = _cells(_of_hue(panel.trials, plan, level), [plan.x])
        pairs = [(x, estimate(cell, panel.y)) for (x,), cell in cells.items()]
        drawn += [e for _, e in pairs]
        pairs = [(x, e) for x, e in pairs if not _is_missing(e)]
        if not pairs:
            continue
        x, y = zip(*pairs, strict=True)
        panel.axes.plot(
            x,
            [e.mean for e in y],
            label=_label(level),
            color=look.colour,
            linestyle=_stroke(look),
            linewidth=look.width,
            clip_on=False,
            zorder=3 + look.width,
            **_edged(look, 4),
        )
        low, high = [e.mean - e.reach[0] for e in y], [e.mean + e.reach[1] for e in y]
        panel.axes.fill_between(x, low, high, color=look.colour, alpha=0.2, linewidth=0, zorder=2)
    return drawn


def _draw_ecdf(panel: Panel, plan: Plan) -> list[Estimate]:
    drawn = []
    for level, look in plan.hues:
        part = _of_hue(panel.trials, plan, level)
        if part.empty:
            continue
        drawn.append(estimate(part, plan.x))
        if not drawn[-1].n:
            continue
        curve = distribution(part, plan.x, plan.reach)
        panel.axes.fill_between(
            curve.x,
            curve.low,
            curve.high,
            step="post",
            color=look.colour,
            alpha=0.15,
            linewidth=0.4,
            zorder=2,
        )
        panel.axes.plot(
            curve.x,
            curve.share,
            drawstyle="steps-post",
            label=_label(level),
            color=look.colour,
            linestyle=_stroke(look),
            linewidth=look.width,
            zorder=3,
            clip_on=False,
        )
        median = Estimate(*curve.median, drawn[-1].n, 0, constant=False)
        half = Estimate(0.5, math.nan, math.nan, 0, 0, constant=False)
        _bars(panel.axes, [median], [half], color=look.colour, linestyle="none", zorder=4, **_edged(look, 5))
    panel.axes.set_ylim(0, 1)
    return drawn


def _draw_heatmaps(figure: Figure, panels: Sequence[Panel], plan: Plan) -> list[list[Estimate]]:
    (y,) = plan.ys
    found = [
        {key: estimate(cell, plan.metrics[0]) for key, cell in _cells(panel.trials, [y, plan.x]).items()}
        for panel in panels
    ]
    means = [e.mean for cells in found for e in cells.values() if not _is_missing(e)]
    colours = (0.0, 1.0) if _metric(plan.metrics[0]).share or not means else (min(means), max(means))
    texts = [{key: _cell_text(e) for key, e in cells.items()} for cells in found]
    longest = max(len(line) for cells in texts for text in cells.values() for line in text.split("\n"))
    # Points of font size that fill a cell, less the room for axis labels and colour bar.
    cell = 72 * 0.72 * _axes_inches(panels[0].axes) / len(plan.levels[plan.x])
    look = dict(
        vmin=colours[0],
        vmax=colours[1],
        annot_kws={"size": min(6.5, max(4.5, cell / max(longest, 1) / 0.62))},
    )
    for panel, cells, words in zip(panels, found, texts, strict=True):
        _draw_heatmap(panel.axes, plan, cells, words, **look)
    if means:
        axes = [panel.axes for panel in panels]
        bar = figure.colorbar(axes[0].collections[0], ax=axes, aspect=25, pad=0.02)
        bar.set_label(_textwrap(axis_label(plan.metrics[0]), figure.get_figheight() * 0.7))
        bar.outline.set_visible(False)
    return [list(cells.values()) for cells in found]


def _draw_heatmap(
    ax: Axes,
    plan: Plan,
    cells: Mapping[tuple[Value, ...], Estimate],
    words: Mapping[tuple[Value, ...], str],
    **look: Any,
) -> None:
    import numpy as np
    import seaborn as sns

    rows, columns = list(plan.levels[plan.ys[0]]), plan.levels[plan.x]
    if _is_numeric(rows):
        # Numbers grow upwards, words are read downwards.
        rows.reverse()
    means = np.full((len(rows), len(columns)), np.nan)
    texts = np.full(means.shape, "", dtype=object)
    for (y, x), e in cells.items():
        at = rows.index(y), columns.index(x)
        means[at], texts[at] = e.mean, words[y, x]
    sns.heatmap(
        means,
        mask=np.isnan(means),
        cmap="cividis",
        annot=texts,
        fmt="",
        linewidths=0.5,
        cbar=False,
        xticklabels=[_text(level) for level in columns],
        yticklabels=[_text(level) for level in rows],
        ax=ax,
        **look,
    )
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.tick_params(axis="y", labelrotation=0)


def _cell_text(e: Estimate) -> str:
    """Spell a mean above half the width of its interval, to two digits of that, and at most four places."""
    if _is_missing(e):
        return ""
    half = (e.high - e.low) / 2
    if e.constant or math.isnan(half) or half == 0:
        number = f"{e.mean:.0f}" if float(e.mean).is_integer() else f"{e.mean:.3g}"
        return number + ("*" if e.constant else "" if half == 0 else f"\n(n = {e.n})")
    places = max(0, 1 - math.floor(math.log10(float(f"{half:.1e}"))))
    if places > 4:
        return f"{e.mean:.4f}\n±<0.0001"
    return f"{e.mean:.{places}f}\n±{half:.{places}f}"


def _each(draw_panel: Callable[[Panel, Plan], list[Estimate]]) -> Callable[..., list[list[Estimate]]]:
    return lambda figure, panels, plan: [draw_panel(panel, plan) for panel in panels]


_DRAWERS: dict[str, Callable[[Figure, Sequence[Panel], Plan], list[list[Estimate]]]] = {
    "parts": _each(_draw_parts),
    "points": _each(_draw_points),
    "line": _each(_draw_line),
    "ecdf": _each(_draw_ecdf),
    "heatmap": _draw_heatmaps,
}


# --- Axes, labels and legends ----------------------------------------------------------------------


def _finish(figure: Figure, panels: Sequence[Panel], plan: Plan, drawn: Sequence[Sequence[Estimate]]) -> None:
    columns = 1 + max(panel.column for panel in panels)
    values = _x_values(panels, plan)
    for panel in panels:
        if panel.heading:
            panel.axes.set_title(_textwrap(panel.heading, 0.9 * _axes_inches(panel.axes)))
        if plan.kind != "heatmap":
            _set_x_axis(panel, plan, values)
            _mark_limits(panel, plan)
        elif _crowded(panel.axes, plan):
            panel.axes.tick_params(axis="x", labelrotation=35)
    for y in dict.fromkeys(panel.y for panel in panels):
        same = [(panel.axes, found) for panel, found in zip(panels, drawn, strict=True) if panel.y == y]
        if plan.kind in ("points", "line"):
            _set_y_axis([ax for ax, _ in same], y, [e for _, found in same for e in found])
    for panel, found in zip(panels, drawn, strict=True):
        if all(e.n == 0 for e in found):
            panel.axes.text(
                0.5, 0.5, "no trial has a value", transform=panel.axes.transAxes, ha="center", va="center"
            )
    _label_axes(figure, panels, plan, columns)
    if plan.kind != "heatmap":
        _add_legend(figure, panels, plan)
    for panel in panels:
        panel.axes.spines[["top", "right"]].set_visible(False)
        panel.axes.spines[["left", "bottom"]].set_visible(plan.kind != "heatmap")


def _x_values(panels: Sequence[Panel], plan: Plan) -> list[float]:
    """Return the numbers that x takes in any panel, ascending; none if x stands for words."""
    if plan.categorical:
        return []
    if plan.x in PARAMETERS:
        return [float(level) for level in plan.levels[plan.x] if not isinstance(level, str)]
    return sorted({float(v) for panel in panels for v in _values(panel.trials, plan.x).dropna()})


def _set_x_axis(panel: Panel, plan: Plan, values: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis, inches = panel.axes.xaxis, _axes_inches(panel.axes)
    if plan.categorical:
        texts = [_text(level) for level in plan.levels[plan.x]]
        panel.axes.set_xticks(range(len(texts)), texts)
        panel.axes.set_xlim(-0.6, len(texts) - 0.4)
        if _crowded(panel.axes, plan):
            panel.axes.set_xticks(range(len(texts)), texts, rotation=35, ha="right", rotation_mode="anchor")
        return
    if plan.scale == "log" and min(values, default=0) > 0:
        panel.axes.set_xscale("log")
    elif plan.scale != "linear":
        start = min((value for value in values if value > 0), default=1.0)
        panel.axes.set_xscale("symlog", linthresh=start, linscale=0.6)
    if plan.kind == "parts":
        panel.axes.set_xlim(values[0], values[-1])
    if plan.kind == "ecdf" and values and plan.x not in _PROMPT_SIZES:
        panel.axes.set_xlim(*plan.reach)
    axis.set_major_formatter(FuncFormatter(lambda value, _: _text(round(float(value), 9))))
    axis.set_minor_locator(NullLocator())
    if plan.x in PARAMETERS and (plan.scale != "linear" or len(values) <= 8):
        transform = axis.get_transform().transform
        axis.set_major_locator(
            FixedLocator(_thinned(values, [float(v) for v in transform(values)], inches * 0.8))
        )
    elif not values:
        panel.axes.set_xticks([])
    elif plan.scale == "linear":
        panel.axes.locator_params(axis="x", nbins=4 if inches < 2 else 6)
        if values[0] >= 0 > panel.axes.get_xlim()[0]:
            panel.axes.set_xlim(left=0)


def _crowded(ax: Axes, plan: Plan) -> bool:
    """Say whether the names of levels of x are too long to stand side by side."""
    levels = plan.levels[plan.x]
    return max(len(_text(level)) for level in levels) * 0.052 > 0.8 * _axes_inches(ax) / len(levels)


def _thinned(values: Sequence[float], at: Sequence[float], inches: float) -> list[float]:
    """Return the values whose labels do not overlap: both ends first, then the others from the left."""
    span = (max(at) - min(at)) or 1.0
    kept: list[tuple[float, float, float]] = []
    for i in dict.fromkeys((0, len(values) - 1, *range(len(values)))):
        place, half = (at[i] - min(at)) / span * inches, 0.03 * len(_text(values[i])) + 0.03
        if all(abs(place - other) >= half + reach for _, other, reach in kept):
            kept.append((values[i], place, half))
    return sorted(value for value, _, _ in kept)


def _set_y_axis(axes: Sequence[Axes], y: str, drawn: Sequence[Estimate]) -> None:
    """Let shares run from 0 to 1 and other metrics from 0, unless some means are negative."""
    from matplotlib.ticker import FuncFormatter

    means = [e.mean for e in drawn if not _is_missing(e)]
    highest = max((e.mean + e.reach[1] for e in drawn if not _is_missing(e)), default=0.0)
    share = _metric(y).share
    for ax in axes:
        if min(means, default=0) >= 0:
            ax.set_ylim(0, 1.0 if share else 1.05 * highest or 1.0)
        if not share:
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _text(round(float(value), 9))))
        if not means:
            ax.set_yticks([])


def _mark_limits(panel: Panel, plan: Plan) -> None:
    """Mark the prefill pool and the context limit where x is the size of a prompt."""
    if plan.x not in _PROMPT_SIZES or plan.categorical:
        return
    marks = {}
    for name, label in _LIMITS.items():
        for value in panel.trials[name].unique():
            panel.axes.axvline(value, color="#777777", linewidth=0.8, linestyle=(0, (1, 1.2)), zorder=1)
            marks[float(value)] = f"{label}\n{_text(int(value))}"
    if panel.row == 0:
        top = panel.axes.secondary_xaxis("top")
        top.set_xticks(list(marks), list(marks.values()))
        top.tick_params(length=2)
        top.spines["top"].set_visible(False)


def _label_axes(figure: Figure, panels: Sequence[Panel], plan: Plan, columns: int) -> None:
    x = axis_label(plan.x)
    if plan.kind in ("parts", "ecdf"):
        y_labels = {"": "share of trials (cumulative)" if plan.kind == "ecdf" else "share of context"}
    else:
        y_labels = {name: axis_label(name) for name in plan.ys}
        y_labels[""] = y_labels[plan.ys[0]]
    if columns == 1:
        panels[-1].axes.set_xlabel(x)
    else:
        figure.supxlabel(x, fontsize=7.5)
    heights = figure.get_figheight() / (1 + max(panel.row for panel in panels))
    for panel in panels:
        # Facets of one y share its label; different ones side by side have each their own.
        if panel.column == 0 or (len(plan.ys) > 1 and plan.col is None and plan.kind != "heatmap"):
            panel.axes.set_ylabel(_textwrap(y_labels[panel.y], heights * 0.8))
        else:
            panel.axes.set_ylabel("")


def _add_legend(figure: Figure, panels: Sequence[Panel], plan: Plan) -> None:
    """Put one legend above all panels, where it hides nothing."""
    entries: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    order = [_text(level) for level, _ in plan.hues if level is not None and _text(level) in entries]
    labels = order or list(entries)
    room = 0.5 if plan.kind in ("line", "ecdf") else 0.3
    width = figure.get_figwidth()
    if sum(0.055 * len(label) + room for label in labels) <= width:
        columns = len(labels)
    else:
        columns = max(1, int(width / (0.055 * max(map(len, labels)) + room)))
    title = axis_label(plan.hue) if plan.hue and plan.hue != "policy" else None
    figure.legend(
        [entries[label] for label in labels],
        labels,
        loc="outside upper center",
        ncols=columns,
        title=title,
        title_fontsize=7,
        handlelength=None if plan.kind in ("line", "ecdf") else 1.2,
        columnspacing=1.0,
    )


def _axes_inches(ax: Axes) -> float:
    """Return roughly how wide a set of axes is, before its labels take their room."""
    grid = ax.get_subplotspec()
    return float(ax.figure.get_figwidth() / (grid.get_gridspec().ncols if grid else 1))  # type: ignore[union-attr]


def _textwrap(text: str, inches: float) -> str:
    import textwrap

    return textwrap.fill(text, max(12, int(inches / 0.06)))


def axis_label(name: str) -> str:
    """Return what stands on an axis: a name in words, with the unit unless the words say it."""
    if name in PARAMETERS:
        words, unit = name.replace("_", " "), PARAMETERS[name].unit
    else:
        words, unit = _metric(name).label, _metric(name).unit
    return words if not unit or unit in words or words.endswith(unit) else f"{words} ({unit})"


def _text(value: Value) -> str:
    """Spell a level: ``fifo``, ``0.3``, ``1,048,576``."""
    text = as_text(value)
    return f"{int(text):,}" if text.removeprefix("-").isdigit() else text


def _heading(name: str, value: Value) -> str:
    """Say which level of a facet a panel shows."""
    if name == "policy":
        return str(value)
    unit = PARAMETERS[name].unit
    words = name.replace("_", " ")
    return f"{words} {_text(value)}" + (
        "" if " " in unit or unit in words or isinstance(value, str) else f" {unit}"
    )


# --- Captions --------------------------------------------------------------------------------------


def _caption(
    claim: str,
    plan: Plan,
    trials: pd.DataFrame,
    drawn: Sequence[Sequence[Estimate]],
    pooled: Sequence[str],
) -> str:
    every = [e for found in drawn for e in found]
    sentences = [claim.strip(), _what(plan), *_how(plan, every), *_counts(plan, trials, every), *pooled]
    if plan.units is not None:
        sentences.append(
            f"The points of one {_hue_word(plan)} are the values of {_level_list(plan, plan.units)}."
        )
    fixed = [
        _heading(name, plan.levels[name][0]) if name != "policy" else f"policy {plan.levels[name][0]}"
        for name, parameter in PARAMETERS.items()
        if len(plan.levels[name]) == 1 and plan.levels[name][0] != parameter.default
    ]
    sentences.append(f"Throughout: {'; '.join(fixed)}." if fixed else "")
    sentences.append("All other parameters have their defaults.")
    return " ".join(sentence for sentence in sentences if sentence)


def _what(plan: Plan) -> str:
    """Say what is shown against what."""
    if plan.kind == "parts":
        what = (
            "Parts of the oversized request's context: foreign, never written, and its own placeholder page"
        )
    elif plan.kind == "ecdf":
        what = f"Distribution over trials of {_named(plan.x)}"
    else:
        words = _and([_named(name) for name in plan.metrics])
        what = words[:1].upper() + words[1:]
    if plan.kind == "heatmap":
        what += f" by {plan.x.replace('_', ' ')} and {plan.ys[0].replace('_', ' ')}"
    elif plan.kind != "ecdf":
        what += f" against {'' if plan.x in PARAMETERS else 'mean '}{_named(plan.x)}"
    by = [_named(name) for name in (plan.hue, plan.col, plan.row) if name]
    return what + (f", by {_and(by)}." if by else ".")


def _how(plan: Plan, drawn: Sequence[Estimate]) -> Iterator[str]:
    """Say what marks, bars and bands are."""
    if plan.kind == "ecdf":
        yield (
            "Steps: empirical distribution function; band: 95% simultaneous confidence band "
            "(Dvoretzky-Kiefer-Wolfowitz, with Massart's constant)"
            + ("." if not plan.pooled else ", averaged over the pooled scenarios after Bonferroni.")
        )
        yield "Mark: median" + ("." if plan.pooled else ", with its 95% interval from order statistics.")
        return
    shown = {"parts": "boundaries", "points": "points", "line": "line and marks", "heatmap": "cells"}[
        plan.kind
    ]
    where = {"parts": "bars", "points": "bars", "line": "band", "heatmap": "±"}[plan.kind]
    metrics = [_metric(name) for name in (*plan.metrics, plan.x) if name not in PARAMETERS]
    wilson = [m for m in metrics if m.of_trials and not plan.pooled]
    shares = [m for m in metrics if m.share and m not in wilson]
    methods = []
    if shares:
        methods.append(
            "Student's t with Hall's correction for skewness" + (" for shares" * (metrics != shares))
        )
    if len(metrics) > len(shares) + len(wilson):
        methods.insert(0, "Student's t")
    if wilson:
        methods.append("Wilson's" + " for shares of trials" * (metrics != wilson))
    if all(math.isnan(e.low) for e in drawn):
        yield f"{shown.capitalize()}: means over trials, without interval."
        return
    width = "half the width of " if plan.kind == "heatmap" else ""
    yield (
        f"{shown.capitalize()}: means over trials; {where}: {width}95% confidence intervals "
        f"({', '.join(methods)})."
    )


def _counts(plan: Plan, trials: pd.DataFrame, drawn: Sequence[Estimate]) -> Iterator[str]:
    """Say over how many trials, and what has no interval or no value."""
    counts = sorted({e.n for e in drawn})
    noun = "seeds" if plan.pooled and plan.kind != "ecdf" else "trials"
    if counts:
        each = " each" if len(drawn) > 1 else ""
        yield f"n = {_range(counts)} {noun[:-1] if counts == [1] else noun}{each}."
    if plan.kind != "ecdf":
        single = sum(e.n == 1 and math.isnan(e.low) for e in drawn)
        constant = sum(e.constant for e in drawn)
        cut = sum(e.low < 0 <= e.mean for e in drawn) if plan.kind in ("points", "line") else 0
        if cut:
            yield f"{cut} of {len(drawn)} intervals reach below 0 and are cut there."
        if single:
            yield f"{single} of {len(drawn)} means rest on one trial and have no interval."
        if constant:
            star = ", marked with a star" if plan.kind == "heatmap" else ""
            yield f"{constant} of {len(drawn)} are means of equal values{star}: an interval of no width."
    missing = sum(e.missing for e in drawn)
    if plan.kind == "heatmap" and any(e.n == 0 for e in drawn):
        yield "Blank: no trial has a value."
    if missing:
        lacking = trials[_lacking(plan, trials)]
        why = " (they read no foreign page)" if (lacking["foreign_pages"] == 0).all() else ""
        total = missing + sum(e.n for e in drawn)
        yield f"Left out: {missing:,} of {total:,} values, of trials that have none{why}."


def _lacking(plan: Plan, trials: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Say which trials lack a value of some metric that is shown."""
    import numpy as np

    lacking: npt.NDArray[np.bool_] = np.zeros(len(trials), dtype=bool)
    for name in plan.metrics:
        lacking |= _values(trials, name).isna().to_numpy()
    return lacking


def _pooled_sentences(plan: Plan, trials: pd.DataFrame) -> tuple[str, ...]:
    if not plan.pooled:
        return ()
    scenarios = len(trials[list(plan.pooled)].map(as_text).drop_duplicates())
    dimensions = _and([_level_list(plan, name) for name in plan.pooled])
    return (f"Pooled: each mean is over {scenarios} scenarios that differ in {dimensions}, seed by seed.",)


def _level_list(plan: Plan, name: str) -> str:
    levels = [_text(level) for level in plan.levels[name]]
    return f"{name.replace('_', ' ')} ({_enumerated(levels)})"


def _enumerated(levels: Sequence[Any]) -> str:
    texts = [level if isinstance(level, str) else _text(level) for level in levels]
    separator = "; " if any("," in text for text in texts) else ", "
    return separator.join(texts) if len(texts) <= 8 else f"{len(texts)} values from {texts[0]} to {texts[-1]}"


def _range(counts: Sequence[int]) -> str:
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"


def _named(name: str) -> str:
    return name.replace("_", " ") if name in PARAMETERS else _metric(name).label


def _hue_word(plan: Plan) -> str:
    return plan.hue.replace("_", " ") if plan.hue else "panel"


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + list(words[-1:]))
