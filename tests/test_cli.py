"""The command line: what it prints and writes, and one line on stderr with status 2 for what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvsim import Scenario, __version__, simulate
from kvsim.__main__ import (
    FEW_JOBS,
    LONG_JOB,
    MANY_JOBS,
    MAX_TRIALS,
    OTHER_STEP_SECONDS,
    SHORT_JOB,
    STEP_SECONDS,
    advice,
    main,
    work_seconds,
)
from kvsim.grid import ConfigError, load_config
from kvsim.scenario import PARAMETERS
from kvsim.trials import read_metadata, read_trials

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "config" / "config.yaml"


class Output(str):
    """What a command printed: on stdout, with `errors` on stderr."""

    errors: str


@pytest.fixture
def kvsim(capsys, tmp_path, monkeypatch):
    """Call the command line in an empty folder; check its exit status, give what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, status: int = 0) -> Output:
        try:
            found = main(arguments)
        except SystemExit as end:
            found = end.code
        printed, errors = capsys.readouterr()
        assert found == status, errors
        output = Output(printed)
        output.errors = errors
        return output

    return call


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


# --- kvsim run -------------------------------------------------------------------------------------


def test_run_writes_what_simulate_returns(kvsim):
    sets = ["--set", "policy=lifo,fifo", "--set", "warm_steps=0,50", "--set", "utilisation=0.3"]
    printed = kvsim("run", *sets, "--seeds", "5:8", "--output", "new/trials.parquet")
    assert printed == "new/trials.parquet: 12 trials of 4 scenarios\n"
    assert printed.errors == ""
    assert files() == ["new", "new/trials.parquet"]
    scenarios = [
        Scenario(policy=policy, warm_steps=steps, utilisation=0.3)
        for policy in ("lifo", "fifo")
        for steps in (0, 50)
    ]
    pd.testing.assert_frame_equal(read_trials("new/trials.parquet"), simulate(scenarios, range(5, 8)))


def test_run_says_in_the_file_what_it_holds(kvsim):
    kvsim(
        "run", "--grid", "warm_steps=5", "--grid", "policy=fifo warm_steps=0", "--seeds", "7", "--output", "t"
    )
    about = read_metadata("t")
    assert (about["scenarios"], about["seeds"]) == (
        "--grid warm_steps=5 --grid 'policy=fifo warm_steps=0'",
        "7:8",
    )
    assert pq.read_table("t")["warm_steps"].to_pylist() == [5, 0]


def test_run_writes_the_same_bytes_again(kvsim):
    for name in ("one", "two"):
        kvsim("run", "--set", "warm_steps=20", "--seeds", "0:3", "--output", name)
    assert Path("one").read_bytes() == Path("two").read_bytes()


def test_run_replaces_a_file(kvsim):
    Path("t").write_text("old")
    kvsim("run", "--set", "warm_steps=0", "--seeds", "0:2", "--output", "t")
    assert pq.read_metadata("t").num_rows == 2


def test_run_prints_a_summary(kvsim):
    printed = kvsim("run", "--set", "policy=lifo,fifo", "--set", "warm_steps=20", "--seeds", "0:4")
    assert "2 scenarios, 8 trials" in " ".join(printed.split())
    rows = [line.split() for line in printed.splitlines() if line.startswith(("lifo", "fifo"))]
    assert [row[:2] for row in rows] == [["lifo", "4"], ["fifo", "4"]]
    assert files() == []


def test_run_has_defaults_for_everything(kvsim):
    assert "1 scenario, 30 trials" in " ".join(kvsim("run").split())


WRONG = [
    (["--set", "polcy=fifo"], "polcy: is not a parameter; did you mean policy?"),
    (["--set", "policy=fifoo"], "policy: 'fifoo' is not allowed; must be {policy}"),
    (["--set", "policy"], '"policy" is not allowed; must be parameter=value or parameter=value,value'),
    (["--set", "tenants=2.5"], "tenants: '2.5' is not allowed; must be {tenants}"),
    (["--set", "tenants=nan"], "tenants: 'nan' is not allowed; must be {tenants}"),
    (["--set", "utilisation=nan"], "utilisation: 'nan' is not allowed; must be {utilisation}"),
    (["--set", "utilisation=inf"], "utilisation: 'inf' is not allowed; must be {utilisation}"),
    (["--set", "warm_steps=-1"], "warm_steps: '-1' is not allowed; must be {warm_steps}"),
    (["--set", "pool_pages=1000000000"], "pool_pages: '1000000000' is not allowed; must be {pool_pages}"),
    (
        ["--set", "tenants=1", "--set", "tenants=2"],
        'tenants: stands twice in "tenants=1 tenants=2"; must stand once',
    ),
    (
        ["--set", "prompt_tokens=3000000"],
        "prompt_tokens: 3000000 is not allowed; must be at most 2097152, "
        "all that 32768 pages of 64 tokens can hold",
    ),
    (["--seeds", "-1:5"], 'seeds: "-1:5" is not allowed; must be first:stop, e.g. 5:25, or one seed'),
    (["--seeds", "5:5"], "seeds: 5:5 is empty; the second number must be larger than the first"),
    (["--seeds", f"0:{2**64 + 1}"], f"seeds: 0:{2**64 + 1} is not allowed; must be from 0 to {2**64 - 1}"),
    (["--seeds", f"0:{2**64}"], f"{2**64} trials are not allowed; must be at most {MAX_TRIALS} at once"),
    (
        ["--set", "tenants=1", "--grid", "tenants=1"],
        "--set and --grid: only one of them is allowed; --grid takes what --set takes",
    ),
    (["--output", "folder"], "--output: folder is a folder; must be a file"),
    (["--output", ""], "--output: . is a folder; must be a file"),
    (["--output", "/dev/null"], "--output: /dev/null is a device; must be a file"),
    (
        ["--output", "file/t.parquet"],
        "--output: file/t.parquet cannot be written; file: Not a directory",
    ),
    (
        ["--output", "/proc/t.parquet"],
        "--output: /proc/t.parquet cannot be written; /proc: No such file or directory",
    ),
    (["--output", f"{'x' * 300}"], f"{'x' * 300}: File name too long"),
    (["--outptu", "t"], "unrecognized arguments: --outptu t"),
]


@pytest.mark.parametrize(("arguments", "line"), WRONG, ids=lambda value: str(value)[:40])
def test_run_says_in_one_line_what_is_wrong(kvsim, arguments, line):
    Path("folder").mkdir()
    Path("file").touch()
    # argparse takes "-1:5" for an option, unless it is joined to its own.
    words = [f"{arguments[0]}={arguments[1]}"] if arguments[-1].startswith("-1") else arguments
    printed = kvsim("run", *words, status=2)
    allowed = {name: parameter.allowed for name, parameter in PARAMETERS.items()}
    line = re.sub(r"\{(\w+)\}", lambda match: allowed[match[1]], line)
    assert printed == ""
    assert printed.errors == f"kvsim: {line}\n"
    assert files() == ["file", "folder"]


def test_a_full_disk_leaves_nothing(kvsim, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    printed = kvsim("run", "--set", "warm_steps=0", "--seeds", "0:2", "--output", "t", status=2)
    assert printed.errors == "kvsim: [Errno 28] No space left on device\n"
    assert files() == []


def test_an_interruption_is_one_line(kvsim, monkeypatch):
    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("kvsim.simulation.simulate_table", interrupt)
    assert kvsim("run", "--output", "t", status=130).errors == "kvsim: interrupted\n"
    assert files() == []


# --- kvsim plan ------------------------------------------------------------------------------------


def plan_of(kvsim, text: str) -> list[str]:
    Path("config.yaml").write_text(text)
    return kvsim("plan", "config.yaml").splitlines()


def test_plan_counts(kvsim):
    printed = plan_of(
        kvsim,
        """
        seeds: {first: 5, count: 7}
        experiments:
          orders: {grid: {policy: [lifo, fifo, random], warm_steps: [0, 100]}, seeds_per_job: 4}
          one: {seeds: {first: 100}}
        """,
    )
    assert [re.split(r"  +", line) for line in printed[2:]] == [
        ["orders", "policy, warm_steps", "6", "5 .. 11", "42", "6", "7.2 s"],
        ["one", "-", "1", "100 .. 106", "7", "1", "1.2 s"],
    ]


def test_plan_agrees_with_the_config(kvsim):
    printed = kvsim("plan", str(CONFIG)).splitlines()
    for name, experiment in load_config([CONFIG]).experiments.items():
        row = next(re.split(r"  +", line) for line in printed if line.startswith(f"{name} "))
        assert row[2] == str(len(experiment.scenarios))
        assert row[4] == str(len(experiment.scenarios) * len(experiment.seeds))
        assert row[5] == str(len(experiment.jobs))


def test_plan_takes_several_files(kvsim):
    Path("one.yaml").write_text("experiments: {a: {grid: {policy: [lifo, fifo]}}}\n")
    Path("two.yaml").write_text("seeds: {count: 3}\n")
    row = re.split(r"  +", kvsim("plan", "one.yaml", "two.yaml").splitlines()[2])
    assert (row[2], row[4]) == ("2", "6")


def test_plan_says_when_seeds_overlap_in_part(kvsim):
    printed = plan_of(kvsim, "experiments: {a: {seeds: {first: 0}}, b: {seeds: {first: 20}}}\n")
    assert printed[4:] == [
        "note: a and b share 10 seeds (20 to 29) but not all: they are neither paired nor independent"
    ]


def test_plan_gives_every_error_of_a_config(kvsim):
    Path("config.yaml").write_text("experiments:\n  a:\n    grid: {polcy: fifo}\n    seeds: {count: 0}\n")
    printed = kvsim("plan", "config.yaml", status=2)
    assert printed == ""
    assert printed.errors.splitlines() == [
        "config.yaml:3: experiments.a.grid.polcy: is not a known key; did you mean policy?",
        "config.yaml:4: experiments.a.seeds.count: 0 is not allowed; must be an integer from 1 to 1000000000",
    ]


def test_plan_checks_figures(kvsim):
    text = "experiments: {a: {}}\nfigures:\n  f: {experiment: a, kind: parts, x: warm_step}\n"
    Path("config.yaml").write_text(text)
    assert kvsim("plan", "config.yaml", status=2).errors.startswith("config.yaml:3: figures.f.x: 'warm_step'")


def test_plan_of_a_missing_file(kvsim):
    assert (
        kvsim("plan", "none.yaml", status=2).errors
        == "none.yaml: cannot be read: No such file or directory\n"
    )


def test_the_work_of_scenarios_that_share_a_server_is_that_of_the_longest():
    def seconds(**grid: Any) -> float:
        entry = {"grid": grid, "seeds": {"count": 10}}
        return work_seconds(load_config([], {"experiments": {"a": entry}}).experiments["a"])

    lifo = 10 * 3000 * OTHER_STEP_SECONDS
    assert seconds() == pytest.approx(lifo)
    assert seconds(warm_steps=[0, 100, 3000], prompt_tokens=["uniform", 850_000]) == pytest.approx(lifo)
    assert seconds(utilisation=[0.3, 0.6]) == pytest.approx(2 * lifo)
    assert seconds(policy="random") == pytest.approx(10 * 3000 * STEP_SECONDS["random"])


# --- Advice ----------------------------------------------------------------------------------------


def advised(entry: dict[str, Any]) -> dict[str, Any]:
    """What `kvsim plan` says to put into an experiment; empty if it says nothing."""
    lines = advice(load_config([], {"experiments": {"a": entry}}))
    assert len(lines) <= 1
    for line in lines:
        match = re.fullmatch(r"a: \d+ jobs? of [\d.]+ (s|min|h) of work; put (.*)", line)
        return yaml.safe_load(match[2].replace(" and ", "\n"))
    return {}


def test_a_study_that_fits_needs_no_advice():
    assert advised({}) == {}
    assert advised({"grid": {"policy": ["lifo", "fifo"], "tenants": {"from": 1, "to": 200, "step": 1}}}) == {}


def test_many_small_jobs_become_few():
    grid = {"policy": ["lifo", "fifo"], "tenants": {"from": 1, "to": 300, "step": 1}}
    assert advised({"grid": grid}) == {"job_by": ["policy"], "seeds_per_job": 4}
    grid["tenants"]["to"] = 2500
    assert advised({"grid": grid, "seeds": {"count": 200}}) == {"job_by": ["policy"], "seeds_per_job": 20}


def test_many_blocks_become_few():
    entry = {"seeds": {"count": 2000}, "seeds_per_job": 1}
    assert advised(entry) == {"seeds_per_job": 125}


def test_a_long_job_is_split_by_seeds():
    entry = {"grid": {"policy": "random", "warm_steps": 1_000_000}, "seeds": {"count": 1000}}
    assert advised(entry) == {"seeds_per_job": 12}


def test_a_long_job_of_one_seed_is_left_alone():
    entry = {"grid": {"policy": "random", "warm_steps": 10_000_000}, "job_by": []}
    entry["grid"]["tenants"] = {"from": 1, "to": 100, "step": 1}
    assert advised({**entry, "seeds": {"count": 1}}) == {}


@settings(max_examples=40, deadline=None)
@given(
    tenants=st.integers(1, 400),
    policies=st.integers(1, 3),
    utilisations=st.integers(1, 8),
    warm_steps=st.sampled_from([0, 3000, 100_000, 10_000_000]),
    count=st.integers(1, 3000),
    per_job=st.integers(1, 3000),
)
def test_no_advice_is_left_once_it_is_taken(tenants, policies, utilisations, warm_steps, count, per_job):
    assume(tenants * policies * utilisations <= 1500)
    entry = {
        "grid": {
            "policy": ["random", "lifo", "fifo"][:policies],
            "tenants": list(range(1, tenants + 1)),
            "utilisation": [i / 10 for i in range(utilisations)],
            "warm_steps": warm_steps,
        },
        "seeds": {"count": count},
        "seeds_per_job": per_job,
    }
    try:
        change = advised(entry)
    except ConfigError:
        assume(False)
    taken = {**entry, **change}
    assert advised(taken) == {}
    if change:
        experiment = load_config([], {"experiments": {"a": taken}}).experiments["a"]
        assert len(experiment.jobs) <= FEW_JOBS


def test_the_bounds_of_the_advice():
    assert (FEW_JOBS, MANY_JOBS) == (500, 1000)
    assert SHORT_JOB < LONG_JOB


# --- As a program ----------------------------------------------------------------------------------


def program(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    found = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == status, found.stderr
    return found


HEAVY = """
import sys
from kvsim.__main__ import main
status = main(sys.argv[1:])
print(sorted({"numba", "pandas", "pyarrow", "scipy", "seaborn", "matplotlib"} & set(sys.modules)))
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("config", "status"), [("config/config.yaml", 0), ("tests/data/bad-configs/several.yaml", 2)]
)
def test_plan_imports_nothing_heavy_and_takes_less_than_a_second(config, status):
    start = time.perf_counter()
    found = program("-c", HEAVY, "plan", config, status=status)
    seconds = time.perf_counter() - start
    assert found.stdout.splitlines()[-1] == "[]"
    # Half a second on an idle machine; under the tests, others may be at work too.
    assert seconds < 3


def test_it_is_a_program():
    assert program("-m", "kvsim", "--version").stdout == f"kvsim {__version__}\n"
    found = program("-m", "kvsim", "run", "--set", "tenants=0", status=2)
    assert found.stderr == "kvsim: tenants: '0' is not allowed; must be an integer from 1 to 2147483647\n"


@pytest.mark.parametrize("arguments", [[], ["run"], ["plan"]])
def test_help(kvsim, arguments):
    printed = kvsim(*arguments, "--help")
    assert printed.startswith(f"usage: {' '.join(['kvsim', *arguments])}")
    if arguments == ["run"]:
        assert all(
            f"  {name} " in printed and parameter.doc in printed for name, parameter in PARAMETERS.items()
        )


def test_no_command_is_one_line(kvsim):
    assert kvsim(status=2).errors == "kvsim: the following arguments are required: COMMAND\n"
