"""The pool of pages under each allocator policy, in compiled code.

A policy is the order in which free pages are handed out and taken back. It is a kind of pool with a
few functions: `reset`; `get_ready`, for what an engine does before it knows whether the pages suffice;
`take`, `extend` and `give_back`; and `look`, which says whose pages an oversized request would get and
leaves the pool as it is. They are compiled into the step loop once for every kind of pool, and know
nothing of steps, tenants or ages.

Under `lifo` and `fifo` the pages that a request gives back stay together until they are handed out,
so that the free list is a stack or a queue of *runs*, (owner, pages): work is per request, not per
page. Under `random` each page is drawn on its own, and the free list says who wrote it last. The
orders of real engines need the numbers of the pages: `kvsim.chains` has them.

- `sglang-disaggregated`: SGLang 0.5.23, `PagedTokenToKVPoolAllocator` with `need_sort`, a prefill or a
  decode server. Free pages ascend and leave at the front. Freed pages are staged; both become one sorted
  list when the free list may be too short: when t // page_size + 2 exceeds its length for a new prompt
  of t tokens, or when the number of requests does in a batch of decoding ones.
- `sglang`: the same class without `need_sort`, one server for prefill and decode. A request's pages,
  ascending, go to the front.
- `vllm`: vLLM 0.33.0, `BlockPool` without prefix caching. A request's blocks, the last one first, go to
  the front. (Earlier versions appended them.)
- `vllm-prefix-caching`: the same with prefix caching. Full blocks, the last one first, go to the back;
  a partly filled last block goes to the front.
- `lmdeploy`: LMDeploy 0.18.0, `LogicalAllocator`. A request's blocks, in its own order, go to the front.

Of `sglang`, what the class does is here, not what the server does around it: SGLang's server returns the
pages of all requests that finish in one step as one block, the first freed first, and without sorting
a request's pages; and where its radix cache is on, pages come back when they are evicted, not when a
request finishes. (Under `sglang-disaggregated` order within a step is lost in the merge.)

Engines change their order between versions; these were read from, and recorded by driving, the classes
of the versions named. Left out: sharing of prefixes between requests, swapping to host memory, chunked
prefill, speculative decoding, and more than one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import overload

from kvsim.chains import (
    NOBODY,
    Chains,
    cut_chain,
    extend_chain,
    get_chain_ready,
    give_back_chain,
    open_chains,
    read_chain,
    reset_chains,
    restore,
    save,
    take_chain,
)
from kvsim.compiled import HOT_OPTIONS, OPTIONS, hot
from kvsim.pcg64 import integers, skip_shuffle

FIRST_PAGE = {"sglang-disaggregated": 1, "sglang": 1, "vllm": 1, "vllm-prefix-caching": 1}
"""The number of the first page where it is not 0: SGLang and vLLM keep page 0 for themselves."""


class Stack(NamedTuple):
    """A pool under `lifo`: the pages freed last are handed out first.

    Attributes
    ----------
    pages : int
        Pages, free or not.
    owners : numpy.ndarray of int32
        Who wrote the pages of each run last.
    counts : numpy.ndarray of int32
        Pages of each run.
    """

    pages: int
    owners: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]


class Queue(NamedTuple):
    """A pool under `fifo`: the pages freed first are handed out first. Attributes as in `Stack`."""

    pages: int
    owners: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]


class Urn(NamedTuple):
    """A pool under `random`: every free page is equally likely to be handed out next.

    Attributes
    ----------
    pages : int
        Pages, free or not.
    owners : numpy.ndarray of int32
        Who wrote each free page last.
    """

    pages: int
    owners: npt.NDArray[np.int32]


class Free(NamedTuple):
    """How the free list stands: a value, which `take` and `give_back` replace.

    Attributes
    ----------
    pages : int
        Free pages.
    first, end : int
        Its first run, and one past its last one; zero in an `Urn` and in `Chains`.
    """

    pages: int
    first: int
    end: int


class Runs(NamedTuple):
    """Whose pages an oversized request gets, in the order in which it gets them.

    Attributes
    ----------
    owners, counts : numpy.ndarray of int32
        Who wrote the pages of each run last, and how many there are.
    scratch : numpy.ndarray of int32
        Room for a copy of the free list of an `Urn` or of `Chains`.
    """

    owners: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    scratch: npt.NDArray[np.int32]


Pool = Stack | Queue | Urn | Chains


def open_pool(
    policy: str, pages: int, page_size: int, requests: int, *, by_page: bool = False
) -> tuple[Pool, Runs]:
    """Make room for a pool, and for looks at it.

    Parameters
    ----------
    policy : str
        One of `kvsim.scenario.POLICIES`.
    pages : int
        Pages of the pool.
    page_size : int
        Tokens a page.
    requests : int
        The largest number of requests that it may serve between two resets.
    by_page : bool
        Whether to tell pages apart under `lifo` and `fifo` too: the same order, at the engines' cost.
    """

    def room(length: int) -> npt.NDArray[np.int32]:
        return np.empty(length, dtype=np.int32)

    if policy == "random":
        return Urn(pages, room(pages)), Runs(room(pages), room(pages), room(pages))
    if by_page or policy not in ("lifo", "fifo"):
        chains = open_chains(policy, pages, page_size, requests)
        return chains, Runs(room(pages), room(pages), room(4 * (pages + 1) + len(chains.marks)))
    # One run more than requests for the unwritten pages, one for the run that `give_back` writes ahead.
    length = requests + 2
    kind: type[Stack] | type[Queue] = Stack if policy == "lifo" else Queue
    return kind(pages, room(length), room(length)), Runs(room(length), room(length), room(0))


def draws_pages(pool: Any) -> bool:
    """Say whether a pool draws random numbers to hand out pages."""
    raise NotImplementedError("compiled code only")


def reset(pool: Any, stream: Any) -> Any:
    """Make all pages free and unwritten, in the policy's first order; return `Free` and `Stream`."""
    raise NotImplementedError("compiled code only")


def get_ready(pool: Any, pages: Any) -> Any:
    """Tidy up for somebody who asks for pages, has not reckoned how many, and takes this for enough."""
    raise NotImplementedError("compiled code only")


def take(pool: Any, free: Any, stream: Any, request: Any, pages: Any) -> Any:
    """Hand out `pages` pages, at most the free ones, to a new request that writes them all.

    Returns
    -------
    Free, Stream
    """
    raise NotImplementedError("compiled code only")


def extend(pool: Any, free: Any, stream: Any, request: Any, pages: Any) -> Any:
    """Hand out more pages to a request that holds some.

    Returns
    -------
    Free, Stream
    """
    raise NotImplementedError("compiled code only")


def give_back(pool: Any, free: Any, request: Any, tokens: Any, pages: Any) -> Any:
    """Take back the pages of a request that has written them all; `NOBODY` and 0 change nothing.

    `tokens` are those that the request has come to: they say whether its last page is full.

    Returns
    -------
    Free
    """
    raise NotImplementedError("compiled code only")


def look(
    pool: Any, free: Any, stream: Any, finished: Any, requests: Any, tokens: Any, pages: Any, runs: Any
) -> Any:
    """Say whose pages a request would get, once some live requests have finished.

    Parameters
    ----------
    pool, free : pool, Free
        Left as they are.
    stream : Stream
        What the policy draws from.
    finished : numpy.ndarray of int32
        The live requests that finish first, in order.
    requests : tuple of numpy.ndarray of int32
        The tokens and the pages of every request, by number.
    tokens, pages : int
        What the oversized request has; its pages are at most the free ones and those given back.
    runs : Runs
        Overwritten.

    Returns
    -------
    int
        The number of runs.
    """
    raise NotImplementedError("compiled code only")


def _reset_runs(pool, stream):
    pool.owners[0] = NOBODY
    pool.counts[0] = pool.pages
    return Free(pool.pages, 0, 1), stream


def _take_last_runs(pool, free, stream, request, pages):
    run, left = _pass_runs(pool.counts, free.end - 1, -1, pages)
    pool.counts[run] -= left
    return Free(free.pages - pages, free.first, run + 1), stream


def _take_first_runs(pool, free, stream, request, pages):
    run, left = _pass_runs(pool.counts, free.first, 1, pages)
    pool.counts[run] -= left
    return Free(free.pages - pages, run, free.end), stream


@hot
def _pass_runs(counts, run, step, pages):
    """Find the run that holds the last of `pages` pages, and how many of them it holds.

    A run that is just used up stays, empty: it is cheaper to pass it again than to find out.
    """
    # Most requests take one to three runs. Twice without a branch, which would be guessed wrong too often.
    for _ in range(2):
        passed = np.int64(pages > counts[run])
        pages -= passed * counts[run]
        run += passed * step
    while pages > counts[run]:
        pages -= counts[run]
        run += step
    return run, pages


def _give_back_run(pool, free, request, tokens, pages):
    pool.owners[free.end] = request
    pool.counts[free.end] = pages
    return Free(free.pages + pages, free.first, free.end + np.int64(pages > 0))


def _look_at_stack(pool, free, stream, finished, requests, tokens, pages, runs):
    n = 0
    for request in finished[::-1]:
        n, pages = _append(runs, n, request, requests[1][request], pages)
    run = free.end - 1
    while pages:
        n, pages = _append(runs, n, pool.owners[run], pool.counts[run], pages)
        run -= 1
    return n


def _look_at_queue(pool, free, stream, finished, requests, tokens, pages, runs):
    n = 0
    run = free.first
    while pages and run < free.end:
        n, pages = _append(runs, n, pool.owners[run], pool.counts[run], pages)
        run += 1
    for request in finished:
        n, pages = _append(runs, n, request, requests[1][request], pages)
    return n


@hot
def _append(runs, n, owner, count, wanted):
    """Append a run, cut to the pages that are still wanted."""
    count = min(np.int64(count), wanted)
    if count:
        runs.owners[n] = owner
        runs.counts[n] = count
        n += 1
    return n, wanted - count


def _reset_urn(pool, stream):
    pool.owners[:] = NOBODY
    # Unwritten pages cannot be told apart: their shuffle shows in the stream alone.
    return Free(pool.pages, 0, 0), skip_shuffle(stream, pool.pages)


def _take_drawn(pool, free, stream, request, pages):
    left = free.pages - pages
    for last in range(free.pages - 1, left - 1, -1):
        drawn, stream = integers(stream, last + 1)
        pool.owners[drawn] = pool.owners[last]
    return Free(left, 0, 0), stream


def _give_back_to_urn(pool, free, request, tokens, pages):
    pool.owners[free.pages : free.pages + pages] = request
    return Free(free.pages + pages, 0, 0)


def _look_into_urn(pool, free, stream, finished, requests, tokens, pages, runs):
    available = free.pages
    runs.scratch[:available] = pool.owners[:available]
    for request in finished:
        runs.scratch[available : available + requests[1][request]] = request
        available += requests[1][request]
    for i in range(pages):
        drawn, stream = integers(stream, available - i)
        runs.owners[i] = runs.scratch[drawn]
        runs.scratch[drawn] = runs.scratch[available - i - 1]
    runs.counts[:pages] = 1
    return pages


def _reset_chains(pool, stream):
    reset_chains(pool)
    return Free(pool.pages, 0, 0), stream


def _take_chain(pool, free, stream, request, pages):
    take_chain(pool, request, pages)
    return Free(free.pages - pages, 0, 0), stream


def _extend_chain(pool, free, stream, request, pages):
    extend_chain(pool, request, pages)
    return Free(free.pages - pages, 0, 0), stream


def _give_back_chain(pool, free, request, tokens, pages):
    if pages:
        give_back_chain(pool, request, tokens, pages)
    return Free(free.pages + pages, 0, 0)


def _look_along_chain(pool, free, stream, finished, requests, tokens, pages, runs):
    used = save(pool, runs.scratch)
    for request in finished:
        give_back_chain(pool, request, requests[0][request], requests[1][request])
    get_chain_ready(pool, tokens // pool.page_size + 2)
    head, _ = cut_chain(pool, pages, NOBODY)
    n = read_chain(pool, head, runs.owners, runs.counts)
    restore(pool, runs.scratch, used)
    return n


_KINDS: dict[type, dict[Callable[..., Any], Callable[..., Any]]] = {
    Stack: {
        draws_pages: lambda pool: False,
        reset: _reset_runs,
        get_ready: lambda pool, pages: None,
        take: _take_last_runs,
        extend: _take_last_runs,
        give_back: _give_back_run,
        look: _look_at_stack,
    },
    Queue: {
        draws_pages: lambda pool: False,
        reset: _reset_runs,
        get_ready: lambda pool, pages: None,
        take: _take_first_runs,
        extend: _take_first_runs,
        give_back: _give_back_run,
        look: _look_at_queue,
    },
    Urn: {
        draws_pages: lambda pool: True,
        reset: _reset_urn,
        get_ready: lambda pool, pages: None,
        take: _take_drawn,
        extend: _take_drawn,
        give_back: _give_back_to_urn,
        look: _look_into_urn,
    },
    Chains: {
        draws_pages: lambda pool: False,
        reset: _reset_chains,
        get_ready: get_chain_ready.py_func,
        take: _take_chain,
        extend: _extend_chain,
        give_back: _give_back_chain,
        look: _look_along_chain,
    },
}


@overload(draws_pages, jit_options=HOT_OPTIONS)
def _draws_pages(pool):
    return _KINDS[pool.instance_class][draws_pages]


@overload(reset, jit_options=HOT_OPTIONS)
def _reset(pool, stream):
    return _KINDS[pool.instance_class][reset]


@overload(get_ready, jit_options=HOT_OPTIONS)
def _get_ready(pool, pages):
    return _KINDS[pool.instance_class][get_ready]


@overload(take, jit_options=HOT_OPTIONS)
def _take(pool, free, stream, request, pages):
    return _KINDS[pool.instance_class][take]


@overload(extend, jit_options=HOT_OPTIONS)
def _extend(pool, free, stream, request, pages):
    return _KINDS[pool.instance_class][extend]


@overload(give_back, jit_options=HOT_OPTIONS)
def _give_back(pool, free, request, tokens, pages):
    return _KINDS[pool.instance_class][give_back]


@overload(look, jit_options=OPTIONS)
def _look(pool, free, stream, finished, requests, tokens, pages, runs):
    return _KINDS[pool.instance_class][look]
