"""The compiled simulator against recordings, against the plain-Python model, and against plain reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import model
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from kvsim import PagePool, Scenario, replay, simulate
from kvsim.outcomes import OUTCOMES, TRIAL_COLUMNS
from kvsim.scenario import MAX_SEED, PARAMETERS, POLICIES

DATA = Path(__file__).parent / "data"

thorough = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
brief = settings(thorough, max_examples=40)

SMALL = Scenario(
    pool_pages=40,
    page_size=4,
    request_tokens_median=12,
    request_tokens_min=2,
    request_tokens_max=60,
    request_lifetime_steps=4,
    warm_steps=60,
    tenants=3,
    prefill_pool_tokens=80,
    context_tokens=120,
)
"""A server that is over in no time, and exposes something."""


def from_model(scenarios: list[Scenario], seeds: list[int]) -> pd.DataFrame:
    """What `simulate` has to return, by the model."""
    rows = [
        {name: getattr(scenario, name) for name in PARAMETERS}
        | {"seed": seed}
        | model.trial(scenario, int(seed))
        for scenario in scenarios
        for seed in seeds
    ]
    frame = pd.DataFrame(rows, columns=list(TRIAL_COLUMNS))
    return frame.astype({"seed": "uint64", "prompt_tokens": object})


def assert_same(left: pd.DataFrame, right: pd.DataFrame) -> None:
    """Value for value: no tolerance, and missing is missing in both."""
    assert_frame_equal(left, right, check_exact=True)


# ------------------------------------------------------------------------------- random scenarios

seeds_anywhere = st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, MAX_SEED]) | st.integers(0, MAX_SEED)


def edges_or(minimum: int, maximum: int, *edges: int) -> st.SearchStrategy[int]:
    """Integers of a range, its bounds and some other edges more often than the rest."""
    at_edges = [edge for edge in (minimum, maximum, *edges) if minimum <= edge <= maximum]
    return st.sampled_from(at_edges) | st.integers(minimum, maximum)


@st.composite
def prompts(draw: st.DrawFn, server: Scenario) -> int | str:
    """An oversized request of one page, of the whole pool, or of anything between."""
    capacity = server.pool_pages * server.page_size
    return draw(st.just("uniform") | edges_or(1, capacity, server.page_size, server.page_size + 1))


@st.composite
def odd_servers(draw: st.DrawFn, policies: tuple[str, ...]) -> Scenario:
    """Small servers where everything may go wrong: tiny pools, requests larger than they are, no traffic."""
    page_size = draw(st.sampled_from([1, 2, 7, 16, 64]))
    pool_pages = draw(edges_or(1, 150, 2, 3))
    capacity = page_size * pool_pages
    shortest = draw(st.sampled_from([1, page_size]) | edges_or(1, capacity + 1))
    context_tokens = draw(edges_or(1, capacity))
    return Scenario(
        policy=draw(st.sampled_from(policies)),
        prompt_tokens=1,
        utilisation=draw(st.sampled_from([0, 0.1, 0.5, 0.9, 1]) | st.floats(0, 1)),
        warm_steps=draw(st.sampled_from([0, 1, 2]) | st.integers(0, 120)),
        pool_pages=pool_pages,
        page_size=page_size,
        prefill_pool_tokens=draw(edges_or(0, context_tokens - 1)),
        context_tokens=context_tokens,
        request_tokens_median=draw(st.floats(1, 1 + capacity / 10) | edges_or(1, 2 * capacity)),
        request_tokens_sigma=draw(st.sampled_from([0, 0.3, 1.1, 10]) | st.floats(0, 3)),
        request_tokens_min=shortest,
        request_tokens_max=draw(edges_or(shortest, shortest + 2 * capacity)),
        request_lifetime_steps=draw(st.sampled_from([1, 1.5, 2, 3, 3.001, 40, 400]) | st.floats(1, 60)),
        decode_tokens_per_step=draw(st.sampled_from([0, 0, 1, page_size, 2 * page_size + 1])),
        tenants=draw(st.sampled_from([1, 2, 3, 200, 65_537, 2**31 - 1])),
    )


@st.composite
def busy_servers(draw: st.DrawFn, policies: tuple[str, ...]) -> Scenario:
    """Servers that went round their pool, or part of it, with many small requests."""
    page_size = draw(st.integers(1, 8))
    pool_pages = draw(st.integers(50, 300))
    return Scenario(
        policy=draw(st.sampled_from(policies)),
        prompt_tokens=1,
        utilisation=draw(st.floats(0.3, 1)),
        warm_steps=draw(st.integers(40, 160)),
        pool_pages=pool_pages,
        page_size=page_size,
        prefill_pool_tokens=pool_pages * page_size // 3,
        context_tokens=pool_pages * page_size,
        request_tokens_median=draw(st.floats(2.0 * page_size, 12.0 * page_size)),
        request_tokens_sigma=draw(st.floats(0, 1.5)),
        request_tokens_min=draw(st.integers(1, page_size)),
        request_tokens_max=pool_pages * page_size // draw(st.integers(1, 4)),
        request_lifetime_steps=draw(st.floats(1, 30)),
        decode_tokens_per_step=draw(st.sampled_from([0, 0, 1, 2, 10])),
        tenants=draw(st.integers(1, 60)),
    )


def servers(policies: tuple[str, ...] = POLICIES) -> st.SearchStrategy[Scenario]:
    return odd_servers(policies) | busy_servers(policies)


@st.composite
def scenarios(draw: st.DrawFn, policies: tuple[str, ...] = POLICIES) -> Scenario:
    """Any server, and any oversized request that it can hold."""
    server = draw(servers(policies))
    return replace(server, prompt_tokens=draw(prompts(server)))


@st.composite
def looks(draw: st.DrawFn) -> list[Scenario]:
    """Several scenarios on one server, in any order of their warm-ups, some of them equal."""
    server = draw(servers())
    warm_ups = st.lists(edges_or(0, server.warm_steps), min_size=1, max_size=5)
    return [
        replace(server, warm_steps=steps, prompt_tokens=draw(prompts(server))) for steps in draw(warm_ups)
    ]


# ---------------------------------------------------------------------------------- against the model


def test_model_knows_every_policy():
    assert set(POLICIES) <= set(model.POLICIES)


@thorough
@given(scenarios(), st.lists(seeds_anywhere, min_size=1, max_size=3))
def test_equals_the_model(scenario, seeds):
    assert_same(simulate(scenario, seeds), from_model([scenario], seeds))


@thorough
@given(looks(), st.lists(seeds_anywhere, min_size=1, max_size=2))
def test_looks_at_one_server_equal_the_model(scenarios, seeds):
    assert_same(simulate(scenarios, seeds), from_model(scenarios, seeds))


@brief
@given(
    st.lists(scenarios() | looks(), min_size=1, max_size=3), st.lists(seeds_anywhere, min_size=1, max_size=3)
)
def test_together_equals_one_by_one(drawn, seeds):
    together = [scenario for some in drawn for scenario in (some if isinstance(some, list) else [some])]
    one_by_one = [simulate(scenario, [seed]) for scenario in together for seed in seeds]
    assert_same(simulate(together, seeds), pd.concat(one_by_one, ignore_index=True))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lifetime", [1, 2, 3, 30])
def test_equals_the_model_over_many_seeds(policy, lifetime):
    """Short pages and lives: the draws meet their rare branches (a ziggurat's tail, a rejected integer)."""
    scenario = replace(
        SMALL, policy=policy, request_lifetime_steps=lifetime, warm_steps=100, tenants=2**31 - 1
    )
    seeds = list(range(40))
    assert_same(simulate(scenario, seeds), from_model([scenario], seeds))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("decoded", [1, 4, 9])
def test_equals_the_model_where_requests_grow(policy, decoded):
    """A page every fourth step, one a step, several a step: and requests are retracted."""
    scenario = replace(
        SMALL,
        policy=policy,
        decode_tokens_per_step=decoded,
        pool_pages=200,
        context_tokens=700,
        utilisation=1,
        warm_steps=200,
        request_lifetime_steps=25,
    )
    scenarios = [scenario, replace(scenario, warm_steps=40), replace(scenario, prompt_tokens=800)]
    trials = simulate(scenarios, range(6))
    assert (trials.requests_retracted > 0).any()
    assert (trials.drain_steps > 0).any()
    assert_same(trials, from_model(scenarios, list(range(6))))


@pytest.mark.parametrize("policy", POLICIES)
def test_equals_the_model_at_full_size(policy):
    """The defaults, apart from a warm-up that the model can take."""
    scenarios = [
        Scenario(policy=policy, warm_steps=steps, prompt_tokens=prompt)
        for steps, prompt in [(100, "uniform"), (0, 1_048_576), (40, 681_281)]
    ]
    seeds = [20261027, MAX_SEED]
    assert_same(simulate(scenarios, seeds), from_model(scenarios, seeds))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt", [1, 160, "uniform"])
def test_pool_filled_to_the_last_page(policy, prompt):
    """Requests of one size that fill the pool exactly, and are dropped from then on."""
    scenario = replace(
        SMALL,
        policy=policy,
        prompt_tokens=prompt,
        utilisation=1,
        request_tokens_min=16,
        request_tokens_max=16,
        request_lifetime_steps=300,
    )
    trials = simulate(scenario, range(8))
    assert (trials.used_pages == 40).any()
    assert_same(trials, from_model([scenario], list(range(8))))


# --------------------------------------------------------------------------------- against recordings


def recorded() -> list[pd.DataFrame]:
    """Trials of the reference script, one frame a scenario."""
    trials = pd.read_parquet(DATA / "trials-recorded.parquet")
    return [rows for _, rows in trials.groupby([name for name in PARAMETERS if name in trials])]


def test_recorded_trials_are_equal():
    differing, compared = [], 0
    for rows in recorded():
        values = rows.iloc[0].to_dict()
        if values["prompt_tokens"] == -1:
            values["prompt_tokens"] = "uniform"
        scenario = Scenario(**{name: values[name] for name in PARAMETERS if name in values})
        trials = simulate(scenario, rows.seed)
        shared = [name for name in OUTCOMES if name in rows]
        want = rows[["seed", *shared]].reset_index(drop=True)
        compared += len(want)
        if not trials[["seed", *shared]].equals(want):
            differing.append(scenario.name)
    assert differing == []
    assert compared == 422


# ------------------------------------------------------------------------------- a pool driven by hand


@pytest.mark.parametrize("policy", model.RECORDINGS)
@pytest.mark.parametrize("as_frame", [False, True], ids=["arrow", "pandas"])
def test_replay_hands_out_what_the_engine_did(policy, as_frame):
    recording = pq.read_table(DATA / "engines" / f"{model.RECORDINGS[policy]}.parquet")
    # Without its metadata, the size of the pool and of a page have to be read off the operations.
    replayed = replay(policy, recording.to_pandas() if as_frame else recording)
    assert len(replayed) == 6000
    assert replayed == recording["pages"].to_pylist()
    assert replayed.failed == recording["failed"].to_pylist()
    assert replayed.free_pages == recording["free_pages"].to_pylist()


@thorough
@given(
    policy=st.sampled_from(POLICIES),
    pool_pages=st.integers(1, 60),
    page_size=st.integers(1, 5),
    operations=st.lists(
        st.tuples(st.sampled_from("aaggf"), st.integers(1, 60), st.integers(0, 99)), max_size=80
    ),
)
def test_pool_equals_the_model(policy, pool_pages, page_size, operations):
    pool = PagePool(policy, pool_pages, page_size, seed=3)
    other = model.Pool(policy, pool_pages, page_size, np.random.default_rng(3))
    tokens: dict[int, int] = {}
    held: dict[int, list[int]] = {}
    for number, (kind, amount, which) in enumerate(operations):
        if kind == "a":
            pages = other.alloc(amount)
            assert pool.alloc(amount, request=number) == pages
            if pages is not None:
                held[number], tokens[number] = list(pages), amount
        elif held:
            request = sorted(held)[which % len(held)]
            if kind == "g":
                # Mostly by the one token of a decode step, now and then by more.
                more = tokens[request] + (1 if amount % 5 else amount)
                grown = other.grow([(held[request], more)])
                pages = None if grown is None else grown[0]
                assert pool.grow(request, more) == pages
                if pages is not None:
                    held[request] += pages
                    tokens[request] = more
            else:
                pool.free(request)
                other.free(held.pop(request), tokens.pop(request))
        assert pool.free_pages == other.free_pages


# ------------------------------------------------------------------------- what needs no second opinion


@brief
@given(scenarios(), st.lists(seeds_anywhere, min_size=1, max_size=8))
def test_outcomes_agree_with_one_another(scenario, seeds):
    trials = simulate(scenario, seeds)
    exposed = trials.foreign_pages > 0
    assert (trials.pages == -(-trials.prompt_tokens_drawn // scenario.page_size)).all()
    assert (trials.pages == trials.foreign_pages + trials.never_written + 1).all()
    assert (trials.foreign_frac == trials.foreign_pages / trials.pages).all()
    assert trials.foreign_frac.between(0, 1).all()
    assert trials.kv_cache_usage.between(0, 1).all()
    assert (trials.kv_cache_usage == trials.used_pages / scenario.pool_pages).all()
    assert (trials.distinct_requests <= trials.foreign_pages).all()
    assert (trials.distinct_tenants <= trials.distinct_requests).all()
    assert (trials.distinct_tenants <= scenario.tenants).all()
    assert ((trials.distinct_tenants > 0) == exposed).all()
    for unit, youngest in (("", 1), ("_steps", 0)):
        median, largest = trials["median_age" + unit], trials["max_age" + unit]
        assert (median.notna() == exposed).all()
        assert (largest[~exposed] == -1).all()
        assert (median[exposed] >= youngest).all()
        assert (median[exposed] <= largest[exposed]).all()
    assert (trials.largest_request_pages * trials.distinct_requests >= trials.foreign_pages).all()
    assert (trials.largest_tenant_pages * trials.distinct_tenants >= trials.foreign_pages).all()
    assert (trials.largest_request_pages <= trials.largest_tenant_pages).all()
    assert (trials.largest_tenant_pages <= trials.foreign_pages).all()
    assert (trials.largest_request_frac == trials.largest_request_pages / trials.pages).all()
    assert (trials.largest_tenant_frac == trials.largest_tenant_pages / trials.pages).all()
    assert (trials.requests_seen <= scenario.warm_steps).all()
    assert (
        trials.requests_seen == trials.live_requests + trials.requests_finished + trials.requests_dropped
    ).all()
    assert (trials.max_age <= trials.requests_finished + trials.live_requests).all()
    assert (trials.requests_retracted <= trials.requests_finished).all()
    assert (trials.used_pages >= trials.live_requests).all()
    assert ((trials.drain_steps > 0) == (trials.used_pages + trials.pages > scenario.pool_pages)).all()


ORDERS = tuple(policy for policy in POLICIES if policy != "random")
"""The policies that draw no random number themselves."""

WHATEVER_THE_ORDER = [
    name
    for name in OUTCOMES
    if name.startswith(("requests_", "live_", "used_", "kv_", "drain_", "prompt_")) or name == "pages"
]
"""What is the same under all of them: how many pages are free never depends on which."""


@brief
@given(scenarios(policies=("lifo",)), st.lists(seeds_anywhere, min_size=1, max_size=4))
def test_the_order_of_pages_changes_who_is_read_and_nothing_else(scenario, seeds):
    lifo = simulate(scenario, seeds)
    for policy in ORDERS:
        other = simulate(replace(scenario, policy=policy), seeds)
        assert_same(lifo[WHATEVER_THE_ORDER], other[WHATEVER_THE_ORDER])


@brief
@given(scenarios(policies=("lifo", "fifo")), seeds_anywhere)
def test_a_longer_prompt_reads_what_a_shorter_one_reads(scenario, seed):
    whole = scenario.pool_pages * scenario.page_size
    prompts = sorted({1, whole // 3 + 1, whole // 2 + 1, whole})
    trials = simulate([replace(scenario, prompt_tokens=prompt) for prompt in prompts], [seed])
    trials = trials[trials.drain_steps == 0]
    assume(len(trials) > 1)
    for name in ("foreign_pages", "never_written", "distinct_requests", "distinct_tenants", "max_age"):
        assert trials[name].is_monotonic_increasing


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fresh_server_exposes_nothing(policy):
    trials = simulate(replace(SMALL, policy=policy, warm_steps=0), range(20))
    assert (trials.foreign_pages == 0).all()
    assert (trials.never_written == trials.pages - 1).all()
    assert (trials.requests_seen == 0).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cap_of_nothing_lets_nobody_in(policy):
    trials = simulate(replace(SMALL, policy=policy, utilisation=0), range(20))
    assert (trials.requests_seen == 0).all()
    assert (trials.foreign_pages == 0).all()


def test_lifo_does_not_see_how_deep_the_pool_is():
    scenarios = [Scenario(utilisation=1, warm_steps=300, pool_pages=pages) for pages in (2**17, 2**20)]
    shallow, deep = (simulate(scenario, range(20)) for scenario in scenarios)
    same = [name for name in OUTCOMES if name != "kv_cache_usage"]
    assert_same(shallow[same], deep[same])
    assert (shallow.foreign_pages > 0).all()


@pytest.mark.parametrize("warm_steps", [0, 99, 100, 101, 150, 199, 200, 201, 400])
def test_fifo_hands_out_every_fresh_page_before_a_used_one(warm_steps):
    """Requests of 5 pages, one a step, on 1000 pages: 1000 - 5 x steps are fresh, and 500 are asked for."""
    scenario = Scenario(
        policy="fifo",
        utilisation=1,
        warm_steps=warm_steps,
        prompt_tokens=5000,
        pool_pages=1000,
        page_size=10,
        request_tokens_min=50,
        request_tokens_max=50,
        request_lifetime_steps=4,
    )
    trials = simulate(scenario, range(20))
    assert (trials.requests_seen == warm_steps).all()
    assert (trials.requests_dropped == 0).all()
    fresh = max(0, min(1000 - 5 * warm_steps, 500))
    assert (trials.never_written == max(0, fresh - 1)).all()
    assert (trials.foreign_pages == 499 - max(0, fresh - 1)).all()


# ------------------------------------------------------------------------------- the table that comes back


def test_rows_come_in_the_order_scenarios_by_seeds():
    scenarios = [
        replace(SMALL, warm_steps=30),
        replace(SMALL, policy="fifo", prompt_tokens=100),
        replace(SMALL, warm_steps=7),
        replace(SMALL, warm_steps=30),
    ]
    seeds = [9, 2, MAX_SEED, 2]
    trials = simulate(scenarios, seeds)
    assert list(trials.columns) == list(TRIAL_COLUMNS)
    assert trials.seed.tolist() == seeds * 4
    for name in PARAMETERS:
        assert trials[name].tolist() == [getattr(scenario, name) for scenario in scenarios for _ in seeds]
    may_be_nan = [name for name, outcome in OUTCOMES.items() if outcome.missing is not None]
    assert not trials.drop(columns=may_be_nan).isna().any(axis=None)


@pytest.mark.parametrize("prompts", [["uniform"], [90], ["uniform", 90]], ids=str)
def test_prompts_are_integers_or_the_word(prompts):
    trials = simulate([replace(SMALL, prompt_tokens=prompt) for prompt in prompts], [1])
    assert trials.prompt_tokens.dtype == object
    assert trials.prompt_tokens.tolist() == prompts


@pytest.mark.parametrize(
    "seeds",
    [
        [5, 6, 7],
        (5, 6, 7),
        np.array([5, 6, 7]),
        np.array([5, 6, 7], dtype=np.uint64),
        pd.Series([5, 6, 7]),
        iter([5, 6, 7]),
    ],
    ids=lambda seeds: type(seeds).__name__,
)
def test_seeds_may_be_any_iterable(seeds):
    assert_same(simulate(SMALL, seeds), simulate(SMALL, range(5, 8)))


@pytest.mark.parametrize(
    "seeds", [range(MAX_SEED - 2, MAX_SEED + 1), range(MAX_SEED, MAX_SEED - 3, -1), range(10, 2, -3)], ids=str
)
def test_ranges_of_seeds_at_the_end_or_backwards(seeds):
    assert_same(simulate(SMALL, seeds), simulate(SMALL, list(seeds)))
    assert simulate(SMALL, seeds).seed.tolist() == list(seeds)


def test_scenarios_may_be_any_iterable():
    both = [SMALL, replace(SMALL, policy="fifo")]
    assert_same(simulate(iter(both), [1]), simulate(both, [1]))


# ------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "seed", [-1, MAX_SEED + 1, 1.0, 1.5, float("nan"), True, np.True_, np.float64(3), "3", None], ids=repr
)
def test_a_seed_that_is_none_is_named(seed):
    with pytest.raises(ValueError, match="seeds: ") as caught:
        simulate(SMALL, [4, seed])
    assert repr(seed) in str(caught.value)
    assert f"an integer from 0 to {MAX_SEED}" in str(caught.value)


@pytest.mark.parametrize("seeds", [range(-2, 2), range(MAX_SEED, MAX_SEED + 2)], ids=str)
def test_a_range_that_leaves_the_seeds_is_refused(seeds):
    with pytest.raises(ValueError, match=f"an integer from 0 to {MAX_SEED}"):
        simulate(SMALL, seeds)


@pytest.mark.parametrize("seeds", [[], range(0), np.array([], dtype=int)], ids=repr)
def test_no_seeds(seeds):
    with pytest.raises(ValueError, match="seeds: none given; must be at least one"):
        simulate(SMALL, seeds)


def test_one_seed_that_is_no_iterable():
    with pytest.raises(ValueError, match="seeds: 3 is not allowed; must be several integers"):
        simulate(SMALL, 3)


def test_no_scenarios():
    with pytest.raises(ValueError, match="scenarios: none given; must be at least one"):
        simulate([], [1])


@pytest.mark.parametrize("scenario", ["default", {"policy": "lifo"}, None, 3], ids=repr)
def test_what_is_no_scenario(scenario):
    with pytest.raises(TypeError, match="must be a Scenario"):
        simulate([SMALL, scenario], [1])
