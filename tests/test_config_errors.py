"""Every bad config gives exactly the lines that it should, and nothing but `ConfigError` is ever raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim import figures
from kvsim.grid import INNER, OUTER, Config, ConfigError, config_schema, load_config
from kvsim.scenario import PARAMETERS
from kvsim.style import WIDTHS

FOLDER = Path(__file__).parent / "data" / "bad-configs"
BAD = sorted(FOLDER.glob("*.yaml"))


def lines_of(*paths: str | Path, overrides: Any = None) -> list[str]:
    try:
        load_config(paths, overrides, figure_check=figures.check)
    except ConfigError as error:
        return error.lines
    return []


def test_there_are_many_bad_configs():
    assert len(BAD) >= 40


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_gives_exactly_its_lines(path, monkeypatch):
    monkeypatch.chdir(FOLDER)
    marked = path.read_text(encoding="utf-8").splitlines()
    expected = [line.removeprefix("# expect: ") for line in marked if line.startswith("# expect: ")]
    assert expected
    assert lines_of(path.name) == expected


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\xff\xfe\x00", "bad.yaml: is not text in UTF-8"),
        (
            b"experiments: {a: {}}\n# \x00",
            "bad.yaml: is not YAML: it has characters that YAML does not allow",
        ),
        (b"[" * 700, "bad.yaml: is nested too deeply"),
    ],
)
def test_refuses_what_is_not_text_or_not_yaml(content, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_bytes(content)
    assert lines_of("bad.yaml") == [line]


def test_refuses_missing_files_and_folders_all_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    assert lines_of("none.yaml", "folder") == [
        "none.yaml: cannot be read: No such file or directory",
        "folder: cannot be read: Is a directory",
    ]


def test_names_the_file_that_is_wrong_among_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text("experiments: {a: {grid: {policy: fifo}}}\n")
    Path("two.yaml").write_text("experiments:\n  a:\n    grid: {tenants: 0}\n")
    assert lines_of("one.yaml", "two.yaml") == [
        "two.yaml:3: experiments.a.grid.tenants: 0 is not allowed; must be an integer from 1 to 2147483647"
    ]


def test_later_files_and_overrides_change_earlier_ones(tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("experiments: {a: {grid: {policy: fifo, tenants: [1, 2]}, seeds: {count: 3}}}\n")
    two.write_text("experiments: {a: {grid: {tenants: 7}}}\n")
    config = load_config([one, two], {"seeds": {"first": 5}})
    assert [s.name for s in config.experiments["a"].scenarios] == ["policy=fifo,tenants=7"]
    assert config.experiments["a"].seeds == range(5, 8)


def test_overrides_are_checked_too():
    assert lines_of(overrides={"experiments": {"a": {"seeds": {"count": float("nan")}}}}) == [
        "experiments.a.seeds.count: NaN is not allowed; must be a finite number"
    ]
    assert lines_of(overrides={"experiments": {"a": {"grid": {"policy": {1, 2}}}}}) == [
        "experiments.a.grid.policy: a set is not allowed; must be text, a number, a list or a mapping"
    ]


def test_nothing_at_all_is_an_error():
    assert lines_of() == ["null is not allowed; must be a mapping with experiments"]


WORDS = """
    experiments defaults seeds figures a f grid exclude job_by seeds_per_job first count from to step num
    scale kind x y hue where caption experiment <<
"""
NAMES = st.sampled_from([*WORDS.split(), *PARAMETERS])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10**25),
    st.floats(),
    st.sampled_from(["lifo", "fifo", "uniform", "parts", "linear", "log", "a", "warm_steps"]),
    st.text(max_size=5),
)
KEYS = st.one_of(NAMES, NAMES, SCALARS)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
AXES = st.dictionaries(st.sampled_from(list(PARAMETERS)), ANYTHING, max_size=2)
EXPERIMENT = st.fixed_dictionaries(
    {},
    optional={
        "grid": st.one_of(AXES, st.lists(AXES, max_size=2), ANYTHING),
        "exclude": st.one_of(st.lists(AXES, max_size=2), ANYTHING),
        "job_by": st.one_of(st.lists(st.sampled_from(OUTER), max_size=2), ANYTHING),
        "seeds": ANYTHING,
        "seeds_per_job": SCALARS,
        "defaults": AXES,
    },
)
FIGURE = st.fixed_dictionaries(
    {"experiment": st.sampled_from(["a", "b"]), "kind": st.sampled_from(list(figures.KINDS))},
    optional={
        key: st.one_of(st.sampled_from([*PARAMETERS, "foreign_frac", "distinct_tenants"]), ANYTHING)
        for key in ("x", "y", "values", "hue", "col", "row", "units", "scale", "width", "where")
    },
)
CONFIGS = st.one_of(
    ANYTHING,
    st.fixed_dictionaries(
        {"experiments": st.dictionaries(st.sampled_from(["a", "b"]), EXPERIMENT, min_size=1, max_size=2)},
        optional={"figures": st.dictionaries(st.sampled_from(["f", "g"]), FIGURE, max_size=2)},
    ),
)


def load(paths: list[Path], overrides: Any = None) -> Config | None:
    """The config, or None after a `ConfigError` whose lines are as they should be."""
    try:
        return load_config(paths, overrides, figure_check=figures.check)
    except ConfigError as error:
        lines = error.lines
    assert lines
    assert all(line and line.isprintable() and len(line) < 1000 for line in lines)
    return None


@settings(max_examples=120, deadline=None)
@given(content=CONFIGS)
def test_any_content_is_a_config_or_a_config_error(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    for config in (load([path]), load([], content if isinstance(content, dict) else {})):
        assert config is None or all(experiment.scenarios for experiment in config.experiments.values())


ODD_TEXT = st.text(alphabet="experimnts:[]{}&*!|>-?#\"'%@`,\t\n 0179.e", max_size=60)


@settings(max_examples=120, deadline=None)
@given(text=st.text(max_size=60) | ODD_TEXT)
def test_any_text_is_a_config_error(text, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzz-text.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert load([path]) is None


def test_the_schema_holds_every_parameter():
    parts = config_schema()["$defs"]
    for place in ("defaults", "grid", "exclude"):
        assert set(parts[place]["properties"]) == set(PARAMETERS)
    assert set(parts["job_by"]["enum"]) == set(PARAMETERS) - set(INNER)


def test_the_schema_names_what_figures_can_draw():
    keys = config_schema()["$defs"]["figure"]["properties"]
    assert set(keys) == {*figures.COMMON_KEYS, *(key for kind in figures.KINDS.values() for key in kind)}
    assert keys["kind"]["enum"] == list(figures.KINDS)
    assert keys["scale"]["enum"] == list(figures.SCALES)
    assert keys["width"]["enum"] == list(WIDTHS)
