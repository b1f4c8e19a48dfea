"""The compiled random stream against NumPy's, draw for draw."""

import math

import numba
import numpy as np
import pytest

from kvsim import pcg64

SEEDS = (0, 1, 20261027, 2**32 - 1, 2**32, 2**64 - 1)
LIFETIMES = (1.0, 1.5, 2.0, 3.0, 3.5, 40.0, 1e7)


@numba.njit
def _draw_all(words, shuffled, bounds, p, log_q, normals, whole, lifetimes, doubles):
    stream = pcg64.skip_shuffle(pcg64.start(words), shuffled)
    for i in range(len(bounds)):
        normals[i], stream = pcg64.standard_normal(stream)
        whole[i], stream = pcg64.integers(stream, bounds[i])
        lifetimes[i], stream = pcg64.geometric(stream, p, log_q)
        doubles[i], stream = pcg64.next_double(stream)
    return stream


def test_seeds_become_the_words_of_seed_sequence():
    seeds = np.array(SEEDS, dtype=np.uint64)
    expected = [np.random.SeedSequence(seed).generate_state(4, np.uint64) for seed in SEEDS]
    np.testing.assert_array_equal(pcg64.seed_words(seeds), expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_draws_are_those_of_default_rng(seed, lifetime):
    n = 20_000
    shuffled = 1 + seed % 1999
    p = 1 / lifetime
    bounds = np.random.default_rng(1).integers(1, 2 ** np.random.default_rng(2).integers(1, 32, n))
    normals, doubles = np.empty(n), np.empty(n)
    whole, lifetimes = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    stream = _draw_all(
        pcg64.seed_words(np.array([seed], dtype=np.uint64))[0],
        shuffled,
        bounds,
        p,
        math.log1p(-p) if p < 1 else -math.inf,
        normals,
        whole,
        lifetimes,
        doubles,
    )

    rng = np.random.default_rng(seed)
    rng.shuffle(list(range(shuffled)))
    expected = [
        (rng.standard_normal(), rng.integers(bound), rng.geometric(p), rng.random()) for bound in bounds
    ]
    for got, values in zip((normals, whole, lifetimes, doubles), zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(got, values)
    state = rng.bit_generator.state
    assert stream.left == state["has_uint32"]
    assert not stream.left or stream.half == state["uinteger"]
    assert (int(stream.high) << 64) + int(stream.low) == state["state"]["state"]
