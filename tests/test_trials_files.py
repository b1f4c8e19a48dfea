"""Files of trials: what is written is read back, and what is wrong with one is said before it is used."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kvsim
from kvsim import trials
from kvsim.grid import Experiment, Job, load_config
from kvsim.outcomes import TRIAL_COLUMNS, column_type
from kvsim.scenario import ENGINES, MAX_SEED, PARAMETERS
from kvsim.trials import (
    SCHEMA_VERSION,
    TrialsError,
    about_job,
    collect,
    read_job,
    read_metadata,
    read_trials,
    scenario_columns,
    trials_schema,
    write_experiment,
    write_trials,
)

AGAIN = "; to make it anew, run the same command again"
REMEDY = "; to make it anew, delete it and run the same command again"
MODEL = trials.model_digest()


def made(**entry) -> Experiment:
    return load_config([], {"experiments": {"a": entry}}).experiments["a"]


@pytest.fixture
def experiment() -> Experiment:
    """Two cells of two scenarios, and two full blocks of seeds with one begun."""
    grid = {"policy": ["lifo", "fifo"], "prompt_tokens": ["uniform", 850_000]}
    return made(grid=grid, seeds={"first": 5, "count": 8}, seeds_per_job=3)


@pytest.fixture
def job(experiment) -> Job:
    return experiment.jobs[0]


def table_of(scenarios, seeds) -> pa.Table:
    """A table with the trials' parameters and seeds, and outcomes that differ from row to row."""
    columns = scenario_columns(scenarios, np.array(seeds, dtype=np.uint64))
    rows = np.arange(len(scenarios) * len(seeds)) + 1000 * (seeds[0] % 1000)
    for name in TRIAL_COLUMNS:
        if name not in columns:
            columns[name] = trials.arrow_array(rows, column_type(name))
    return pa.table({name: columns[name] for name in TRIAL_COLUMNS}, schema=trials_schema())


def write_job(root: Path, job: Job, table: pa.Table | None = None, **about) -> Path:
    path = root / job.path
    table = table_of(job.scenarios, job.seeds) if table is None else table
    write_trials(path, table, {**about_job(job.grid, job.seeds), **about})
    return path


def refusals(experiment: Experiment, root: Path) -> list[str]:
    with pytest.raises(TrialsError) as caught:
        list(collect(experiment, root))
    assert str(caught.value) == "\n".join(caught.value.lines)
    return caught.value.lines


def refusal(path: Path, job: Job) -> str:
    with pytest.raises(TrialsError) as caught:
        read_job(path, job)
    (line,) = caught.value.lines
    assert line.startswith(f"{path} ")
    problem, _, _ = line.removeprefix(f"{path} ").rpartition("; ")
    assert line.endswith(AGAIN if problem == "is missing" else REMEDY)
    return problem


# --- What is whole ---------------------------------------------------------------------------------


def test_reads_back_what_was_written(job, tmp_path):
    table = table_of(job.scenarios, job.seeds)
    read = read_job(write_job(tmp_path, job, table), job)
    assert read.equals(table)
    assert read.schema.equals(trials_schema())


def test_every_parameter_and_outcome_is_a_column_of_its_type():
    schema = trials_schema()
    assert schema.names == list(TRIAL_COLUMNS)
    assert [str(kind) for kind in schema.types] == [str(getattr(pa, column_type(n))()) for n in TRIAL_COLUMNS]
    assert not any(field.nullable for field in schema)


def test_parameters_and_seeds_come_scenarios_by_seeds(experiment):
    seeds = [0, 7, MAX_SEED]
    columns = scenario_columns(experiment.scenarios, np.array(seeds, dtype=np.uint64))
    pairs = list(itertools.product(experiment.scenarios, seeds))
    assert columns["seed"].to_pylist() == [seed for _, seed in pairs]
    for name in PARAMETERS:
        expected = [getattr(scenario, name) for scenario, _ in pairs]
        text = column_type(name) == "string"
        assert columns[name].to_pylist() == ([str(value) for value in expected] if text else expected)


def test_writes_the_same_bytes_again(job, tmp_path):
    one, two = write_job(tmp_path / "one", job), write_job(tmp_path / "two", job)
    assert one.read_bytes() == two.read_bytes()


def test_says_what_it_holds(job, tmp_path):
    assert read_metadata(write_job(tmp_path, job)) == {
        "kvsim": kvsim.__version__,
        "schema": SCHEMA_VERSION,
        "model": MODEL,
        "engines": ENGINES,
        "scenarios": "--grid prompt_tokens=uniform,850000",
        "seeds": "5:8",
    }


def test_metadata_of_a_foreign_file_are_empty(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    assert read_metadata(tmp_path / "x.parquet") == {}


def test_blocks_of_seeds_come_out_as_scenarios_by_seeds(experiment, tmp_path):
    for job in reversed(experiment.jobs):
        write_job(tmp_path, job)
    tables = list(collect(experiment, tmp_path))
    assert len(tables) == len(experiment.cells) == 2
    for table, scenarios in zip(tables, experiment.cells.values(), strict=True):
        rows = list(itertools.product(scenarios, experiment.seeds))
        assert table["policy"].to_pylist() == [s.policy for s, _ in rows]
        assert table["prompt_tokens"].to_pylist() == [str(s.prompt_tokens) for s, _ in rows]
        assert table["seed"].to_pylist() == [seed for _, seed in rows]
        # Every row keeps its outcomes: those of its own block, at its own place in it.
        expected = [
            1000 * block[0] + i * len(block) + seed - block[0]
            for i, seed in itertools.product(range(len(scenarios)), experiment.seeds)
            for block in experiment.blocks
            if seed in block
        ]
        outcome = next(
            n for n in TRIAL_COLUMNS if n not in {*PARAMETERS, "seed"} and column_type(n) == "int64"
        )
        assert table[outcome].to_pylist() == expected


def test_the_last_seed_there_is(tmp_path):
    experiment = made(seeds={"first": MAX_SEED - 1, "count": 2})
    write_job(tmp_path, experiment.jobs[0])
    (table,) = collect(experiment, tmp_path)
    assert table["seed"].to_pylist() == [MAX_SEED - 1, MAX_SEED]


def test_an_experiment_in_one_file(experiment, tmp_path):
    for job in experiment.jobs:
        write_job(tmp_path, job)
    output = tmp_path / "a" / "trials.parquet"
    tables = []
    for table in write_experiment(collect(experiment, tmp_path), output, {"config": "0123"}):
        assert not output.exists()
        tables.append(table)
    assert pq.read_table(output).equals(pa.concat_tables(tables))
    assert pq.ParquetFile(output).num_row_groups == 2
    assert read_metadata(output)["config"] == "0123"
    frame = read_trials(output)
    assert list(frame.columns) == list(TRIAL_COLUMNS)
    assert frame["prompt_tokens"].tolist() == (["uniform"] * 8 + [850_000] * 8) * 2
    assert read_trials(output, ["seed"])["seed"].tolist() == list(experiment.seeds) * 4


# --- What is not -----------------------------------------------------------------------------------


def with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), trials_schema().field(name), column)


def test_a_missing_file(job, tmp_path):
    assert refusal(tmp_path / job.path, job) == "is missing"


def test_an_empty_file(job, tmp_path):
    path = write_job(tmp_path, job)
    path.write_bytes(b"")
    assert refusal(path, job) == "is empty"


@pytest.mark.parametrize("left", [1, 8, 0.5, -1])
def test_a_truncated_file(job, left, tmp_path):
    path = write_job(tmp_path, job)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * left) if left == 0.5 else left])
    assert refusal(path, job) == "is truncated, or not Parquet"


def test_a_file_that_is_not_parquet(job, tmp_path):
    path = write_job(tmp_path, job)
    path.write_text("policy,seed\nlifo,5\n")
    assert refusal(path, job) == "is truncated, or not Parquet"


def test_a_folder(job, tmp_path):
    (tmp_path / job.path).mkdir(parents=True)
    assert refusal(tmp_path / job.path, job) == "is a folder"


def test_damaged_data_behind_a_whole_footer(job, tmp_path):
    path = write_job(tmp_path, job)
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    assert refusal(path, job) == "is damaged"


def test_any_changed_byte_is_found_or_changes_nothing(job, tmp_path):
    path = write_job(tmp_path, job)
    whole, table = path.read_bytes(), read_job(path, job)
    found = 0
    for place in range(0, len(whole), 17):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xA5]) + whole[place + 1 :])
        try:
            unchanged = read_job(path, job).equals(table)
        except TrialsError:
            found += 1
        else:
            assert unchanged
    assert found > len(whole) / 17 / 2


def test_a_file_that_kvsim_did_not_write(job, tmp_path):
    path = write_job(tmp_path, job)
    pq.write_table(table_of(job.scenarios, job.seeds), path)
    assert refusal(path, job) == "was not written by kvsim"


@pytest.mark.parametrize("text", [b"not JSON", b"[]", b"null", b"\xff"])
def test_metadata_that_are_not_ours(job, text, tmp_path):
    path = write_job(tmp_path, job)
    schema = trials_schema().with_metadata({b"kvsim": text})
    pq.write_table(table_of(job.scenarios, job.seeds).cast(schema), path)
    assert refusal(path, job) == "was not written by kvsim"


def test_another_version_of_the_schema(job, tmp_path):
    path = write_job(tmp_path, job, schema=SCHEMA_VERSION + 1)
    assert refusal(path, job) == (
        f"is stale: of version {SCHEMA_VERSION + 1} of the schema, not {SCHEMA_VERSION}"
    )


def test_another_model(job, tmp_path):
    path = write_job(tmp_path, job, model="0123456789abcdef")
    assert refusal(path, job) == f"is stale: of version 0123456789abcdef of the model, not {MODEL}"


def test_another_version_of_kvsim_with_the_same_model_will_do(job, tmp_path):
    assert len(read_job(write_job(tmp_path, job, kvsim="0.0.9"), job)) == 6


def test_a_file_of_other_scenarios(experiment, tmp_path):
    lifo, fifo = experiment.jobs[0], experiment.jobs[3]
    path = write_job(tmp_path, fifo).rename(tmp_path / "x.parquet")
    assert refusal(path, lifo) == (
        "is of another job: its scenarios are --grid 'policy=fifo prompt_tokens=uniform,850000', "
        "not --grid prompt_tokens=uniform,850000"
    )


def test_a_file_of_other_seeds(experiment, tmp_path):
    path = write_job(tmp_path, experiment.jobs[1])
    assert refusal(path, experiment.jobs[0]) == "is of another job: its seeds are 8:11, not 5:8"


def test_a_row_too_few(job, tmp_path):
    path = write_job(tmp_path, job, table_of(job.scenarios, job.seeds)[:-1])
    assert refusal(path, job) == "has 5 rows, not 6"


def test_other_columns(job, tmp_path):
    path = write_job(tmp_path, job)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns([TRIAL_COLUMNS[-1]]), path)
    assert refusal(path, job) == "has other columns than a table of trials"


@pytest.mark.parametrize("name", ["policy", "utilisation", "prompt_tokens", "seed"])
def test_rows_of_other_trials_than_it_says(job, name, tmp_path):
    table = table_of(job.scenarios, job.seeds)
    values = table[name].to_pylist()
    other = {"policy": "fifo", "utilisation": 0.75, "prompt_tokens": "700000", "seed": 99}[name]
    column = pa.array([*values[:-1], other], trials_schema().field(name).type)
    path = write_job(tmp_path, job, with_column(table, name, column))
    assert refusal(path, job) == f"has rows of other trials than it says: column {name}"


def test_rows_in_another_order(job, tmp_path):
    table = table_of(job.scenarios, job.seeds)
    path = write_job(tmp_path, job, table.take([1, 0, 2, 3, 4, 5]))
    assert refusal(path, job) == "has rows of other trials than it says: column seed"


def test_all_that_is_wrong_is_said_at_once_before_any_table(experiment, tmp_path):
    paths = [write_job(tmp_path, job) for job in experiment.jobs]
    paths[1].unlink()
    paths[2].write_bytes(b"")
    paths[4].write_bytes(paths[4].read_bytes()[:-5])
    write_job(tmp_path, experiment.jobs[5], model="old")
    problems = {
        1: "is missing",
        2: "is empty",
        4: "is truncated, or not Parquet",
        5: f"is stale: of version old of the model, not {MODEL}",
    }
    assert refusals(experiment, tmp_path) == [
        f"{paths[i]} {text}{AGAIN if text == 'is missing' else REMEDY}" for i, text in problems.items()
    ]


def test_values_that_are_wrong_are_said_when_their_cell_comes(experiment, tmp_path):
    paths = [write_job(tmp_path, job) for job in experiment.jobs]
    last = experiment.jobs[-1]
    write_job(tmp_path, last, table_of(last.scenarios, range(90, 92)))
    tables = collect(experiment, tmp_path)
    assert len(next(tables)) == 16
    with pytest.raises(TrialsError) as caught:
        next(tables)
    assert caught.value.lines == [f"{paths[-1]} has rows of other trials than it says: column seed{REMEDY}"]


def test_nothing_is_written_when_a_file_of_an_experiment_is_wrong(experiment, tmp_path):
    for job in experiment.jobs[1:]:
        write_job(tmp_path, job)
    output = tmp_path / "trials.parquet"
    with pytest.raises(TrialsError):
        list(write_experiment(collect(experiment, tmp_path), output, {}))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


# --- Writing ---------------------------------------------------------------------------------------


def files_below(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_nothing_is_left_when_writing_fails(job, tmp_path):
    table = table_of(job.scenarios, job.seeds).drop_columns(["seed"])
    with pytest.raises(ValueError, match="seed"):
        write_trials(tmp_path / "x.parquet", table, {})
    assert files_below(tmp_path) == []


def test_the_old_file_stays_when_writing_fails(job, tmp_path, monkeypatch):
    path = write_job(tmp_path, job)
    before = path.read_bytes()

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_job(tmp_path, job)
    assert path.read_bytes() == before
    assert files_below(tmp_path) == [path.name]


def test_nothing_is_left_when_the_walk_over_an_experiment_is_given_up(experiment, tmp_path):
    for job in experiment.jobs:
        write_job(tmp_path, job)
    output = tmp_path / "out" / "trials.parquet"
    walk = write_experiment(collect(experiment, tmp_path), output, {})
    next(walk)
    walk.close()
    assert files_below(output.parent) == []


def test_metadata_are_text_in_a_fixed_order(job, tmp_path):
    text = pq.read_schema(write_job(tmp_path, job)).metadata[b"kvsim"].decode()
    assert text == json.dumps(json.loads(text), sort_keys=True)
