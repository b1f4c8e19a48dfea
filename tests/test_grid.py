"""From a config to scenarios and jobs, against brute force; the names that decide what re-runs."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim import figures
from kvsim.grid import (
    FIRST_SEED,
    INNER,
    MAX_CELL_BYTES,
    OUTER,
    SEED_COUNT,
    SEEDS_PER_JOB,
    Config,
    Experiment,
    Job,
    canonical_order,
    config_schema,
    grid_arguments,
    load_config,
    overlaps,
    parse_grid,
    parse_seeds,
    range_values,
)
from kvsim.scenario import MAX_SEED, PARAMETERS, Parameter, Scenario, Value, as_text


def is_possible(name: str, value: Any) -> bool:
    try:
        Scenario(**{name: value})
    except ValueError:
        return False
    return True


def some_values(parameter: Parameter) -> list[Value]:
    """The default and two values beside it, near enough to go with any of the other parameters'."""
    default = parameter.default
    if parameter.kind == "choice":
        return list(parameter.choices[:3])
    near = [700_000, 850_000] if isinstance(default, str) else [default + 1, default + 2, default / 2]
    if parameter.kind == "number":
        near = [round(default + 0.1, 9), round(default + 0.2, 9), *near]
    return [default, *(value for value in near if is_possible(parameter.name, value))][:3]


VALUES = {name: some_values(parameter) for name, parameter in PARAMETERS.items()}


def configured(experiments: dict[str, Any], **keys: Any) -> Config:
    return load_config([], {"experiments": experiments, **keys})


def experiment(**entry: Any) -> Experiment:
    return configured({"a": entry}).experiments["a"]


def names(**entry: Any) -> list[str]:
    return [scenario.name for scenario in experiment(**entry).scenarios]


def runs(**entry: Any) -> dict[str, str]:
    """What each file holds: a job runs again if its path or its arguments are new."""
    return {job.path: job.arguments for job in experiment(**entry).jobs}


# --- Scenarios -------------------------------------------------------------------------------------


def axis(name: str) -> st.SearchStrategy[Any]:
    value = st.sampled_from(VALUES[name])
    return value | st.lists(value, min_size=1, max_size=4)


def axes(min_size: int) -> st.SearchStrategy[dict[str, Any]]:
    chosen = st.lists(st.sampled_from(list(PARAMETERS)), min_size=min_size, max_size=3, unique=True)
    return chosen.flatmap(lambda few: st.fixed_dictionaries({name: axis(name) for name in few}))


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def brute_force(grids: list[dict[str, Any]], exclude: list[dict[str, Any]]) -> set[Scenario]:
    found = {
        Scenario(**dict(zip(grid, values, strict=True)))
        for grid in grids
        for values in itertools.product(*map(listed, grid.values()))
    }
    return {
        scenario
        for scenario in found
        if not any(all(getattr(scenario, n) in listed(v) for n, v in part.items()) for part in exclude)
    }


def place(scenario: Scenario) -> list[tuple[int, Any]]:
    """Its place in canonical order: outer parameters first; words as declared, then numbers ascending."""
    key = []
    for name in [*(n for n in PARAMETERS if n not in INNER), *INNER]:
        value, words = getattr(scenario, name), PARAMETERS[name].choices
        key.append((words.index(value), 0) if isinstance(value, str) else (len(words), value))
    return key


@settings(max_examples=150, deadline=None)
@given(grids=st.lists(axes(0), min_size=1, max_size=3), exclude=st.lists(axes(1), max_size=2))
def test_expands_as_brute_force_does(grids, exclude):
    left = set(brute_force(grids, []))
    kept = []
    for part in exclude:
        rest = left & brute_force(grids, [part])
        if rest and rest != left:
            left, kept = rest, [*kept, part]
    entry = {"grid": grids if len(grids) > 1 else grids[0], **({"exclude": kept} if kept else {})}
    assert list(experiment(**entry).scenarios) == sorted(left, key=place)


@settings(max_examples=150, deadline=None)
@given(grids=st.lists(axes(0), min_size=1, max_size=3), drop=st.sets(st.integers(0, 20), max_size=4))
def test_arguments_give_the_same_scenarios_in_the_same_order(grids, drop):
    scenarios = sorted(brute_force(grids, []), key=place)
    scenarios = [s for i, s in enumerate(scenarios) if i not in drop] or scenarios
    text = grid_arguments(scenarios)
    words = shlex.split(text)
    assert words[::2] == ["--grid"] * (len(words) // 2)
    assert list(parse_grid(words[1::2])) == scenarios
    assert grid_arguments(parse_grid(words[1::2])) == text


@settings(max_examples=50, deadline=None)
@given(grid=axes(1), job_by=st.lists(st.sampled_from(OUTER), unique=True), per_job=st.integers(1, 40))
def test_jobs_hold_every_trial_once(grid, job_by, per_job):
    made = experiment(grid=grid, job_by=job_by, seeds_per_job=per_job)
    trials = [(s, seed) for job in made.jobs for s in job.scenarios for seed in job.seeds]
    assert len(trials) == len(set(trials))
    assert set(trials) == set(itertools.product(made.scenarios, made.seeds))
    assert len({job.path for job in made.jobs}) == len(made.jobs)
    for job in made.jobs:
        words = shlex.split(job.arguments)
        given_grids = [
            text for option, text in zip(words[::2], words[1::2], strict=True) if option == "--grid"
        ]
        assert parse_grid(given_grids) == job.scenarios
        assert words[-2] == "--seeds"
        assert parse_seeds(words[-1]) == job.seeds


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_is_a_dimension(name):
    made = experiment(grid={name: VALUES[name]})
    assert made.dimensions == (name,)
    assert {getattr(s, name) for s in made.scenarios} == set(VALUES[name])
    assert len(made.jobs) == (1 if name in INNER else len(VALUES[name]))
    assert all(f"{name}=" in job.arguments for job in made.jobs if job.scenarios != (Scenario(),))


def test_a_list_of_grids_is_their_union_without_duplicates():
    grid = [{"policy": ["lifo", "fifo"]}, {"policy": "fifo", "tenants": [7, 200]}, {"policy": "lifo"}]
    assert names(grid=grid) == ["default", "policy=fifo,tenants=7", "policy=fifo"]


def test_values_that_are_equal_stand_for_one():
    assert names(grid={"utilisation": [1, 1.0, 0.3, 0.30, 0.3]}) == ["utilisation=0.3", "utilisation=1"]
    assert names(grid={"tenants": [7, 7.0]}) == ["tenants=7"]


def test_a_grid_may_be_left_out_or_empty():
    assert names() == names(grid={}) == names(grid=[{}]) == ["default"]


def test_defaults_of_an_experiment_come_before_those_of_the_study():
    made = configured(
        {
            "a": {"grid": {"policy": ["lifo", "fifo"]}, "defaults": {"tenants": 7}},
            "b": {"grid": {"tenants": 9}},
        },
        defaults={"tenants": 5, "utilisation": 0.3},
    ).experiments
    assert [s.name for s in made["a"].scenarios] == [
        "utilisation=0.3,tenants=7",
        "policy=fifo,utilisation=0.3,tenants=7",
    ]
    assert [s.name for s in made["b"].scenarios] == ["utilisation=0.3,tenants=9"]


def test_exclude_leaves_out_what_matches_any_of_its_entries():
    kept = names(
        grid={"policy": ["lifo", "fifo", "random"], "utilisation": [0.3, 0.6]},
        exclude=[{"policy": ["lifo", "fifo"], "utilisation": 0.6}, {"policy": "random", "utilisation": 0.3}],
    )
    assert kept == ["utilisation=0.3", "policy=fifo,utilisation=0.3", "policy=random,utilisation=0.6"]


def test_exclude_may_hold_ranges():
    grid = {"warm_steps": {"from": 0, "to": 50, "step": 10}}
    kept = names(grid=grid, exclude=[{"warm_steps": {"from": 10, "to": 40, "step": 10}}])
    assert kept == ["warm_steps=0", "warm_steps=50"]


def test_impossible_combinations_may_be_excluded():
    kept = names(
        grid={"pool_pages": [1000, 32768], "prompt_tokens": [1000, 850000]},
        exclude=[{"pool_pages": 1000, "prompt_tokens": 850000}],
    )
    assert kept == ["prompt_tokens=1000,pool_pages=1000", "prompt_tokens=1000", "prompt_tokens=850000"]


def test_seeds_are_taken_key_by_key():
    made = configured(
        {"a": {}, "b": {"seeds": {"count": 2}}, "c": {"seeds": {"first": 7}}}, seeds={"first": 3, "count": 4}
    ).experiments
    assert {name: e.seeds for name, e in made.items()} == {
        "a": range(3, 7),
        "b": range(3, 5),
        "c": range(7, 11),
    }
    assert experiment().seeds == range(FIRST_SEED, FIRST_SEED + SEED_COUNT)


def test_seeds_at_the_end_of_their_range():
    made = experiment(seeds={"first": MAX_SEED - 1, "count": 2})
    (job,) = made.jobs
    assert job.path == f"a/trials/default/{MAX_SEED - 1}-{MAX_SEED}.parquet"
    assert parse_seeds(shlex.split(job.arguments)[-1]) == job.seeds == made.seeds


def test_says_which_seeds_overlap_in_part():
    seeds = {
        name: {"seeds": {"first": f, "count": c}} for name, f, c in [("a", 0, 10), ("b", 5, 10), ("c", 5, 10)]
    }
    assert overlaps(configured({**seeds, "d": {"seeds": {"first": 20}}})) == [
        "a and b share 5 seeds (5 to 9) but not all: they are neither paired nor independent",
        "a and c share 5 seeds (5 to 9) but not all: they are neither paired nor independent",
    ]


# --- Ranges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ({"from": 0.1, "to": 0.9, "step": 0.1}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        ({"from": 0.1, "to": 0.25, "step": 0.1}, [0.1, 0.2]),
        ({"from": 0.5, "to": 0.5, "step": 0.1}, [0.5]),
        ({"from": 0.1, "to": 0.4, "num": 4}, [0.1, 0.2, 0.3, 0.4]),
        ({"from": 0, "to": 1, "num": 3, "scale": "linear"}, [0.0, 0.5, 1.0]),
        ({"from": 0.001, "to": 1, "num": 4, "scale": "log"}, [0.001, 0.01, 0.1, 1.0]),
    ],
)
def test_ranges_of_numbers_are_exact(spec, values):
    found = range_values(spec, PARAMETERS["utilisation"])
    assert [repr(value) for value in found] == [repr(value) for value in values]


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ({"from": 0, "to": 10, "step": 5}, [0, 5, 10]),
        ({"from": 0, "to": 10, "num": 4}, [0, 3, 7, 10]),
        ({"from": 0, "to": 2, "num": 9}, [0, 1, 2]),
        ({"from": 10, "to": 10000, "num": 7, "scale": "log"}, [10, 32, 100, 316, 1000, 3162, 10000]),
        ({"from": 1, "to": 4, "num": 9, "scale": "log"}, [1, 2, 3, 4]),
    ],
)
def test_ranges_of_integers_are_rounded(spec, values):
    found = range_values(spec, PARAMETERS["warm_steps"])
    assert found == values
    assert all(type(value) is int for value in found)


@given(first=st.integers(0, 999), count=st.integers(1, 60), step=st.integers(1, 20), places=st.integers(1, 3))
def test_steps_are_the_decimals_that_one_would_write(first, count, step, places):
    unit = 10**places
    ends = {"from": first / unit, "to": (first + (count - 1) * step) / unit, "step": step / unit}
    sigma = PARAMETERS["request_tokens_sigma"]
    if ends["to"] <= sigma.maximum:
        written = [
            float(f"{(first + k * step) // unit}.{(first + k * step) % unit:0{places}}") for k in range(count)
        ]
        assert range_values(ends, sigma) == written


@given(first=st.floats(1e-6, 1), last=st.floats(1, 1e6), num=st.integers(2, 50))
def test_logarithmic_ranges_have_equal_ratios(first, last, num):
    found = range_values({"from": first, "to": last, "num": num, "scale": "log"}, LIFETIME)
    assert (found[0], found[-1]) == (first, last)
    if first < last:
        ratio = (last / first) ** (1 / (num - 1))
        assert len(found) == num or ratio < 1 + 1e-12
        if ratio > 1 + 1e-9:
            assert all(math.isclose(b / a, ratio, rel_tol=1e-9) for a, b in itertools.pairwise(found))


LIFETIME = Parameter("any", "number", 1.0, "", "", "", "")


def test_a_list_may_mix_values_and_ranges():
    made = experiment(grid={"warm_steps": [0, {"from": 10, "to": 1000, "num": 3, "scale": "log"}, 5]})
    assert [s.warm_steps for s in made.scenarios] == [0, 5, 10, 100, 1000]


# --- What re-runs ----------------------------------------------------------------------------------

POLICIES = ["lifo", "fifo"]


def test_a_value_added_runs_only_its_own_jobs():
    old, new = runs(grid={"policy": POLICIES}), runs(grid={"policy": ["random", *POLICIES]})
    assert old.items() < new.items()
    assert [path.split("/")[2] for path in new.keys() - old.keys()] == ["policy=random"]


def test_a_dimension_added_whose_values_include_the_default_keeps_what_there_is():
    old = runs(grid={"policy": POLICIES})
    for name in OUTER:
        if name != "policy":
            new = runs(grid={"policy": POLICIES, name: VALUES[name]})
            assert old.items() < new.items()
            assert len(new) == 2 * len(VALUES[name])


def test_a_value_removed_leaves_the_other_jobs():
    assert runs(grid={"policy": ["lifo"]}).items() < runs(grid={"policy": POLICIES}).items()


def test_a_value_written_as_default_or_as_grid_is_the_same():
    assert runs(grid={"tenants": 7}) == runs(defaults={"tenants": 7}) == runs(grid=[{"tenants": [7]}])


def test_an_inner_value_added_runs_its_cells_anew_under_the_same_names():
    old = runs(grid={"policy": POLICIES, "warm_steps": [0, 5]})
    new = runs(grid={"policy": POLICIES, "warm_steps": [0, 5, 10]})
    assert old.keys() == new.keys()
    assert not old.items() & new.items()


def test_more_seeds_keep_full_blocks():
    old = runs(seeds={"first": 5, "count": 2500})
    new = runs(seeds={"first": 5, "count": 4000})
    assert SEEDS_PER_JOB == 1000
    blocks = ["5-1004", "1005-2004", "2005-3004", "3005-4004"]
    assert list(new) == [f"a/trials/default/{block}.parquet" for block in blocks]
    assert list(old) == [*list(new)[:2], "a/trials/default/2005-2504.parquet"]
    assert len(old.items() & new.items()) == 2


def test_seeds_per_job_splits_jobs():
    assert list(runs(seeds={"first": 0, "count": 5}, seeds_per_job=2)) == [
        "a/trials/default/0-1.parquet",
        "a/trials/default/2-3.parquet",
        "a/trials/default/4-4.parquet",
    ]


def test_job_by_makes_jobs_coarser():
    made = experiment(
        grid={"policy": POLICIES, "utilisation": [0.3, 0.6], "tenants": 7}, job_by=["utilisation"]
    )
    assert list(made.cells) == ["utilisation=0.3+tenants=7", "utilisation=0.6+tenants=7"]
    assert [s.policy for s in made.jobs[0].scenarios] == POLICIES
    assert made.jobs[0].arguments == (
        f"--grid 'policy=lifo,fifo utilisation=0.3 tenants=7' --seeds {FIRST_SEED}:{FIRST_SEED + SEED_COUNT}"
    )
    # Cells stay together, so that the table of the experiment can be written a cell at a time.
    assert made.scenarios == tuple(s for cell in made.cells.values() for s in cell)


ONE = """
seeds: {first: 5, count: 7}
experiments:
  a:
    grid:
      policy: [lifo, fifo]
      utilisation: {from: 0.1, to: 0.3, step: 0.1}
  b:
    grid: {request_lifetime_steps: [40, 20]}
figures:
  f: {experiment: a, kind: parts, x: utilisation, where: {tenants: [200, 300]}}
"""
SAME = """
# The same in another order and spelling.
figures: {f: {x: utilisation, where: {tenants: [200.0, 3.0e+2]}, kind: parts, experiment: a}}
experiments:
  b: {grid: [{request_lifetime_steps: 20.0}, {request_lifetime_steps: 4.0e+1}], seeds: {count: 7}}
  a:
    seeds: {count: 7, first: 5}
    grid:
      - {utilisation: [0.30, 0.1, 0.2], policy: "fifo"}
      - {utilisation: [0.1, 0.2, 0.30], policy: lifo, tenants: 200}
seeds: {first: 5}
"""


def test_order_and_spelling_change_nothing(tmp_path):
    made = []
    for text in (ONE, SAME):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        config = load_config([path])
        jobs = {name: e.jobs for name, e in config.experiments.items()}
        made.append((config.digest, jobs, json.dumps(config.figures, sort_keys=True)))
    assert made[0] == made[1]


@pytest.mark.parametrize(
    "change",
    [
        ("count: 7", "count: 8"),
        ("first: 5", "first: 6"),
        ("to: 0.3", "to: 0.2"),
        ("[40, 20]", "[40, 21]"),
        ("x: utilisation", "x: policy"),
        ("  b:", "  c:"),
    ],
    ids=" to ".join,
)
def test_any_other_change_changes_the_digest(change, tmp_path):
    path = tmp_path / "config.yaml"
    digests = []
    for text in (ONE, ONE.replace(*change)):
        path.write_text(text)
        digests.append(load_config([path]).digest)
    assert digests[0] != digests[1]


def test_long_names_are_cut_and_told_apart():
    grid = {name: VALUES[name][1:] for name in list(OUTER)[1:9]} | {
        name: VALUES[name][1] for name in OUTER if name not in list(OUTER)[1:9]
    }
    cells = list(experiment(grid=grid).cells)
    assert len(set(cells)) == len(cells) == math.prod(len(listed(values)) for values in grid.values())
    assert all(len(cell.encode()) <= MAX_CELL_BYTES for cell in cells)
    assert all(re.fullmatch(r"[A-Za-z0-9_.=+~-]+", cell) for cell in cells)
    assert all(cell.startswith("policy=fifo+utilisation=") for cell in cells)


def test_names_need_no_quotes():
    scenarios = [{name: VALUES[name][1]} for name in OUTER]
    paths = [job.path for s in scenarios for job in experiment(grid=s).jobs]
    assert all(shlex.quote(path) == path for path in paths)


def test_ten_thousand_jobs_are_planned_in_seconds():
    start = time.perf_counter()
    made = experiment(grid={"policy": POLICIES, "tenants": {"from": 1, "to": 5000, "step": 1}})
    assert len({job.path for job in made.jobs}) == len({job.arguments for job in made.jobs}) == 10_000
    assert time.perf_counter() - start < 10


# --- Command-line text -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["polcy=fifo"], "polcy: is not a parameter; did you mean policy?"),
        (["policy"], '"policy" is not allowed; must be parameter=value or parameter=value,value'),
        (["tenants=1 tenants=2"], 'tenants: stands twice in "tenants=1 tenants=2"; must stand once'),
        (["tenants=x"], "tenants: 'x' is not allowed; must be an integer from 1 to 2147483647"),
        (["tenants="], "tenants: '' is not allowed; must be an integer from 1 to 2147483647"),
        (["utilisation=nan"], "utilisation: 'nan' is not allowed; must be a number from 0 to 1"),
    ],
)
def test_grid_arguments_that_are_wrong(texts, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_grid(texts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5:5", "seeds: 5:5 is empty; the second number must be larger than the first"),
        ("-1:5", 'seeds: "-1:5" is not allowed; must be first:stop, e.g. 5:25, or one seed'),
        ("0.5", 'seeds: "0.5" is not allowed; must be first:stop, e.g. 5:25, or one seed'),
        (str(2**64), f"seeds: {2**64} is not allowed; must be from 0 to {MAX_SEED}"),
    ],
)
def test_seeds_that_are_wrong(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_seeds(text)


def test_seeds_that_are_right():
    assert parse_seeds("5:25") == range(5, 25)
    assert parse_seeds(str(MAX_SEED)) == range(MAX_SEED, MAX_SEED + 1)


def test_canonical_order_is_that_of_any_order():
    scenarios = experiment(grid={"policy": ["random", "lifo"], "prompt_tokens": [850000, "uniform", 700000]})
    assert canonical_order(reversed(scenarios.scenarios)) == scenarios.scenarios
    assert [s.prompt_tokens for s in scenarios.scenarios[:3]] == ["uniform", 700000, 850000]


def test_a_job_is_what_its_path_says():
    job = Job("a", "policy=fifo", range(3, 5), (Scenario(policy="fifo"),), "--grid policy=fifo")
    assert (job.path, job.arguments) == ("a/trials/policy=fifo/3-4.parquet", "--grid policy=fifo --seeds 3:5")


# --- What the description of the config says ------------------------------------------------------

README = (Path(__file__).parents[1] / "config" / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def example(start: str) -> str:
    """The one example of the README that begins so."""
    (text,) = (text for text in EXAMPLES if text.startswith(start))
    return text


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_examples_are_configs(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert load_config([path], figure_check=figures.check).experiments


def test_every_key_has_an_example():
    written = set(re.findall(r"[a-z_]+(?=:)", "".join(EXAMPLES)))
    parts = config_schema()
    keys = [parts, *(parts["$defs"][name] for name in ("experiment", "seeds", "range", "figure"))]
    assert {key for part in keys for key in part["properties"]} <= written
    kinds = set(re.findall(r"kind: (\w+)", "".join(EXAMPLES)))
    assert kinds == set(figures.KINDS)


def test_the_table_of_parameters_is_that_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", README.partition("## Parameters")[2], re.MULTILINE)
    assert rows == [
        (name, f"{p.doc} | {p.unit or '-'} | {as_text(p.default)} | {p.allowed}")
        for name, p in PARAMETERS.items()
    ]


def test_ranges_give_what_the_table_of_ranges_says():
    table = re.findall(r"^\| `(\{from.*?\})` \| (.*?) \|$", README, re.MULTILINE)
    assert len(table) >= 4
    for spec, values in table:
        parameter = PARAMETERS["warm_steps" if "." not in values else "utilisation"]
        assert ", ".join(map(as_text, range_values(yaml.safe_load(spec), parameter))) == values


def test_names_of_files_are_those_that_the_table_says(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(example("# Six cells."))
    table = re.findall(r"^\| `(load/trials/.*?)` \| (\d+) \|$", README, re.MULTILINE)
    jobs = load_config([path]).experiments["load"].jobs
    assert table == [(job.path, str(len(job.scenarios) * len(job.seeds))) for job in jobs]
