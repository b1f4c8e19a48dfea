"""Summaries and tables, from recorded trials and from extreme made ones."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.files import atomic_write
from kvsim.outcomes import OUTCOMES, TRIAL_COLUMNS, column_type
from kvsim.scenario import PARAMETERS, Scenario, as_text
from kvsim.statistics import mean_interval, share_interval
from kvsim.tables import (
    METRICS,
    chosen_metrics,
    compare,
    comparison_table,
    estimate_text,
    latex_escape,
    parameter_table,
    read_summary,
    summarise,
    summarise_all,
    summary_table,
    summary_text,
    write_summary,
    write_table,
)

DATA = Path(__file__).parent / "data"


def completed(frame: pd.DataFrame) -> pd.DataFrame:
    """Fill in what the recordings lack: parameters at their defaults, outcomes as zeros."""
    missing = {name: PARAMETERS[name].default for name in PARAMETERS if name not in frame}
    frame = frame.assign(**missing, kv_cache_usage=frame["used_pages"] / missing.get("pool_pages", 32768))
    zeros = {
        name: np.zeros(len(frame), outcome.dtype) for name, outcome in OUTCOMES.items() if name not in frame
    }
    return frame.assign(**zeros)[list(TRIAL_COLUMNS)]


def as_arrow(frame: pd.DataFrame) -> pa.Table:
    texts = {
        n: [as_text(v) for v in frame[n]] if column_type(n) == "string" else frame[n].to_numpy()
        for n in TRIAL_COLUMNS
    }
    return pa.table({name: pa.array(v, getattr(pa, column_type(name))()) for name, v in texts.items()})


def made(scenarios: list[Scenario], seeds: int, **outcomes: object) -> pd.DataFrame:
    """Make trials in which nothing foreign is read, unless told otherwise."""
    nothing = dict.fromkeys(OUTCOMES, 0) | {
        "pages": 10,
        "never_written": 9,
        "median_age": math.nan,
        "max_age": -1,
    }
    rows = [
        {name: getattr(scenario, name) for name in PARAMETERS} | {"seed": seed} | nothing
        for scenario, seed in itertools.product(scenarios, range(seeds))
    ]
    frame = pd.DataFrame(rows).astype({"prompt_tokens": object, "median_age": float, "seed": "uint64"})
    return frame.assign(**outcomes)[list(TRIAL_COLUMNS)]


@pytest.fixture(scope="module")
def recorded() -> dict[str, pd.DataFrame]:
    frame = pd.read_parquet(DATA / "reference-trials.parquet")
    return {name: completed(part) for name, part in frame.groupby("experiment", sort=False)}


@pytest.fixture(scope="module")
def warm_up(recorded) -> pd.DataFrame:
    return summarise(recorded["warm-up"])


# --- Summaries -------------------------------------------------------------------------------------


def test_one_row_a_scenario_parameters_first(recorded, warm_up):
    assert warm_up["warm_steps"].tolist() == [0, 1, 5, 20, 100, 500, 3000]
    assert list(warm_up.columns[: len(PARAMETERS) + 2]) == [*PARAMETERS, "trials", "cap_binds"]
    assert (warm_up["trials"] == 30).all()
    prompts = summarise(recorded["prompts"])
    assert prompts["prompt_tokens"].tolist() == [681281, 850000, 1048576]
    assert warm_up["prompt_tokens"].tolist() == ["uniform"] * 7


def test_every_metric_is_summarised_as_numpy_would(recorded, warm_up):
    assert {*OUTCOMES, "never_written_frac", "exposed", "at_cap"} == set(METRICS)
    groups = [part for _, part in recorded["warm-up"].groupby("warm_steps")]
    for name in ("foreign_frac", "distinct_requests", "used_pages", "kv_cache_usage", "drain_steps"):
        values = np.array([part[name] for part in groups], dtype=float)
        interval = mean_interval(values, bounds=(0, 1) if OUTCOMES[name].share else None)
        for part in ("mean", "se", "low", "high", "constant"):
            np.testing.assert_array_equal(warm_up[f"{name}_{part}"], getattr(interval, part))
        np.testing.assert_allclose(warm_up[f"{name}_mean"], values.mean(axis=1))
        np.testing.assert_allclose(warm_up[f"{name}_median"], np.median(values, axis=1))
        np.testing.assert_array_equal(warm_up[f"{name}_min"], values.min(axis=1))
        np.testing.assert_array_equal(warm_up[f"{name}_max"], values.max(axis=1))
    ratio = [(part["never_written"] / part["pages"]).mean() for part in groups]
    np.testing.assert_allclose(warm_up["never_written_frac_mean"], ratio)


def test_exposed_is_a_share_of_trials(recorded, warm_up):
    assert (warm_up["exposed_mean"] * 30).round(9).tolist() == [0, 0, 1, 16, 26, 30, 30]
    wilson = share_interval([0, 0, 1, 16, 26, 30, 30], 30)
    np.testing.assert_array_equal(warm_up["exposed_high"], wilson.high)
    np.testing.assert_array_equal(warm_up["exposed_low"], wilson.low)


def test_ages_of_nothing_are_counted_not_averaged(recorded, warm_up):
    assert warm_up["max_age_missing"].tolist() == [30, 30, 29, 14, 4, 0, 0]
    assert warm_up["median_age_missing"].tolist() == [30, 30, 29, 14, 4, 0, 0]
    ages = recorded["warm-up"].query("warm_steps == 20 and max_age >= 0")["max_age"]
    assert warm_up["max_age_mean"][3] == pytest.approx(ages.mean())
    assert warm_up["max_age_min"][3] == ages.min()
    assert warm_up["max_age_mean"][:2].isna().all()
    assert warm_up["max_age_mean"][2] == 1
    assert warm_up[["max_age_low", "median_age_low"]][:3].isna().all(axis=None)


def test_a_cap_that_hardly_ever_binds_is_told(recorded):
    policies = summarise(recorded["policies"])
    assert policies["utilisation"].tolist() == [0.3, 0.6] * 3
    assert policies["cap_binds"].tolist() == [True, False] * 3
    assert "yes" in summary_text(policies)


def test_arrow_and_pandas_and_parts_give_the_same(recorded, warm_up):
    frame = recorded["warm-up"]
    pd.testing.assert_frame_equal(summarise(as_arrow(frame)), warm_up)
    parts = [frame[:90], as_arrow(frame[90:120]), frame[120:]]
    pd.testing.assert_frame_equal(summarise_all(iter(parts)), warm_up)


def test_scenarios_may_have_different_numbers_of_seeds(recorded, warm_up):
    frame = recorded["warm-up"]
    short = frame[~((frame["warm_steps"] == 5) & (frame["seed"] > 20261030))]
    summary = summarise(short)
    assert summary["trials"].tolist() == [30, 30, 4, 30, 30, 30, 30]
    pd.testing.assert_frame_equal(summary.drop(index=2), warm_up.drop(index=2))


def test_trials_that_are_not_what_they_should_be(recorded):
    frame, steps = recorded["warm-up"], (0, 1, 5, 20, 100, 500, 3000)
    right = [Scenario(warm_steps=n) for n in steps]
    summarise(frame, right)
    with pytest.raises(ValueError, match="there are none of warm_steps=7"):
        summarise(frame, [*right, Scenario(warm_steps=7)])
    with pytest.raises(ValueError, match="unexpected ones of default"):
        summarise(frame, right[:-1])
    with pytest.raises(ValueError, match="do not stand together"):
        summarise(frame.sort_values("seed"))
    with pytest.raises(ValueError, match="none given"):
        summarise(frame[:0])
    with pytest.raises(ValueError, match="foreign_frac: NaN is not allowed"):
        summarise(frame.assign(foreign_frac=math.nan))


@pytest.mark.parametrize("seeds", [1, 2, 30])
@pytest.mark.parametrize("scenarios", [1, 3])
def test_extremes_make_tables_without_a_warning(seeds, scenarios, tmp_path):
    summary = summarise(made([Scenario(warm_steps=n) for n in range(scenarios)], seeds))
    assert (summary["exposed_mean"] == 0).all()
    assert (summary["exposed_high"] > 0).all()
    assert (summary["median_age_missing"] == seeds).all()
    assert summary["foreign_frac_low"].isna().all() == (seeds == 1)
    assert summary["foreign_frac_constant"].all() == (seeds > 1)
    text = summary_text(summary, METRICS)
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)
    write_summary(summary, tmp_path, metrics=METRICS)
    pd.testing.assert_frame_equal(read_summary(tmp_path / "summary.parquet"), summary)


def another(name: str) -> Scenario:
    """Make a scenario in which this parameter alone is not at its default."""
    parameter = PARAMETERS[name]
    numbers = [] if isinstance(parameter.default, str) else [parameter.default * 2, parameter.default / 2]
    for value in (*parameter.choices, 700_000, *numbers, 1, 0):
        if value != parameter.default:
            try:
                return Scenario(**{name: value})
            except ValueError:
                continue
    raise AssertionError(name)


def test_any_parameter_may_vary():
    for name in PARAMETERS:
        scenarios = [Scenario(), another(name)]
        table = summary_table(summarise(made(scenarios, 2)))
        assert table.heads[0] == name.replace("_", " ")
        assert [row[0] for row in table.rows] == [as_text(getattr(s, name)) for s in scenarios]


# --- Paired differences ----------------------------------------------------------------------------


def test_differences_pair_seeds_with_the_baseline(recorded):
    frame = recorded["policies"]
    paired = compare([frame[:60], frame[60:]], {"policy": "lifo"}, ["foreign_frac", "median_age"])
    assert paired["policy"].tolist() == ["fifo", "fifo", "random", "random"] * 2
    assert paired["metric"].tolist() == ["foreign_frac"] * 4 + ["median_age"] * 4
    assert paired["baseline"].tolist() == ["utilisation=0.3", "utilisation=0.6"] * 4
    cells = {key: part.set_index("seed") for key, part in frame.groupby(["policy", "utilisation"])}
    difference = cells["fifo", 0.6]["foreign_frac"] - cells["lifo", 0.6]["foreign_frac"]
    assert paired["difference"][1] == pytest.approx(difference.mean())
    assert paired["se"][1] == pytest.approx(difference.sem())
    assert (paired["p_holm"] >= paired["p_value"]).all()
    text = comparison_table(paired).text()
    assert "0.368 ± 0.083" in text
    assert "<0.001" in text


def test_a_baseline_that_compares_nothing_is_an_error(recorded):
    with pytest.raises(ValueError, match="policy=random is not allowed; no other scenario"):
        compare([recorded["warm-up"]], {"policy": "random"})
    with pytest.raises(ValueError, match="'polcy' is not allowed"):
        compare([recorded["warm-up"]], {"polcy": "random"})
    with pytest.raises(ValueError, match="must be one of foreign_frac"):
        chosen_metrics(["foreign_fraction"])


def test_pairs_without_ages_make_a_table():
    trials = made([Scenario(), Scenario(policy="fifo")], 3)
    paired = compare([trials], {"policy": "lifo"}, ["median_age", "foreign_frac"])
    assert paired["n"].tolist() == [0, 3]
    assert paired["missing"].tolist() == [3, 0]
    assert comparison_table(paired).rows[0][2:] == ("0", "-", "-", "-", "-")


# --- Words and files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0.5877, 0.5017, 0.6737), "0.588 ± 0.086"),
        ((0.5877, 0.4881, 0.6873), "0.59 ± 0.10"),
        ((524.4, 511.2, 537.6), "524 ± 13"),
        ((1520.2, 1397.0, 1643.4), "1520 ± 123"),
        ((-2.41, -5.2, 0.38), "-2.4 ± 2.8"),
        ((0.0333, 0.0059, 0.1667), "0.033 [0.006, 0.167]"),
        ((0.25, math.nan, math.nan), "0.25 (n = 1)"),
        ((math.nan, math.nan, math.nan), "-"),
    ],
)
def test_numbers_are_rounded_to_their_error(numbers, text):
    assert estimate_text(*numbers) == text


def test_constants_are_marked():
    assert estimate_text(1.0, 1.0, 1.0, constant=True) == "1*"


def test_a_table_says_what_a_reader_needs(warm_up):
    table = summary_table(warm_up, ["kv_cache_usage", "exposed", "foreign_frac", "median_age"])
    assert table.heads == (
        "warm steps",
        "trials",
        "KV-cache usage",
        "cap binds",
        "exposed",
        "foreign share of context",
        "median age of residue",
        "without a foreign page",
    )
    assert table.rows[0] == ("0", "30", "0*", "no", "0.000 [0.000, 0.114]", "0*", "-", "30")
    assert table.rows[2][6] == "1 (n = 1)"
    assert table.rows[-1][4:] == ("1.000 [0.886, 1.000]", "0.588 ± 0.087", "386 ± 117", "0")
    assert "7 scenarios, 210 trials." in table.caption
    assert "half the width of the 95% interval" in table.caption
    assert table.caption.endswith("All other parameters have their defaults.")


def test_fixed_parameters_stand_in_the_caption():
    scenarios = [Scenario(policy="fifo", tenants=7, warm_steps=n) for n in (1, 2)]
    table = summary_table(summarise(made(scenarios, 2)))
    assert table.heads[:2] == ("warm steps", "trials")
    assert "In all rows: policy fifo; tenants 7." in table.caption


def test_parameters_may_stand_side_by_side(recorded):
    summary = summarise(recorded["policies"])
    table = summary_table(summary, ["foreign_frac", "kv_cache_usage"], columns=["policy"])
    assert table.heads == (
        "utilisation",
        "trials",
        *(f"foreign share of context, policy {policy}" for policy in ("lifo", "fifo", "random")),
        *(f"KV-cache usage, policy {policy}" for policy in ("lifo", "fifo", "random")),
        "cap binds",
    )
    assert [row[0] for row in table.rows] == ["0.3", "0.6"]
    assert [row[2] for row in table.rows] == ["0.400 ± 0.062", "0.632 ± 0.083"]
    # A scenario that the experiment leaves out leaves its cells empty.
    hole = summary_table(summary.drop(index=[3]), ["foreign_frac"], columns=["policy"])
    assert dict(zip(hole.heads, hole.rows[1], strict=True)) == {
        "utilisation": "0.6",
        "trials, policy lifo": "30",
        "trials, policy fifo": "",
        "trials, policy random": "30",
        "foreign share of context, policy lifo": "0.632 ± 0.083",
        "foreign share of context, policy fifo": "",
        "foreign share of context, policy random": "0.9999259 ± 0.0000037",
    }
    with pytest.raises(ValueError, match="columns: 'polcy' is not allowed; must be one of policy"):
        summary_table(summary, columns=["polcy"])


def test_files_hold_the_summary_and_are_the_same_again(warm_up, tmp_path):
    provenance = {"kvsim": "0.1.0", "config": "abc"}
    written = write_summary(warm_up, tmp_path / "a", provenance=provenance)
    again = write_summary(warm_up, tmp_path / "b", provenance=provenance)
    assert [path.name for path in written] == ["summary.parquet", "summary.csv", "summary.md", "summary.tex"]
    for one, other in zip(written, again, strict=True):
        text = other.read_bytes().replace(b"{tab:b-", b"{tab:a-")
        assert one.read_bytes() == text
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(p.name for p in written)

    pd.testing.assert_frame_equal(read_summary(written[0]), warm_up)
    assert pq.read_schema(written[0]).metadata == {b"kvsim": b"0.1.0", b"config": b"abc"}
    assert pq.read_schema(written[0]).field("prompt_tokens").type == pa.string()
    csv = pd.read_csv(written[1])
    np.testing.assert_array_almost_equal_nulp(csv["foreign_frac_mean"], warm_up["foreign_frac_mean"])
    np.testing.assert_array_equal(csv["median_age_low"].isna(), warm_up["median_age_low"].isna())


def test_markdown_and_latex_are_whole(warm_up, tmp_path):
    write_summary(warm_up, tmp_path, provenance={"kvsim": "0.1.0"})
    markdown = (tmp_path / "summary.md").read_text()
    lines = markdown.splitlines()
    assert lines[0] == "<!-- kvsim: 0.1.0 -->"
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 7
    assert len({line.count("|") for line in rows}) == 1
    assert "0.588 ± 0.087" in rows[-1]
    latex = (tmp_path / "summary.tex").read_text()
    assert latex.startswith("% kvsim: 0.1.0\n\\begin{table}\n")
    body = [line for line in latex.splitlines() if line.endswith(r"\\") and line[0].isdigit()]
    assert len(body) == 7
    assert {line.count(" & ") for line in body} == {len(summary_table(warm_up).heads) - 1}
    assert r"0.588 $\pm$ 0.087" in latex
    assert r"95\%" in latex
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert latex.count(rule) == 1


def test_text_is_escaped_for_latex():
    assert latex_escape("a_b & 50% #1 {x} $5 ~ ^ \\ <3> |") == (
        r"a\_b \& 50\% \#1 \{x\} \$5 \textasciitilde{} \textasciicircum{} \textbackslash{} "
        r"\textless{}3\textgreater{} \textbar{}"
    )
    assert latex_escape("-2.4 ± 2.8, x-3") == r"$-$2.4 $\pm$ 2.8, x-3"


def test_every_parameter_is_listed(tmp_path):
    table = parameter_table(
        [Scenario(), Scenario(policy="fifo"), *(Scenario(tenants=n) for n in range(1, 21))]
    )
    assert len(table.rows) == len(PARAMETERS)
    assert table.rows[0][:4] == ("policy", r"$\pi$", "lifo", "fifo, lifo")
    assert next(row for row in table.rows if row[0] == "tenants")[3] == "21 values from 1 to 200"
    write_table(table, None, tmp_path, "parameters")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parameters.md", "parameters.tex"]
    assert r"& $\pi$ & lifo &" in (tmp_path / "parameters.tex").read_text()


def fail_while_writing(path: Path) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def test_a_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with pytest.raises(RuntimeError):
        fail_while_writing(path)
    assert list(path.parent.iterdir()) == []
    with atomic_write(path) as temporary:
        temporary.write_text("one")
    with pytest.raises(RuntimeError):
        fail_while_writing(path)
    assert path.read_text() == "one"
    assert list(path.parent.iterdir()) == [path]
