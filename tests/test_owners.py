"""The table of previous owners against the trials and against the plain-Python model."""

from __future__ import annotations

from dataclasses import replace

import model
import numpy as np
import pandas as pd
import pytest

from kvsim import Scenario, owners, simulate
from kvsim.__main__ import main
from kvsim.scenario import PARAMETERS, POLICIES
from kvsim.simulation import owners_table
from kvsim.trials import read_metadata, read_trials

SMALL = Scenario(
    pool_pages=200,
    page_size=4,
    request_tokens_median=40,
    request_tokens_min=2,
    request_tokens_max=200,
    request_lifetime_steps=6,
    tenants=5,
    prefill_pool_tokens=300,
    context_tokens=600,
)
SEEDS = [3, 2**64 - 1, 5]


@pytest.mark.parametrize("growth", [0, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_owners_add_up_to_the_outcomes(policy: str, growth: int):
    server = replace(SMALL, policy=policy, decode_tokens_per_step=growth)
    scenarios = [
        replace(server, warm_steps=steps, prompt_tokens=p) for steps in (90, 7) for p in ("uniform", 640)
    ]
    trials = simulate(scenarios, SEEDS)
    found = owners_table(scenarios, SEEDS).to_pandas()
    trials["prompt_tokens"] = trials["prompt_tokens"].astype(str)
    keys = [*PARAMETERS, "seed"]
    groups = found.groupby(keys, sort=False)
    assert list(groups.groups) == [
        tuple(row) for row in trials.loc[trials.foreign_pages > 0, keys].itertuples(index=False)
    ]
    exposed = trials[trials.foreign_pages > 0].reset_index(drop=True)
    expected = {
        "foreign_pages": groups.pages.sum(),
        "distinct_requests": groups.request.nunique(),
        "distinct_tenants": groups.tenant.nunique(),
        "largest_request_pages": groups.pages.max(),
        "median_age": groups.age.median(),
        "max_age": groups.age.max(),
        "median_age_steps": groups.age_steps.median(),
        "max_age_steps": groups.age_steps.max(),
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(exposed[name], values, name)
    by_tenant = found.groupby([*keys, "tenant"], sort=False).pages.sum().groupby(keys, sort=False).max()
    np.testing.assert_array_equal(exposed["largest_tenant_pages"], by_tenant)


@pytest.mark.parametrize("policy", POLICIES)
def test_owners_are_those_of_the_model(policy: str):
    scenario = replace(SMALL, policy=policy, warm_steps=60, prompt_tokens=640)
    server = model.Server(scenario, np.random.default_rng(11))
    for _ in range(60):
        server.step(arrivals=True)
    pages = model._admit(server, 640)
    expected: dict[int, list[int]] = {}
    for page in pages[1:]:
        if page in server.writer:
            owner = server.writer[page]
            row = [
                owner.tenant,
                0,
                server.finished - owner.finished_as,
                server.step_number - owner.finish_step,
            ]
            expected.setdefault(owner.number, row)[1] += 1
    table = owners_table(scenario, [11]).to_pandas()
    got = {row.request: [row.tenant, row.pages, row.age, row.age_steps] for row in table.itertuples()}
    assert got == expected


def test_nothing_exposed_is_no_row():
    assert len(owners_table(replace(SMALL, warm_steps=0), SEEDS)) == 0


def test_the_command_writes_them(tmp_path, capsys):
    path = tmp_path / "owners.parquet"
    assert main(["run", "--set", "policy=vllm", "--seeds", "3:5", "--owners", str(path)]) == 0
    expected = owners(Scenario(policy="vllm"), range(3, 5))
    pd.testing.assert_frame_equal(read_trials(path), expected)
    assert capsys.readouterr().out == f"{path}: {len(expected)} previous owners in 2 trials\n"
    assert read_metadata(path)["seeds"] == "3:5"
