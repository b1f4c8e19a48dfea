"""The plain-Python model against recordings: of the reference script, and of the engines' own classes."""

from __future__ import annotations

from pathlib import Path

import model
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from kvsim import Scenario
from kvsim.outcomes import OUTCOMES
from kvsim.scenario import PARAMETERS

DATA = Path(__file__).parent / "data"


def recorded_sample() -> list[dict[str, object]]:
    """Pick a few recorded trials: two of every policy and default or other constants, of the quick ones."""
    trials = pd.read_parquet(DATA / "trials-recorded.parquet")
    quick = trials[(trials.warm_steps <= 1000) & (trials.warm_steps >= 20) & (trials.pool_pages < 100_000)]
    quick = quick[(quick.policy != "random") | (quick.warm_steps <= 50)]
    ordinary = quick.pool_pages == Scenario.pool_pages
    sample = quick.sort_values("drain_steps").groupby(["policy", ordinary]).tail(2)
    return sample.to_dict("records")


@pytest.mark.parametrize(
    "recorded", recorded_sample(), ids=lambda row: f"{row['policy']}-{row['warm_steps']}-{row['seed']}"
)
def test_trial_equals_the_recorded_one(recorded):
    values = {name: recorded[name] for name in PARAMETERS if name in recorded}
    if values["prompt_tokens"] == -1:
        values["prompt_tokens"] = "uniform"
    outcomes = model.trial(Scenario(**values), recorded["seed"])
    assert set(outcomes) == set(OUTCOMES)
    shared = [name for name in outcomes if name in recorded]
    assert len(shared) >= 15
    np.testing.assert_equal({n: outcomes[n] for n in shared}, {n: recorded[n] for n in shared})
    assert outcomes["kv_cache_usage"] == recorded["used_pages"] / recorded["pool_pages"]


@pytest.mark.parametrize("policy", model.RECORDINGS)
def test_replay_hands_out_what_the_engine_did(policy):
    table = pq.read_table(DATA / "engines" / f"{model.RECORDINGS[policy]}.parquet")
    about = table.schema.metadata
    assert model.POLICIES[policy].first_page == int(about[b"first_page"])
    operations = table.to_pylist()
    assert len(operations) == 6000
    replayed = model.replay(policy, int(about[b"pages"]), int(about[b"page_size"]), operations)
    assert replayed == [(row["pages"], row["failed"], row["free_pages"]) for row in operations]


def pool_of_eight(policy: str) -> model.Pool:
    return model.Pool(policy, pages=8, page_size=4, rng=np.random.default_rng(0))


# What the engine hands out after requests a (10 tokens: 3 pages) and b (8 tokens: 2 pages) came, and a left.
NEXT_FIVE = {
    "lifo": [5, 6, 7, 2, 1],
    "fifo": [5, 6, 7, 0, 1],
    "sglang-disaggregated": [1, 2, 3, 6, 7],
    "sglang": [1, 2, 3, 6, 7],
    "vllm": [3, 2, 1, 6, 7],
    "vllm-prefix-caching": [3, 6, 7, 8, 2],
    "lmdeploy": [0, 1, 2, 5, 6],
}


@pytest.mark.parametrize("policy", NEXT_FIVE)
def test_order_of_pages_by_hand(policy):
    pool = pool_of_eight(policy)
    a = pool.alloc(10)
    b = pool.alloc(8)
    assert (len(a), len(b), pool.free_pages) == (3, 2, 3)
    pool.free(a, 10)
    assert pool.alloc(20) == NEXT_FIVE[policy]
    assert pool.alloc(5) is None
    assert pool.free_pages == 1


def test_sglang_disaggregated_merges_before_it_knows_what_it_needs():
    pool = pool_of_eight("sglang-disaggregated")
    first = pool.alloc(16)
    pool.free(first, 16)
    # Five pages would be needed at most, four are: free pages 5 .. 8 would do, yet all are sorted.
    assert pool.alloc(12) == [1, 2, 3]

    pool = pool_of_eight("sglang-disaggregated")
    first = pool.alloc(16)
    pool.free(first, 16)
    # Four at most: 5 .. 8 are enough, and the freed ones stay staged.
    assert pool.alloc(11) == [5, 6, 7]


def test_sglang_disaggregated_merges_even_when_it_fails():
    pool = pool_of_eight("sglang-disaggregated")
    first = pool.alloc(8)
    pool.free(first, 8)
    assert pool.alloc(33) is None
    assert pool.free_pages == 8
    assert pool.alloc(1) == [1]


def test_sglang_disaggregated_merges_on_growth_that_needs_no_page():
    pool = pool_of_eight("sglang-disaggregated")
    a = pool.alloc(7)
    b = pool.alloc(24)
    assert (a, b) == ([1, 2], [3, 4, 5, 6, 7, 8])
    pool.free(b, 24)
    assert pool.grow([(a, 8)]) == [[]]  # fits page 2, and merges
    pool.free([1, 2], 8)
    assert pool.alloc(1) == [3]  # 1 and 2 are staged behind the merged list


@pytest.mark.parametrize("policy", model.POLICIES)
def test_growth_takes_a_page_only_across_a_boundary(policy):
    pool = pool_of_eight(policy)
    held = pool.alloc(3)
    assert pool.grow([(held, 4)]) == [[]]
    (grown,) = pool.grow([(held, 5)])
    assert len(grown) == 1
    assert pool.free_pages == 6
    rest = pool.alloc(24)
    assert sorted(held + grown + rest) == sorted(range(pool.policy.first_page, pool.policy.first_page + 8))
    assert pool.grow([(held + grown, 9)]) is None
    assert pool.free_pages == 0


def test_vllm_hashes_a_page_that_growth_filled():
    pool = pool_of_eight("vllm-prefix-caching")
    held = pool.alloc(3)
    pool.grow([(held, 4)])
    pool.free(held, 4)
    assert pool.alloc(32) == [2, 3, 4, 5, 6, 7, 8, 1]


def test_sglang_disaggregated_judges_growth_by_the_number_of_requests():
    pool = pool_of_eight("sglang-disaggregated")
    a, b, c = pool.alloc(8), pool.alloc(6), pool.alloc(6)
    assert (a, b, c) == ([1, 2], [3, 4], [5, 6])
    pool.free(a, 8)
    assert pool.grow([(b, 8), (c, 8)]) == [[], []]  # two requests, pages 7 and 8 free: enough
    assert pool.grow([(b, 9), (c, 8)]) == [[7], []]
    assert pool.grow([([3, 4, 7], 10), (c, 9)]) == [[], [1]]  # 8 alone is free: pages 1 and 2 are merged


def test_the_newest_is_retracted_when_decoding_finds_no_page():
    """Three growing requests fill 8 pages; when one of them needs a ninth the newest gives way."""
    scenario = Scenario(
        policy="sglang",
        utilisation=1,
        warm_steps=5,
        prompt_tokens=12,
        pool_pages=8,
        page_size=4,
        request_tokens_min=7,
        request_tokens_max=7,
        request_lifetime_steps=1_000_000,
        decode_tokens_per_step=1,
    )
    server = model.Server(scenario, np.random.default_rng(5))
    held = []
    for _ in range(5):
        server.step(arrivals=True)
        held.append(sorted((request.number, request.tokens) for _, _, request in server.due))
    assert held == [
        [(0, 7)],
        [(0, 8), (1, 7)],
        [(0, 9), (1, 8), (2, 7)],
        # 3 + 3 + 2 pages: the cap lets nobody in.
        [(0, 10), (1, 9), (2, 8)],
        # Request 2 needs the ninth page and is the newest: it gives way, and request 3 comes.
        [(0, 11), (1, 10), (3, 7)],
    ]
    assert (server.dropped, server.retracted, server.finished) == (0, 1, 1)
