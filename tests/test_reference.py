"""The reference's tables, against what the reference printed from the same trials."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from kvsim.reference import REFERENCE, covers, printed
from kvsim.scenario import PARAMETERS, Scenario

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def recorded() -> dict[str, pd.DataFrame]:
    """The trials that the reference recorded while it printed, by experiment, every parameter a column."""
    frame = pd.read_parquet(DATA / "reference-trials.parquet")
    for name, parameter in PARAMETERS.items():
        if name not in frame:
            frame[name] = parameter.default
    return dict(list(frame.groupby("experiment")))


@pytest.fixture(scope="module")
def expected() -> str:
    return (DATA / "reference-printed.txt").read_text()


def experiments(**changes: object) -> dict[str, SimpleNamespace]:
    return {n: SimpleNamespace(scenarios=s.scenarios, seeds=s.seeds) for n, s in REFERENCE.items()} | changes


def test_tables_are_the_references_byte_for_byte(recorded, expected):
    assert printed(recorded) == expected


def test_prompt_tokens_may_be_words_and_integers(recorded, expected):
    def parsed(frame: pd.DataFrame) -> pd.DataFrame:
        values = [PARAMETERS["prompt_tokens"].parse(text) for text in frame["prompt_tokens"]]
        return frame.assign(prompt_tokens=pd.Series(values, index=frame.index, dtype=object))

    assert printed({name: parsed(frame) for name, frame in recorded.items()}) == expected


def test_other_rows_and_another_order_change_nothing(recorded, expected):
    def widened(frame: pd.DataFrame) -> pd.DataFrame:
        other_tenants = frame.assign(tenants=7, foreign_frac=0.123)
        other_seeds = frame.assign(seed=frame["seed"] + 5000, distinct_tenants=1)
        return pd.concat([other_seeds, frame, other_tenants]).sample(frac=1, random_state=1)

    assert printed({name: widened(frame) for name, frame in recorded.items()}) == expected


def test_missing_trials_are_named(recorded):
    short = recorded | {"warm-up": recorded["warm-up"].query("warm_steps != 20 or seed > 20261030")}
    with pytest.raises(
        ValueError, match=r"^experiment warm-up: 4 of 30 trials of warm_steps=20 are missing$"
    ):
        printed(short)
    with pytest.raises(ValueError, match="experiment prompts: its trials are missing"):
        printed({name: frame for name, frame in recorded.items() if name != "prompts"})


def test_covers_asks_for_every_scenario_and_seed():
    assert covers(experiments())
    wider = SimpleNamespace(scenarios=(Scenario(tenants=9), Scenario()), seeds=range(20261000, 20261200))
    assert covers(experiments(replies=wider, extra=wider))
    fewer_seeds = SimpleNamespace(scenarios=(Scenario(),), seeds=range(20261027, 20261126))
    assert not covers(experiments(replies=fewer_seeds))
    other = SimpleNamespace(scenarios=(Scenario(tenants=9),), seeds=range(20261027, 20261127))
    assert not covers(experiments(replies=other))
    assert not covers({})
