"""The workflow as people run it: Snakemake on a copy of the project."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from kills import kill_group, kill_job
from tree import Tree

from kvsim.figures import Drawing, draw
from kvsim.grid import Job, load_config
from kvsim.scenario import PARAMETERS, Parameter, Scenario, Value, as_text
from kvsim.tables import read_summary
from kvsim.trials import read_trials

SMALL = Scenario(
    warm_steps=30, pool_pages=600, prefill_pool_tokens=10_000, context_tokens=20_000, request_tokens_max=5_000
)
STUDY = """\
defaults:
  warm_steps: 30
  pool_pages: 600
  prefill_pool_tokens: 10000
  context_tokens: 20000
  request_tokens_max: 5000
seeds: {first: 7, count: 10}
experiments:
  orders:
    grid: {policy: [lifo, fifo]}
    seeds_per_job: 5
figures:
  exposure: {experiment: orders, kind: points, x: policy, y: foreign_frac}
"""
"""Two cells of two blocks: four jobs, one summary, one figure."""

HALF_AGAIN = {"simulate": 2, "summarise": 1, "draw": 1}
ALL_AGAIN = {"simulate": 4, "summarise": 1, "draw": 1}


def changed(old: str, new: str) -> str:
    assert old in STUDY
    return STUDY.replace(old, new)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """The study, run to the end. Tests plan on it; what changes it works on a clone."""
    tree = Tree.copied(tmp_path_factory.mktemp("workflow") / "finished")
    tree.write("config/config.yaml", STUDY)
    tree.run()
    return tree


@pytest.fixture
def clone(finished: Tree, tmp_path: Path) -> Tree:
    return finished.clone(tmp_path / "clone")


def jobs_of(tree: Tree) -> tuple[Job, ...]:
    return load_config([tree.folder / "config" / "config.yaml"]).experiments["orders"].jobs


def test_a_study_writes_these_files(finished: Tree) -> None:
    paths = [job.path for job in jobs_of(finished)]
    assert len(paths) == 4
    expected = {*paths, "orders/trials.parquet", "logs/orders/summarise.log", "logs/figures/exposure.log"}
    expected |= {f"logs/{path.replace('/trials', '').replace('.parquet', '.log')}" for path in paths}
    expected |= {f"orders/summary.{suffix}" for suffix in ("parquet", "csv", "md", "tex")}
    expected |= {f"figures/exposure.{suffix}" for suffix in ("pdf", "svg", "png", "txt")}
    assert set(finished.contents()) == expected


def test_another_folder_one_core_and_no_profile_give_the_same_bytes(finished: Tree, tmp_path: Path) -> None:
    other = Tree.copied(tmp_path / "an other folder")
    other.write("config/config.yaml", STUDY)
    other.run("--workflow-profile", "none", cores=1)
    assert other.contents() == finished.contents()


# --- What re-runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "planned"),
    [
        pytest.param("[lifo, fifo]", "[lifo, fifo, random]", HALF_AGAIN, id="value"),
        pytest.param(
            "[lifo, fifo]}", "[lifo, fifo], tenants: [200, 50]}", ALL_AGAIN, id="dimension with its default"
        ),
        pytest.param("[lifo, fifo]", "[lifo]", {"summarise": 1, "draw": 1}, id="value removed"),
        pytest.param("count: 10", "count: 15", HALF_AGAIN, id="more seeds"),
        pytest.param("x: policy", "x: policy, width: two", {"draw": 1}, id="figure changed"),
    ],
)
def test_a_changed_config_runs_only_what_is_new(
    finished: Tree, tmp_path: Path, old: str, new: str, planned: dict[str, int]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(changed(old, new))
    assert finished.planned("--configfile", str(config)) == planned


def test_a_reordered_and_reformatted_config_runs_nothing(finished: Tree, tmp_path: Path) -> None:
    study = yaml.safe_load(STUDY)
    figure = study["figures"]["exposure"]
    study["figures"]["exposure"] = dict(reversed(figure.items()))
    study["experiments"]["orders"]["grid"]["policy"].reverse()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.dump(study, default_flow_style=False, sort_keys=True))
    assert finished.planned("--configfile", str(config)) == {}


@pytest.mark.parametrize(
    ("source", "planned"),
    [
        ("kvsim/server.py", ALL_AGAIN),
        ("kvsim/style.py", {"draw": 1}),
        ("kvsim/tables.py", {"summarise": 1, "draw": 1}),
        ("workflow/scripts/draw.py", {"draw": 1}),
        ("workflow/rules/simulate.smk", {}),
    ],
)
def test_changed_code_runs_what_it_can_change(clone: Tree, source: str, planned: dict[str, int]) -> None:
    clone.copy("kvsim")
    path = clone.folder / source
    text = path.read_text().replace("python -m kvsim run", "python  -m kvsim run")
    path.write_text(f"{text}# Changed.\n")
    assert clone.planned() == planned


def test_a_dry_run_says_why(clone: Tree) -> None:
    clone.copy("kvsim")
    with (clone.folder / "kvsim" / "server.py").open("a") as source:
        source.write("# Changed.\n")
    printed = clone.run("--dry-run")
    assert printed.count("Params have changed since last execution") == 4


def test_a_removed_value_leaves_its_files_and_the_tables_without_it(clone: Tree) -> None:
    before = clone.contents()
    clone.write("config/config.yaml", changed("[lifo, fifo]", "[lifo]"))
    clone.run()
    after = clone.contents()
    assert {path for path in before if "fifo" in path} <= set(after)
    assert set(read_trials(clone.results / "orders" / "trials.parquet")["policy"]) == {"lifo"}
    assert read_summary(clone.results / "orders" / "summary.parquet")["policy"].tolist() == ["lifo"]


# --- Every parameter -------------------------------------------------------------------------------


def another(parameter: Parameter) -> Value:
    """A value other than the small study's with which a scenario is possible."""
    value = getattr(SMALL, parameter.name)
    near = [] if isinstance(value, str) else [value + 1, value * 2, value / 2, value + 0.25]
    words = [word for word in parameter.choices if word != value]
    for candidate in [*near, *words, 11_000]:
        try:
            replace(SMALL, **{parameter.name: candidate})
        except ValueError:
            continue
        return parameter.canonical(candidate)
    raise AssertionError(f"{parameter.name}: no other value found")


def test_every_parameter_is_a_dimension_from_the_config_alone(tmp_path: Path) -> None:
    others = {name: another(parameter) for name, parameter in PARAMETERS.items()}
    assert others["tenants"] == 201
    study = yaml.safe_load(STUDY)
    grids = [{name: [getattr(SMALL, name), other]} for name, other in others.items()]
    study["experiments"] = {"every": {"grid": grids}}
    study["figures"] = {}
    tree = Tree.copied(tmp_path / "every")
    tree.write("config/config.yaml", yaml.dump(study))
    tree.run()

    trials = read_trials(tree.results / "every" / "trials.parquet")
    summary = read_summary(tree.results / "every" / "summary.parquet")
    assert len(trials) == 10 * (1 + len(PARAMETERS)) == 10 * len(summary)
    markdown = (tree.results / "every" / "summary.md").read_text()
    for name, other in others.items():
        levels = {getattr(SMALL, name), other}
        scenarios = {replace(SMALL, **{name: level}) for level in levels}
        shown = {}
        for frame, rows in ((trials, 10), (summary, 1)):
            of_them = [
                Scenario(*fields) in scenarios for fields in frame[list(PARAMETERS)].itertuples(index=False)
            ]
            shown[rows] = frame[of_them]
            assert len(shown[rows]) == 2 * rows, name
            assert set(shown[rows][name]) == levels
        assert as_text(other) in markdown.replace(",", "")
        figure = {"experiment": "every", "kind": "points", "x": name, "y": "foreign_frac"}
        assert as_text(other) in drawn_texts(draw(figure, shown[10]))


def drawn_texts(drawing: Drawing) -> str:
    """Everything that is written on a figure, digits not grouped."""
    texts = [text.get_text() for axes in drawing.figure.axes for text in axes.get_xticklabels()]
    return " ".join(texts).replace(",", "")


# --- Nothing silently wrong ------------------------------------------------------------------------


def test_unusable_files_are_named_before_a_table_is_made_of_them(clone: Tree) -> None:
    truncated, short, foreign, stale = (clone.results / job.path for job in jobs_of(clone))
    table = pq.read_table(short)
    pq.write_table(table.slice(1), short)
    shutil.copyfile(truncated, foreign)
    truncated.write_bytes(truncated.read_bytes()[:-100])
    about = table.schema.metadata[b"kvsim"].replace(b'"model": "', b'"model": "0')
    pq.write_table(table.replace_schema_metadata({b"kvsim": about}), stale)
    printed = clone.run(status=1)
    for path, problem in {
        truncated: "is truncated, or not Parquet",
        short: "has 4 rows, not 5",
        foreign: "is of another job",
        stale: "is stale",
    }.items():
        line = next(
            line
            for line in printed.splitlines()
            if str(path.relative_to(clone.folder)) in line and problem in line
        )
        assert line.endswith("to make it anew, delete it and run the same command again")
    assert not (clone.results / "orders" / "trials.parquet").exists()

    for path in (short, foreign, stale):
        path.unlink()
    truncated.write_bytes(b"")
    assert f"{truncated.relative_to(clone.folder)} is empty" in clone.run(status=1)
    truncated.unlink()
    assert clone.planned() == {"simulate": 1, "summarise": 1, "draw": 1}


# --- The config ------------------------------------------------------------------------------------


def test_problems_of_a_config_are_printed_as_lines_before_anything_else(
    finished: Tree, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(changed("policy: [lifo, fifo]", "polcy: [lifo, fifo], utilisation: 7"))
    printed = finished.run("--configfile", str(config), status=1)
    lines = [line.partition("config.yaml:")[2] for line in printed.splitlines()]
    assert "10: experiments.orders.grid.polcy: is not a known key; did you mean policy?" in lines
    assert "10: experiments.orders.grid.utilisation: 7 is not allowed; must be a number from 0 to 1" in lines
    assert "Traceback" not in printed
    assert "Building DAG" not in printed


def test_a_given_config_replaces_the_default_and_options_change_it(finished: Tree, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(STUDY.replace("orders", "others"))
    jobs = {"simulate": 6, "summarise": 1, "draw": 1}
    assert finished.planned("--configfile", str(config), "--config", "seeds={count: 15}") == jobs


def test_partly_shared_seeds_are_warned_of(finished: Tree, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(changed("experiments:\n", "experiments:\n  more: {seeds: {count: 11}}\n"))
    printed = finished.run("--dry-run", "--configfile", str(config))
    assert "more and orders share 10 seeds (7 to 16) but not all" in printed


# --- Interrupted runs ------------------------------------------------------------------------------


def test_two_runs_in_one_folder_are_refused(clone: Tree) -> None:
    clone.write("config/config.yaml", changed("first: 7", "first: 8"))
    first = clone.start("--nolock")
    while not list(clone.folder.glob(".snakemake/incomplete/*")):
        assert first.poll() is None
        time.sleep(0.02)
    printed = clone.run("--nolock", status=1)
    assert "Another run of Snakemake is at work in this folder" in printed
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()


def test_killed_runs_go_on_with_the_same_command(finished: Tree, tmp_path: Path) -> None:
    tree = Tree.copied(tmp_path / "killed")
    tree.write("config/config.yaml", STUDY)
    chance = random.Random(20261027)
    for kill in (kill_group, kill_job, kill_group):
        kill(tree, chance)
    without_profile = ["--workflow-profile", "none"]
    kill_group(tree, chance, *without_profile)
    tree.run(*without_profile)
    assert tree.contents() == finished.contents()


def test_the_report_shows_figures_and_tables(clone: Tree) -> None:
    clone.run("--report", "results/report.html")
    report = (clone.results / "report.html").read_text()
    for shown in ("exposure.svg", "summary.csv", "Foreign share of context against policy"):
        assert shown in report
