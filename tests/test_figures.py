"""What is drawn is read back from the axes and compared with numbers computed here from the trials."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import ErrorbarContainer
from scipy import stats

from kvsim.figures import KINDS, Drawing, axis_label, check, draw, save
from kvsim.outcomes import OUTCOMES, TRIAL_COLUMNS, column_type
from kvsim.scenario import PARAMETERS, POLICIES, Scenario
from kvsim.statistics import ecdf_band, mean_interval, median_interval, share_interval
from kvsim.style import PALETTE, PARTS, looks


def make_trials(scenarios, seeds=8, *, start=0) -> pd.DataFrame:
    """Trials whose numbers differ between any two scenarios, and that are as they might have been."""
    rows = []
    for i, scenario in enumerate(scenarios):
        rng = np.random.default_rng(100 + i)
        for seed in range(start, start + seeds):
            pages = 10_000 + 10 * i
            foreign = (int(rng.integers(0, 4000)) + 300 * i) % pages
            row = {name: getattr(scenario, name) for name in PARAMETERS} | {"seed": seed}
            row |= {name: int(rng.integers(1, 60)) + i for name in OUTCOMES}
            row |= dict(pages=pages, foreign_pages=foreign, never_written=pages - 1 - foreign)
            row |= dict(
                foreign_frac=foreign / pages, kv_cache_usage=(0.1 + 0.1 * i + 0.01 * rng.random()) % 1
            )
            row |= dict(prompt_tokens_drawn=700_000 + 1000 * i + int(rng.integers(0, 500)))
            rows.append(row)
    return as_trials(pd.DataFrame(rows))


def as_trials(frame: pd.DataFrame) -> pd.DataFrame:
    for name in TRIAL_COLUMNS:
        words = name in PARAMETERS and PARAMETERS[name].choices
        frame[name] = frame[name].astype(object if words else column_type(name))
    return frame[list(TRIAL_COLUMNS)]


def nothing_exposed(trials: pd.DataFrame) -> pd.DataFrame:
    trials = trials.assign(foreign_pages=0, never_written=trials["pages"] - 1, foreign_frac=0.0)
    trials = trials.assign(distinct_requests=0, distinct_tenants=0)
    return as_trials(trials.assign(median_age=math.nan, max_age=-1))


def grid(**values) -> list[Scenario]:
    return [Scenario(**dict(zip(values, v, strict=True))) for v in itertools.product(*values.values())]


def cells(trials: pd.DataFrame, **at) -> pd.DataFrame:
    for name, value in at.items():
        trials = trials[trials[name] == value]
    assert len(trials)
    return trials


def legend_colours(drawing: Drawing) -> dict[str, str]:
    (legend,) = drawing.figure.legends
    colours = {}
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        if hasattr(handle, "get_color"):
            colours[text.get_text()] = to_hex(handle.get_color())
        else:
            colours[text.get_text()] = to_hex(handle.get_facecolor())
    return colours


def data_axes(drawing: Drawing):
    return [ax for ax in drawing.figure.axes if ax.get_label() != "<colorbar>"]


def points(ax) -> dict[str, dict[str, np.ndarray]]:
    """Read marks and the ends of their bars from axes, by colour."""
    found = {}
    for container in ax.containers:
        assert isinstance(container, ErrorbarContainer)
        marks, _, bars = container.lines
        ends = {}
        for bar in bars:
            segments = np.array(bar.get_segments())
            kind = "y" if np.allclose(segments[:, 0, 0], segments[:, 1, 0]) else "x"
            ends[kind] = segments[:, :, "xy".index(kind)]
            assert not np.isnan(segments).any()
            assert to_hex(bar.get_color()[0]) == to_hex(marks.get_color())
        found[to_hex(marks.get_color())] = {"at": np.array(marks.get_xydata())} | ends
    return found


def texts_of(drawing: Drawing) -> list[str]:
    return [ax.get_title() for ax in data_axes(drawing) if ax.get_title()]


# --- Numbers read back -------------------------------------------------------------------------------


def test_points_stand_at_the_means_with_their_intervals_in_the_colour_that_the_legend_names():
    # Words out of order, and levels that sort differently as text and as numbers.
    trials = make_trials(grid(policy=["random", "lifo", "fifo"], utilisation=[0.3, 0.6]))
    declaration = dict(
        kind="points", x="kv_cache_usage", y=["foreign_frac", "distinct_tenants"], hue="policy"
    )
    drawing = draw(declaration, trials)
    colours = legend_colours(drawing)
    assert list(colours) == ["random", "lifo", "fifo"]
    assert colours == {name: PALETTE[name].colour.lower() for name in colours}
    for ax, y, bounds in zip(
        data_axes(drawing), ["foreign_frac", "distinct_tenants"], [(0, 1), None], strict=True
    ):
        assert ax.get_ylabel() == axis_label(y)
        drawn = points(ax)
        for policy, colour in colours.items():
            for i, utilisation in enumerate([0.3, 0.6]):
                part = cells(trials, policy=policy, utilisation=utilisation)
                x = mean_interval(part["kv_cache_usage"].to_numpy(), bounds=(0, 1))
                mean = mean_interval(part[y].to_numpy(), bounds=bounds)
                np.testing.assert_allclose(drawn[colour]["at"][i], [x.mean, mean.mean])
                np.testing.assert_allclose(drawn[colour]["y"][i], [mean.low, mean.high])
                np.testing.assert_allclose(drawn[colour]["x"][i], [x.low, x.high])
    assert "n = 8 trials each" in drawing.caption
    assert "utilisation (0.3, 0.6)" in drawing.caption
    assert not drawing.pooled


def test_points_against_a_policy_stand_beside_their_label_and_shares_of_trials_have_wilson_intervals():
    trials = make_trials(grid(policy=["fifo", "lifo"], warm_steps=[100, 20]))
    trials.loc[trials.index[::3], "foreign_pages"] = 0
    drawing = draw(dict(kind="points", x="policy", y="exposed", hue="warm_steps"), trials)
    (ax,) = data_axes(drawing)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["fifo", "lifo"]
    colours = legend_colours(drawing)
    assert list(colours) == ["20", "100"]
    for (steps, colour), position in itertools.product(colours.items(), (0, 1)):
        part = cells(trials, policy=["fifo", "lifo"][position], warm_steps=int(steps))
        share = share_interval((part["foreign_pages"] > 0).sum(), len(part))
        drawn = points(ax)[colour]
        assert drawn["at"][position][0] == pytest.approx(position, abs=0.4)
        assert drawn["at"][position][1] == pytest.approx(share.share)
        np.testing.assert_allclose(drawn["y"][position], [share.low, share.high])
    assert "Wilson" in drawing.caption


def test_lines_and_bands_follow_the_means_of_their_policy():
    trials = make_trials(grid(policy=["lifo", "fifo", "random"], warm_steps=[3000, 0, 20]))
    drawing = draw(dict(kind="line", x="warm_steps", y="foreign_frac", hue="policy", scale="symlog"), trials)
    (ax,) = data_axes(drawing)
    colours = legend_colours(drawing)
    lines = {to_hex(line.get_color()): line for line in ax.lines}
    bands = {to_hex(band.get_facecolor()[0]): band for band in ax.collections}
    assert set(lines) == set(bands) == set(colours.values())
    for policy, colour in colours.items():
        assert lines[colour].get_label() == policy
        assert lines[colour].get_marker() == PALETTE[policy].marker
        corners = bands[colour].get_paths()[0].vertices
        for steps, (x, y) in zip([0, 20, 3000], lines[colour].get_xydata(), strict=True):
            e = mean_interval(cells(trials, policy=policy, warm_steps=steps)["foreign_frac"], bounds=(0, 1))
            assert (x, y) == pytest.approx((steps, float(e.mean)))
            at = corners[corners[:, 0] == steps][:, 1]
            assert (at.min(), at.max()) == pytest.approx((float(e.low), float(e.high)))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "20", "3,000"]


@pytest.mark.parametrize("x", ["policy", "warm_steps"])
def test_parts_are_stacked_to_one_and_their_boundaries_have_intervals(x):
    levels = {"policy": ["random", "lifo"], "warm_steps": [0, 20]}[x]
    trials = make_trials(grid(**{x: levels}))
    drawing = draw(dict(kind="parts", x=x), trials)
    (ax,) = data_axes(drawing)
    assert list(legend_colours(drawing).items()) == [
        (label, colour.lower()) for label, colour in PARTS.values()
    ]
    for i, level in enumerate(levels):
        part = cells(trials, **{x: level})
        at = i if x == "policy" else level
        foreign = (part["foreign_pages"] / part["pages"]).mean()
        unwritten = (part["never_written"] / part["pages"]).mean()
        wanted = [(0, foreign), (foreign, foreign + unwritten), (foreign + unwritten, 1)]
        if x == "policy":
            bars = [patch for patch in ax.patches if patch.get_x() < at < patch.get_x() + patch.get_width()]
            drawn = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in bars]
        else:
            areas = [area.get_paths()[0].vertices for area in ax.collections[:3]]
            ends = [area[area[:, 0] == at][:, 1] for area in areas]
            drawn = [(end.min(), end.max()) for end in ends]
        np.testing.assert_allclose(drawn, wanted, atol=1e-12)
        e = mean_interval(part["foreign_frac"], bounds=(0, 1))
        errorbars = [c for c in ax.containers if isinstance(c, ErrorbarContainer)]
        np.testing.assert_allclose(errorbars[0].lines[2][0].get_segments()[i][:, 1], [e.low, e.high])


def test_a_distribution_is_drawn_with_its_band_and_its_median():
    trials = make_trials(grid(policy=["lifo", "fifo"]), seeds=20)
    trials.loc[trials.index[:3], "max_age"] = -1
    drawing = draw(dict(kind="ecdf", x="max_age", hue="policy"), trials)
    (ax,) = data_axes(drawing)
    colours = legend_colours(drawing)
    for policy, colour in colours.items():
        values = cells(trials, policy=policy)["max_age"].to_numpy()
        band = ecdf_band(values, missing=-1)
        (line,) = [line for line in ax.lines if line.get_label() == policy]
        assert to_hex(line.get_color()) == colour
        assert line.get_drawstyle() == "steps-post"
        x, share = line.get_data()
        own = np.isin(x, band.x)
        np.testing.assert_array_equal(x[own], band.x)
        np.testing.assert_allclose(share[own], band.share)
        assert share[x < band.x[0]].max() == 0
        assert share[x > band.x[-1]].min() == 1
        areas = [area for area in ax.collections if isinstance(area, PolyCollection)]
        (shade,) = [area for area in areas if to_hex(area.get_facecolor()[0]) == colour]
        corners = shade.get_paths()[0].vertices
        at = corners[corners[:, 0] == band.x[0]][:, 1]
        half = math.sqrt(math.log(2 / 0.05) / (2 * band.n))
        assert at.max() == pytest.approx(band.high[0])
        assert corners[corners[:, 0] == x[0]][:, 1].max() == pytest.approx(half)
        median = median_interval(values, missing=-1)
        mark = points(ax)[colour]
        np.testing.assert_allclose(mark["at"], [[median.quantile, 0.5]])
        np.testing.assert_allclose(mark["x"], [[median.low, median.high]])
    assert "Left out: 3 of 40 values" in drawing.caption
    assert "Dvoretzky-Kiefer-Wolfowitz" in drawing.caption


def test_a_heat_map_writes_mean_and_half_width_into_the_right_cell():
    trials = make_trials(grid(policy=["random", "lifo"], warm_steps=[3000, 0, 20]))
    drawing = draw(dict(kind="heatmap", x="warm_steps", y="policy", values="foreign_frac"), trials)
    (ax,) = data_axes(drawing)
    columns = [tick.get_text() for tick in ax.get_xticklabels()]
    rows = [tick.get_text() for tick in ax.get_yticklabels()]
    assert (columns, rows) == (["0", "20", "3,000"], ["random", "lifo"])
    mesh = ax.collections[0]
    for text in ax.texts:
        column, row = (math.floor(v) for v in text.get_position())
        part = cells(trials, policy=rows[row], warm_steps=int(columns[column].replace(",", "")))
        e = mean_interval(part["foreign_frac"], bounds=(0, 1))
        mean, half = text.get_text().split("\n±")
        assert float(mean) == pytest.approx(float(e.mean), abs=0.51 * 10 ** -(len(mean) - 2))
        assert float(half) == pytest.approx(float(e.high - e.low) / 2, rel=0.06)
        assert mesh.get_array()[row, column] == pytest.approx(float(e.mean))
    assert len(ax.texts) == 6
    assert mesh.get_clim() == (0, 1)


def test_swapped_hues_would_be_noticed():
    trials = make_trials(grid(policy=["lifo", "fifo"], utilisation=[0.3, 0.6]))
    swapped = trials.assign(policy=trials["policy"].map({"lifo": "fifo", "fifo": "lifo"}))
    declaration = dict(kind="points", x="kv_cache_usage", y="foreign_frac", hue="policy")
    a, b = (
        points(data_axes(draw(declaration, t))[0])[PALETTE["lifo"].colour.lower()] for t in (trials, swapped)
    )
    assert not np.allclose(a["at"], b["at"])


@pytest.mark.parametrize(
    ("x", "scale"),
    [
        (dict(warm_steps=[0, 5, 3000]), "symlog"),
        (dict(warm_steps=[20, 3000]), "log"),
        (dict(warm_steps=[100, 3000]), "linear"),
        (dict(policy=["lifo", "fifo"]), "linear"),
    ],
)
def test_a_parameter_that_spans_two_decades_is_not_shown_on_a_linear_axis(x, scale):
    trials = make_trials(grid(**x))
    (name,) = x
    assert data_axes(draw(dict(kind="points", x=name, y="pages"), trials))[0].get_xscale() == scale
    if name != "policy":
        declaration = dict(kind="points", x=name, y="pages", scale="linear")
        assert data_axes(draw(declaration, trials))[0].get_xscale() == "linear"


# --- New dimensions ----------------------------------------------------------------------------------


OTHER_VALUES = {"policy": "fifo", "prompt_tokens": 850_000}


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "warm_steps"])
def test_a_parameter_that_varies_and_is_not_placed_becomes_a_facet(name):
    default = PARAMETERS[name].default
    other = OTHER_VALUES.get(name)
    if other is None:
        other = next(v for v in (default + 1, default / 2, default * 0.9) if _is_allowed(name, v))
    scenarios = [replace(s, **{name: v}) for v in (default, other) for s in grid(warm_steps=[0, 20])]
    trials = make_trials(scenarios)
    drawing = draw(dict(kind="points", x="warm_steps", y="foreign_frac"), trials)
    axes = data_axes(drawing)
    headings = texts_of(drawing)
    assert len(axes) == len(set(headings)) == 2
    assert not drawing.pooled
    # A facet that is numeric is in ascending order; numbers come before words.
    levels = sorted({default, other}, key=lambda v: (isinstance(v, str) and (default, other).index(v) + 1, v))
    if all(isinstance(v, str) for v in levels):
        levels = [default, other]
    for ax, level in zip(axes, levels, strict=True):
        wanted = [cells(trials, warm_steps=w, **{name: level})["foreign_frac"].mean() for w in (0, 20)]
        np.testing.assert_allclose(next(iter(points(ax).values()))["at"][:, 1], wanted)


def _is_allowed(name, value) -> bool:
    try:
        Scenario(**{name: value})
    except ValueError:
        return False
    return PARAMETERS[name].kind != "integer" or float(value).is_integer()


def test_what_would_need_too_many_panels_is_pooled_seed_by_seed_and_said(caplog):
    tenants = list(range(100, 113))
    trials = make_trials(grid(policy=["lifo", "fifo"], tenants=tenants), seeds=5)
    drawing = draw(dict(kind="points", x="policy", y="foreign_frac"), trials)
    (ax,) = data_axes(drawing)
    (drawn,) = points(ax).values()
    for i, policy in enumerate(["lifo", "fifo"]):
        by_seed = cells(trials, policy=policy).groupby("seed")["foreign_frac"].mean()
        e = mean_interval(by_seed.to_numpy(), bounds=(0, 1))
        assert drawn["at"][i][1] == pytest.approx(float(e.mean))
        np.testing.assert_allclose(drawn["y"][i], [e.low, e.high])
    (sentence,) = drawing.pooled
    assert sentence in drawing.caption
    assert "13 scenarios that differ in tenants (13 values from 100 to 112)" in sentence
    assert "n = 5 seeds each" in drawing.caption
    assert caplog.messages == [sentence]


def test_a_pooled_distribution_is_the_mean_of_the_scenarios_with_a_band_that_holds_for_all():
    trials = make_trials(grid(tenants=list(range(100, 113))), seeds=5)
    drawing = draw(dict(kind="ecdf", x="distinct_tenants"), trials)
    (ax,) = data_axes(drawing)
    (line,) = [line for line in ax.lines if line.get_drawstyle() == "steps-post"]
    values = trials["distinct_tenants"].to_numpy()
    for x, share in zip(*line.get_data(), strict=True):
        assert share == pytest.approx((values <= x).mean())
    half = math.sqrt(math.log(2 * 13 / 0.05) / (2 * 5))
    start = ax.collections[0].get_paths()[0].vertices
    assert start[start[:, 0] == line.get_xdata()[0]][:, 1].max() == pytest.approx(min(half, 1))
    assert drawing.pooled


def test_facets_hold_the_trials_of_their_heading_also_when_grids_are_joined():
    scenarios = grid(policy=["lifo"], warm_steps=[0, 20]) + grid(policy=["fifo"], warm_steps=[20, 500])
    trials = make_trials(scenarios)
    drawing = draw(dict(kind="points", x="pages", y="foreign_frac", col="policy", row="warm_steps"), trials)
    wanted = {"warm steps 0, lifo", "warm steps 20, lifo", "warm steps 20, fifo", "warm steps 500, fifo"}
    assert set(texts_of(drawing)) == wanted
    assert len(data_axes(drawing)) == 4
    for ax in data_axes(drawing):
        steps, policy = ax.get_title().removeprefix("warm steps ").split(", ")
        (drawn,) = points(ax).values()
        wanted = cells(trials, policy=policy, warm_steps=int(steps))["foreign_frac"].mean()
        np.testing.assert_allclose(drawn["at"][:, 1], [wanted])


def test_prompt_sizes_are_marked_by_the_prefill_pool_and_the_context_limit():
    trials = make_trials(grid(prompt_tokens=["uniform", 681_281, 850_000]))
    drawing = draw(dict(kind="points", x="prompt_tokens_drawn", y="foreign_frac"), trials)
    (ax,) = data_axes(drawing)
    upright = {line.get_xdata()[0] for line in ax.lines if list(line.get_ydata()) == [0, 1]}
    assert upright == {681_280, 1_048_576}
    assert [t.get_text() for t in ax.child_axes[0].get_xticklabels()] == [
        "prefill pool\n681,280",
        "context limit\n1,048,576",
    ]


def test_where_restricts_the_figure_and_the_caption_says_so():
    trials = make_trials(grid(policy=["lifo", "fifo"], warm_steps=[0, 20]))
    drawing = draw(dict(kind="parts", x="warm_steps", where={"policy": "fifo"}, caption="A claim."), trials)
    assert len(data_axes(drawing)) == 1
    assert drawing.caption.startswith("A claim. Parts of the oversized request's context")
    assert "Throughout: policy fifo." in drawing.caption


def test_prompt_tokens_may_be_text_as_in_files():
    trials = make_trials(grid(prompt_tokens=["uniform", 850_000, 681_281]))
    as_text = trials.assign(prompt_tokens=trials["prompt_tokens"].map(str))
    declaration = dict(kind="points", x="prompt_tokens", y="foreign_frac")
    for frame in (trials, as_text):
        (ax,) = data_axes(draw(declaration, frame))
        assert [t.get_text() for t in ax.get_xticklabels()] == ["681,281", "850,000", "uniform"]


# --- Little data -------------------------------------------------------------------------------------


DECLARATIONS = {
    "parts": dict(kind="parts", x="warm_steps", scale="symlog"),
    "points": dict(kind="points", x="kv_cache_usage", y=["foreign_frac", "median_age"], hue="policy"),
    "line": dict(kind="line", x="warm_steps", y=["max_age", "exposed"], hue="policy", scale="symlog"),
    "ecdf": dict(kind="ecdf", x="median_age", hue="policy", scale="log"),
    "heatmap": dict(kind="heatmap", x="warm_steps", y="policy", values="median_age"),
}
SMALL = {
    "one trial": make_trials([Scenario()], seeds=1),
    "one trial, nothing exposed": nothing_exposed(make_trials([Scenario(warm_steps=0)], seeds=1)),
    "one scenario": make_trials([Scenario()]),
    "one seed": make_trials(grid(policy=["lifo", "fifo"], warm_steps=[0, 20]), seeds=1),
    "nothing exposed": nothing_exposed(make_trials(grid(policy=["lifo", "fifo"], warm_steps=[0, 20]))),
    "equal values": make_trials(grid(warm_steps=[0, 20])).assign(foreign_frac=1.0, median_age=7.0, max_age=7),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trials", SMALL.values(), ids=list(SMALL))
def test_little_data_makes_figures_without_warning_or_nan_or_empty_panel(kind, trials):
    drawing = draw(DECLARATIONS[kind], trials)
    FigureCanvasAgg(drawing.figure).draw()
    for ax in data_axes(drawing):
        for container in ax.containers:
            if isinstance(container, ErrorbarContainer):
                assert not any(np.isnan(s).any() for bar in container.lines[2] for s in bar.get_segments())
        for line in ax.lines:
            assert not np.isnan(np.asarray(line.get_xydata(), dtype=float)).any()
        for area in ax.collections:
            # The cells of a heat map that have no value are masked, and stay blank.
            assert not any(np.isnan(path.vertices).any() for path in area.get_paths())
        assert ax.texts or ax.lines or ax.containers
        empty = not (ax.lines or ax.containers or kind == "heatmap")
        assert empty == ([t.get_text() for t in ax.texts] == ["no trial has a value"] and kind != "heatmap")
    assert "nan" not in drawing.caption


# --- Looks -------------------------------------------------------------------------------------------

# G. M. Machado, M. M. Oliveira and L. A. F. Fernandes, IEEE Trans. Vis. Comput. Graph. 15 (2009) 1291-1298.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def lab(colour: str, vision) -> np.ndarray:
    """CIE L*a*b* of a colour as somebody sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(vision) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    f = np.array([np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz / [0.9505, 1, 1.089]])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
def test_policies_differ_for_the_colour_blind(vision):
    # 2.3 is a just noticeable difference.
    for a, b in itertools.combinations(PALETTE.values(), 2):
        assert np.linalg.norm(lab(a.colour, VISIONS[vision]) - lab(b.colour, VISIONS[vision])) > 12
    parts = [colour for _, colour in PARTS.values()]
    lightness = sorted(lab(colour, VISIONS[vision])[0] for colour in parts)
    assert np.diff(lightness).min() > 8


def test_policies_differ_in_grey_by_marker_and_dash():
    assert set(POLICIES) <= set(PALETTE)
    assert len({look.marker for look in PALETTE.values()}) == len(PALETTE) == 8
    assert len({look.dash for look in PALETTE.values()}) == 8
    assert max(PALETTE, key=lambda name: PALETTE[name].width) == "sglang-disaggregated"


def test_other_hues_have_no_colour_of_a_policy_and_grow_darker_with_numbers():
    policies = {look.colour for look in PALETTE.values()}
    numbers, words = looks([1, 20, 300, 4000]), looks(["a", "b", "c"])
    assert not {look.colour.upper() for look in numbers + words} & policies
    lightness = [lab(look.colour, VISIONS["normal"])[0] for look in numbers]
    assert lightness == sorted(lightness, reverse=True)
    with pytest.raises(ValueError, match="hue has 9 levels"):
        looks(list(range(9)))


CASES = {
    "parts": (DECLARATIONS["parts"], grid(warm_steps=[0, 1, 5, 20, 100, 500, 3000])),
    "points": (DECLARATIONS["points"], grid(policy=POLICIES, utilisation=[0.3, 0.6])),
    "ecdf": (dict(kind="ecdf", x="distinct_tenants"), [Scenario()]),
    "prompt": (
        dict(kind="points", x="prompt_tokens_drawn", y="foreign_frac"),
        grid(prompt_tokens=[681_281, 1_048_576]),
    ),
    "facets": (
        dict(kind="line", x="warm_steps", y="foreign_frac", hue="policy", scale="symlog"),
        grid(policy=POLICIES, warm_steps=[0, 5, 3000], utilisation=[0.1, 0.2, 0.3, 0.4, 0.5]),
    ),
    "heatmap": (
        dict(kind="heatmap", x="warm_steps", y="utilisation", values="distinct_tenants"),
        grid(policy=POLICIES, warm_steps=[0, 5, 3000], utilisation=[0.1, 0.2, 0.3]),
    ),
}


def shown_tick_labels(ax):
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        # Inner panels have no labels.
        for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False):
            if low - 1e-9 <= place <= high + 1e-9:
                yield label


@pytest.mark.parametrize("case", CASES)
def test_texts_are_whole_and_apart_and_the_legend_hides_nothing(case):
    declaration, scenarios = CASES[case]
    drawing = draw(declaration, make_trials(scenarios, seeds=3))
    canvas = FigureCanvasAgg(drawing.figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    page = drawing.figure.bbox
    figure_texts = [t for t in (drawing.figure._supxlabel, drawing.figure._supylabel) if t is not None]
    texts = list(figure_texts)
    for ax in drawing.figure.axes:
        axes = [ax, *ax.child_axes]
        texts += [t for a in axes for t in shown_tick_labels(a)]
        texts += [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
    for legend in drawing.figure.legends:
        texts += legend.get_texts()
        box = legend.get_window_extent(renderer)
        assert not any(box.overlaps(ax.get_window_extent(renderer)) for ax in data_axes(drawing))
    boxes = [t.get_window_extent(renderer) for t in texts if t.get_visible() and t.get_text()]
    assert boxes
    for box in boxes:
        assert page.x0 - 1 <= box.x0 < box.x1 <= page.x1 + 1
        assert page.y0 - 1 <= box.y0 < box.y1 <= page.y1 + 1
    for a, b in itertools.combinations(boxes, 2):
        assert not (a.x0 + 1 < b.x1 and b.x0 + 1 < a.x1 and a.y0 + 1 < b.y1 and b.y0 + 1 < a.y1)
    assert page.width / drawing.figure.dpi * 25.4 == pytest.approx(178 if len(data_axes(drawing)) > 1 else 85)


# --- Files -------------------------------------------------------------------------------------------


def test_files_have_the_same_bytes_again_and_say_what_they_are_made_from(tmp_path):
    trials = make_trials(grid(policy=["lifo", "fifo"], warm_steps=[0, 20]))
    provenance = {"kvsim": "1.2.3", "config": "0123abcd"}
    names = []
    for folder in ("a", "b"):
        drawing = draw(DECLARATIONS["line"], trials)
        names = [p.name for p in save(drawing, tmp_path / folder / "f", provenance=provenance)]
        if folder == "a":
            # Times in files are in whole seconds.
            time.sleep(1.1)
    assert names == ["f.pdf", "f.svg", "f.png", "f.txt"]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(names)
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    svg, pdf, png = ((tmp_path / "a" / f"f.{s}").read_bytes() for s in ("svg", "pdf", "png"))
    assert b">lifo</text>" in svg
    assert b"<dc:date>" not in svg
    assert b"CreationDate" not in pdf
    assert b"/Type3" not in pdf
    for content in (svg, pdf, png):
        assert b"0123abcd" in content
    assert (tmp_path / "a" / "f.txt").read_text() == drawing.caption + "\n"


def test_saving_where_one_cannot_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    drawing = draw(DECLARATIONS["parts"], SMALL["one scenario"])
    with pytest.raises(OSError, match="file"):
        save(drawing, tmp_path / "file" / "f", provenance={})


# --- Declarations ------------------------------------------------------------------------------------


def problems(declaration, scenarios=None) -> list[str]:
    return check(
        {"experiment": "e"} | declaration,
        SimpleNamespace(scenarios=scenarios or grid(policy=POLICIES, warm_steps=[0, 20])),
    )


@pytest.mark.parametrize("declaration", DECLARATIONS.values(), ids=list(DECLARATIONS))
def test_good_declarations_have_no_problems(declaration):
    assert problems(declaration) == []


@pytest.mark.parametrize(
    ("declaration", "line"),
    [
        (dict(kind="pie", x="policy"), "kind: 'pie' is not allowed; must be one of parts, points"),
        (dict(kind="points", x="policy"), "y: is missing"),
        (dict(kind="parts", x="policy", y="pages"), "y: is not allowed in a figure of kind parts"),
        (dict(kind="points", x="polcy", y="pages"), "x: 'polcy' is not allowed; must be one of policy"),
        (
            dict(kind="points", x="policy", y="foreign"),
            "y: 'foreign' is not allowed; must be one of foreign_",
        ),
        (dict(kind="points", x="policy", y="pages", hue="pages"), "hue: 'pages' is not allowed"),
        (dict(kind="points", x="policy", y="pages", hue="policy"), "hue: policy is shown already, as x"),
        (dict(kind="line", x="policy", y="pages"), "x: policy is not numeric"),
        (dict(kind="points", x="policy", y="pages", scale="log"), "scale: log is not allowed; policy is not"),
        (
            dict(kind="line", x="warm_steps", y="pages", scale="log"),
            "scale: log is not allowed; warm_steps takes",
        ),
        (dict(kind="line", x="warm_steps", y="pages", scale="sqrt"), "scale: 'sqrt' is not allowed"),
        (
            dict(kind="parts", x="policy", width="three"),
            "width: 'three' is not allowed; must be one of one, two",
        ),
        (
            dict(kind="points", x="policy", y=["pages", "exposed"], row="tenants"),
            "row: is not allowed with several",
        ),
        (
            dict(kind="points", x="policy", y="pages", units="tenants"),
            "units: is not allowed; x is a parameter",
        ),
        (dict(kind="parts", x="policy", where={"warm_steps": 7}), "where: warm_steps 7 does not occur"),
        (dict(kind="parts", x="policy", where={"warm": 7}), "where: 'warm' is not allowed"),
    ],
)
def test_a_problem_is_one_line_that_names_the_key(declaration, line):
    (found,) = problems(declaration)
    assert found.startswith(line)


def test_hues_and_panels_are_limited():
    many = grid(policy=["lifo"], tenants=list(range(1, 15)))
    assert problems(dict(kind="points", x="policy", y="pages", hue="tenants"), many) == [
        "hue: tenants takes 14 values; at most 8 can be told apart"
    ]
    (line,) = problems(dict(kind="parts", x="policy", col="tenants"), many)
    assert line.startswith("col: 14 panels are too many")
    assert problems(dict(kind="parts", x="policy", col="tenants", where={"tenants": [1, 2]}), many) == []


def test_drawing_refuses_what_the_check_refuses():
    with pytest.raises(ValueError, match="hue: 'pages' is not allowed"):
        draw(dict(kind="points", x="policy", y="pages", hue="pages"), SMALL["one seed"])


def test_checking_imports_nothing_heavy():
    code = (
        "import sys; from types import SimpleNamespace; from kvsim.figures import check\n"
        "from kvsim import Scenario\n"
        "d = dict(experiment='e', kind='points', x='kv_cache_usage', y=['foreign_frac'], hue='policy')\n"
        "assert check(d, SimpleNamespace(scenarios=[Scenario()])) == []\n"
        "heavy = {'numpy', 'pandas', 'seaborn', 'matplotlib', 'scipy', 'numba', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_intervals_are_students_for_means_that_are_no_shares():
    trials = make_trials([Scenario()], seeds=10)
    (ax,) = data_axes(draw(dict(kind="points", x="policy", y="pages"), trials.assign(pages=range(10))))
    (drawn,) = points(ax).values()
    half = stats.t.ppf(0.975, 9) * np.std(range(10), ddof=1) / math.sqrt(10)
    np.testing.assert_allclose(drawn["y"], [[4.5 - half, 4.5 + half]])
