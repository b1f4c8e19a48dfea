"""NumPy's default random stream (`numpy.random.default_rng`), in compiled code, draw for draw.

NumPy's own generator can be called from compiled code only through function pointers, which costs
more than the draws. What is here yields the same values from the same seed: PCG64 (O'Neill 2014,
PCG XSL-RR 128/64), bounded integers by Lemire (2019) and by masked rejection, normal and exponential
variates by the ziggurat method (Marsaglia and Tsang 2000), with NumPy's tables as numba carries them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.random._constants import (
    fe_double,
    fi_double,
    ke_double,
    ki_double,
    we_double,
    wi_double,
    ziggurat_exp_r,
    ziggurat_nor_inv_r,
    ziggurat_nor_r,
)

from kvsim.compiled import hot


class Stream(NamedTuple):
    """State of a stream of random numbers: a value, which every draw replaces.

    Attributes
    ----------
    high, low : uint64
        PCG64's state.
    step_high, step_low : uint64
        Its increment.
    left, half : uint64
        Whether a 32-bit draw left half a word over, and that half.
    """

    high: np.uint64
    low: np.uint64
    step_high: np.uint64
    step_low: np.uint64
    left: np.uint64
    half: np.uint64


_MULTIPLIER_HIGH = np.uint64(2549297995355413924)
_MULTIPLIER_LOW = np.uint64(4865540595714422341)
_LOW_32 = np.uint64(0xFFFFFFFF)
_U0, _U1, _U3, _U8, _U11, _U32, _U58, _U63, _U64 = (np.uint64(i) for i in (0, 1, 3, 8, 11, 32, 58, 63, 64))
_LOW_8 = np.uint64(0xFF)
_LOW_52 = np.uint64(0x000FFFFFFFFFFFFF)


def seed_words(seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Turn seeds into what `start` needs: ``SeedSequence(seed).generate_state(4, uint64)``.

    The hash of O'Neill's seed_seq as NumPy has it, for all seeds at once: NumPy's own, one seed a
    call, would cost a tenth of a trial.

    Parameters
    ----------
    seeds : numpy.ndarray of uint64, shape (seeds,)

    Returns
    -------
    numpy.ndarray of uint64, shape (seeds, 4)
    """
    mixing = _Hash(0x43B0D7E5, 0x931E8875)
    zero = np.zeros(len(seeds), dtype=np.uint32)
    entropy = [(seeds & _LOW_32).astype(np.uint32), (seeds >> _U32).astype(np.uint32), zero, zero]
    pool = [mixing(word) for word in entropy]
    for source in range(4):
        for target in range(4):
            if source != target:
                mixed = pool[target] * np.uint32(0xCA01F9DD) - mixing(pool[source]) * np.uint32(0x4973F715)
                pool[target] = mixed ^ (mixed >> np.uint32(16))
    output = _Hash(0x8B51F9DD, 0x58F38DED)
    halves = [output(pool[i % 4]).astype(np.uint64) for i in range(8)]
    return np.stack([halves[i] | (halves[i + 1] << _U32) for i in range(0, 8, 2)], axis=1)


class _Hash:
    """A hash of 32-bit words whose constant changes with every word."""

    def __init__(self, constant: int, multiplier: int) -> None:
        self.constant, self.multiplier = constant, multiplier

    def __call__(self, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        words = words ^ np.uint32(self.constant)
        self.constant = self.constant * self.multiplier % 2**32
        words = words * np.uint32(self.constant)
        return words ^ (words >> np.uint32(16))


@intrinsic
def _high_product(typingctx: Any, a: Any, b: Any) -> Any:
    """Upper 64 bits of the product of two 64-bit words: one instruction, which Python cannot name."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), build


@hot
def _advance(stream):
    low = stream.low * _MULTIPLIER_LOW + stream.step_low
    high = (
        _high_product(stream.low, _MULTIPLIER_LOW)
        + stream.high * _MULTIPLIER_LOW
        + stream.low * _MULTIPLIER_HIGH
        + stream.step_high
        + (_U1 if low < stream.step_low else _U0)
    )
    return Stream(high, low, stream.step_high, stream.step_low, stream.left, stream.half)


@hot
def start(words):
    """Begin a stream, from the four words of `seed_words`."""
    stream = Stream(_U0, _U0, (words[2] << _U1) | (words[3] >> _U63), (words[3] << _U1) | _U1, _U0, _U0)
    stream = _advance(stream)
    low = stream.low + words[1]
    high = stream.high + words[0] + (_U1 if low < words[1] else _U0)
    return _advance(Stream(high, low, stream.step_high, stream.step_low, _U0, _U0))


@hot
def next_64(stream):
    """Draw 64 random bits; this and every draw below returns what it drew, and the stream after it."""
    stream = _advance(stream)
    word = stream.high ^ stream.low
    turn = stream.high >> _U58
    return (word >> turn) | (word << ((_U64 - turn) & _U63)), stream


@hot
def next_32(stream):
    """Draw 32 random bits, as a 64-bit word; every second draw uses what the last one left over."""
    if stream.left:
        half = stream.half
        return half, Stream(stream.high, stream.low, stream.step_high, stream.step_low, _U0, _U0)
    word, stream = next_64(stream)
    rest = word >> _U32
    return word & _LOW_32, Stream(stream.high, stream.low, stream.step_high, stream.step_low, _U1, rest)


@hot
def next_double(stream):
    """Draw a double in [0, 1)."""
    word, stream = next_64(stream)
    return (word >> _U11) * (1.0 / 9007199254740992.0), stream


@hot
def integers(stream, bound):
    """Draw an integer in [0, bound), 1 <= bound < 2**32: ``Generator.integers(bound)``."""
    if bound == 1:
        return 0, stream
    bound_64 = np.uint64(bound)
    word, stream = next_32(stream)
    product = word * bound_64
    if product & _LOW_32 < bound_64:
        threshold = (_LOW_32 - bound_64 + _U1) % bound_64
        while product & _LOW_32 < threshold:
            word, stream = next_32(stream)
            product = word * bound_64
    return np.int64(product >> _U32), stream


@hot
def skip_shuffle(stream, length):
    """Draw what ``Generator.shuffle`` draws for a list of `length` items, 1 <= length < 2**32.

    Without the list: who shuffles items that cannot be told apart needs the draws alone.
    """
    mask = _U1
    while mask < np.uint64(length - 1):
        mask = (mask << _U1) | _U1
    for last in range(length - 1, 0, -1):
        bound = np.uint64(last)
        while mask >> _U1 >= bound:
            mask >>= _U1
        word, stream = next_32(stream)
        while word & mask > bound:
            word, stream = next_32(stream)
    return stream


@hot
def standard_normal(stream):
    """Draw a standard normal variate: ``Generator.standard_normal()``."""
    while True:
        word, stream = next_64(stream)
        layer = np.int64(word & _LOW_8)
        word >>= _U8
        magnitude = (word >> _U1) & _LOW_52
        x = magnitude * wi_double[layer]
        if word & _U1:
            x = -x
        if magnitude < ki_double[layer]:
            return x, stream
        if layer == 0:
            while True:
                first, stream = next_double(stream)
                second, stream = next_double(stream)
                beyond = -ziggurat_nor_inv_r * math.log1p(-first)
                y = -math.log1p(-second)
                if y + y > beyond * beyond:
                    beyond += ziggurat_nor_r
                    return (-beyond if (magnitude >> _U8) & _U1 else beyond), stream
        uniform, stream = next_double(stream)
        height = (fi_double[layer - 1] - fi_double[layer]) * uniform + fi_double[layer]
        if height < math.exp(-0.5 * x * x):
            return x, stream


@hot
def standard_exponential(stream):
    """Draw a standard exponential variate: ``Generator.standard_exponential()``."""
    while True:
        word, stream = next_64(stream)
        word >>= _U3
        layer = np.int64(word & _LOW_8)
        word >>= _U8
        x = word * we_double[layer]
        if word < ke_double[layer]:
            return x, stream
        uniform, stream = next_double(stream)
        if layer == 0:
            return ziggurat_exp_r - math.log1p(-uniform), stream
        height = (fe_double[layer - 1] - fe_double[layer]) * uniform + fe_double[layer]
        if height < math.exp(-x):
            return x, stream


@hot
def geometric(stream, p, log_q):
    """Draw a geometric variate: ``Generator.geometric(p)``, with `log_q` = log1p(-p).

    NumPy inverts an exponential for p < 1/3 and searches the sum of probabilities above.
    """
    if p < 0.333333333333333333333333:
        x, stream = standard_exponential(stream)
        return np.int64(math.ceil(-x / log_q)), stream
    trials = 1
    total = term = p
    uniform, stream = next_double(stream)
    while uniform > total:
        term *= 1.0 - p
        total += term
        trials += 1
    return trials, stream
