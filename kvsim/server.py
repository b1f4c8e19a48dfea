"""The server: background requests come and go, step by step, then an oversized request looks in.

Each step finishes what is due, in the order of the requests' numbers, and then lets one background
request in if used pages are below the cap. The oversized request never changes the server: it is a
look from the side, so that one warm-up serves every warm-up length and prompt.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.compiled import compiled, hot
from kvsim.pcg64 import Stream, geometric, integers, standard_normal, start
from kvsim.policies import NOBODY, draws_pages, give_back, look, reset, take

UNIFORM = 0
"""Stands for a prompt whose length is drawn."""

COUNTS = (
    "pages",
    "foreign_pages",
    "never_written",
    "distinct_requests",
    "distinct_tenants",
    "max_age",
    "used_pages",
    "live_requests",
    "requests_seen",
    "requests_finished",
    "requests_dropped",
    "drain_steps",
    "prompt_tokens_drawn",
)
"""The outcomes that `run_trials` writes as integers, in order."""

_READ_AHEAD = 64
_SEEN, _DRAWN, _FINISHED, _DROPPED = range(4)


class Workload(NamedTuple):
    """The reference's workload: what a background request draws, and the cap on admission."""

    cap_pages: float
    page_size: int
    log_median: float
    sigma: float
    tokens_min: int
    tokens_max: int
    tenants: int
    finish_p: float
    finish_log_q: float


class Oversized(NamedTuple):
    """Looks at one server, in the order of their warm-ups.

    Attributes
    ----------
    warm_steps, prompt_tokens : numpy.ndarray of int64, shape (looks,)
        When each looks in, and with what prompt; `UNIFORM` draws it from
        shortest .. longest, bounds included.
    """

    warm_steps: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int64]
    shortest: int
    longest: int


class Server(NamedTuple):
    """Background requests by number, when they finish, and where the random stream stands.

    Attributes
    ----------
    pages, tenant, lifetime : numpy.ndarray of int32, shape (warm_steps + 1,)
        What each request drew. Requests are numbered from 1; `NOBODY`, 0, has no pages.
    finish_step : numpy.ndarray of int32, shape (warm_steps + 1,)
    finish_rank : numpy.ndarray of int32, shape (warm_steps + 1,)
        How many requests had finished when it finished.
    next_due : numpy.ndarray of int32, shape (2 * warm_steps + 3,)
        Linked lists of the requests due at each step, by number, that end in `NOBODY`. The first
        nodes head the lists of the steps, the last of them that of all steps beyond the warm-up;
        then come the nodes of the requests.
    last_due : numpy.ndarray of int32, shape (warm_steps + 2,)
        The last node of each list.
    totals : numpy.ndarray of int64, shape (4,)
        Requests seen; drawn; finished; dropped.
    streams_before : numpy.ndarray of uint64, shape (_READ_AHEAD, 4)
        The changing words of the stream before each of the requests that were drawn ahead, by number
        modulo _READ_AHEAD.
    pages_read : numpy.ndarray of int32, shape (warm_steps + 1,)
        Room for a look: zeros between two looks.
    """

    pages: npt.NDArray[np.int32]
    tenant: npt.NDArray[np.int32]
    lifetime: npt.NDArray[np.int32]
    finish_step: npt.NDArray[np.int32]
    finish_rank: npt.NDArray[np.int32]
    next_due: npt.NDArray[np.int32]
    last_due: npt.NDArray[np.int32]
    totals: npt.NDArray[np.int64]
    streams_before: npt.NDArray[np.uint64]
    pages_read: npt.NDArray[np.int32]


def open_server(warm_steps: int) -> Server:
    """Make room for a server that is warmed for at most `warm_steps` steps."""
    by_request = [np.zeros(warm_steps + 1, dtype=np.int32) for _ in range(6)]
    pages, tenant, lifetime, finish_step, finish_rank, pages_read = by_request
    heads = warm_steps + 2
    return Server(
        pages=pages,
        tenant=tenant,
        lifetime=lifetime,
        finish_step=finish_step,
        finish_rank=finish_rank,
        next_due=np.zeros(heads + warm_steps + 1, dtype=np.int32),
        last_due=np.empty(heads, dtype=np.int32),
        totals=np.empty(4, dtype=np.int64),
        streams_before=np.empty((_READ_AHEAD, 4), dtype=np.uint64),
        pages_read=pages_read,
    )


@compiled
def run_trials(pool, runs, server, workload, oversized, words, counts, median_age):
    """Run one server for every seed, and look at it as often as asked.

    Parameters
    ----------
    pool, runs : Pool, Runs
        From `policies.open_pool`, with room for as many requests as the last look's warm-up has steps.
    server : Server
        From `open_server`, for the last look's warm-up.
    workload : Workload
    oversized : Oversized
    words : numpy.ndarray of uint64, shape (seeds, 4)
        From `pcg64.seed_words`.
    counts : numpy.ndarray of int64, shape (looks, seeds, len(COUNTS))
        Overwritten.
    median_age : numpy.ndarray of float64, shape (looks, seeds)
        Overwritten.
    """
    for trial in range(len(words)):
        _restart(server)
        free, stream = reset(pool, start(words[trial]))
        step = 0
        for which in range(len(oversized.warm_steps)):
            free, stream = _advance(pool, server, workload, free, stream, step, oversized.warm_steps[which])
            step = oversized.warm_steps[which]
            tokens = oversized.prompt_tokens[which]
            own_stream = _stream_now(pool, server, stream)
            if tokens == UNIFORM:
                drawn, own_stream = integers(own_stream, oversized.longest - oversized.shortest + 1)
                tokens = oversized.shortest + drawn
            pages = -(-tokens // workload.page_size)
            drained = _drain(server, free.pages, step, pages)
            n_runs = look(pool, free, own_stream, drained, server.pages, pages, runs)
            row = counts[which, trial]
            median_age[which, trial] = _measure(server, runs, n_runs, drained, row)
            row[0] = pages
            row[6] = pool.pages - free.pages
            row[11] = server.finish_step[drained[-1]] - step if len(drained) else 0
            row[12] = tokens


@hot
def _restart(server):
    server.totals[:] = 0
    heads = len(server.last_due)
    server.next_due[:heads] = NOBODY
    for step in range(heads):
        server.last_due[step] = step


@hot
def _advance(pool, server, workload, free, stream, step, until):
    """Serve background requests from the end of one step to the end of another.

    The stream that is passed in and returned is the one after the last request drawn.
    """
    heads = len(server.last_due)
    one_by_one = draws_pages(pool)
    seen, drawn = server.totals[_SEEN], server.totals[_DRAWN]
    finished, dropped = server.totals[_FINISHED], server.totals[_DROPPED]
    while step < until:
        step += 1
        request = np.int64(server.next_due[step])
        # Two without asking whether there are two: a wrong guess costs more than to finish nobody.
        for _ in range(2):
            free, finished = _finish(pool, server, free, finished, request)
            request = np.int64(server.next_due[heads + request])
        while request != NOBODY:
            free, finished = _finish(pool, server, free, finished, request)
            request = np.int64(server.next_due[heads + request])

        if pool.pages - free.pages >= workload.cap_pages:
            continue
        seen += 1
        request = seen
        if one_by_one:
            server.pages[request], stream = _draw_pages(workload, stream)
        elif request > drawn:
            drawn, stream = _read_ahead(server, workload, stream, drawn)
        pages = np.int64(server.pages[request])
        if pages > free.pages:
            dropped += 1
            if not one_by_one:
                # A dropped request leaves the stream after its length, before its tenant.
                _, stream = _draw_pages(workload, _stream_before(server, stream, request))
                drawn = seen
            continue
        free, stream = take(pool, free, stream, pages)
        if one_by_one:
            stream = _draw_tenant_and_lifetime(server, workload, stream, request)
        finish_step = step + server.lifetime[request]
        server.finish_step[request] = finish_step
        # A list's head is a node like any other: to append needs no case for an empty list.
        due = min(finish_step, heads - 1)
        server.next_due[server.last_due[due]] = request
        server.next_due[heads + request] = NOBODY
        server.last_due[due] = heads + request
    server.totals[_SEEN], server.totals[_DRAWN] = seen, drawn
    server.totals[_FINISHED], server.totals[_DROPPED] = finished, dropped
    return free, stream


@hot
def _finish(pool, server, free, finished, request):
    server.finish_rank[request] = finished
    free = give_back(pool, free, request, np.int64(server.pages[request]))
    return free, finished + np.int64(request != NOBODY)


@hot
def _draw_pages(workload, stream):
    """Draw the pages of a background request: a clipped log-normal number of tokens."""
    normal, stream = standard_normal(stream)
    tokens = math.exp(workload.log_median + workload.sigma * normal)
    # Clipped before it becomes an integer, which could not hold every float.
    whole = workload.tokens_max if tokens >= workload.tokens_max else np.int64(tokens)
    return np.int64(
        _ceil_div(np.uint32(max(whole, workload.tokens_min)), np.uint32(workload.page_size))
    ), stream


@hot
def _ceil_div(tokens, page_size):
    """Divide, rounded up, in 32 bits: twice as fast as in 64."""
    return (tokens + page_size - np.uint32(1)) // page_size


@hot
def _draw_tenant_and_lifetime(server, workload, stream, request):
    server.tenant[request], stream = integers(stream, workload.tenants)
    server.lifetime[request], stream = geometric(stream, workload.finish_p, workload.finish_log_q)
    return stream


@hot
def _read_ahead(server, workload, stream, drawn):
    """Draw requests before they come: a loop that the processor need not leave for the pool's branches."""
    last = min(drawn + _READ_AHEAD, len(server.pages) - 1)
    for request in range(drawn + 1, last + 1):
        before = request % _READ_AHEAD
        server.streams_before[before, 0] = stream.high
        server.streams_before[before, 1] = stream.low
        server.streams_before[before, 2] = stream.left
        server.streams_before[before, 3] = stream.half
        server.pages[request], stream = _draw_pages(workload, stream)
        stream = _draw_tenant_and_lifetime(server, workload, stream, request)
    return last, stream


@hot
def _stream_before(server, stream, request):
    """Restore the stream before a request that was drawn ahead."""
    before = server.streams_before
    i = request % _READ_AHEAD
    return Stream(before[i, 0], before[i, 1], stream.step_high, stream.step_low, before[i, 2], before[i, 3])


@hot
def _stream_now(pool, server, stream):
    """Restore the stream before the next background request."""
    seen = server.totals[_SEEN]
    if draws_pages(pool) or seen == server.totals[_DRAWN]:
        return stream
    return _stream_before(server, stream, seen + 1)


@compiled
def _drain(server, free, step, pages):
    """List the live requests that finish, arrivals stopped, until `pages` pages are free."""
    heads = len(server.last_due)
    drained = np.empty(server.totals[_SEEN] - server.totals[_FINISHED], dtype=np.int32)
    n = 0
    while free < pages and step < heads - 2:
        step += 1
        n, free = _list_due(server, step, drained, n, free)
    if free < pages:
        # Those due beyond the warm-up stand in one list, by number: sort it by step.
        first = n
        n, _ = _list_due(server, heads - 1, drained, n, free)
        keys = np.empty(n - first, dtype=np.int64)
        for i in range(len(keys)):
            request = drained[first + i]
            keys[i] = (np.int64(server.finish_step[request]) << 32) | request
        _sort(keys)
        n = first
        for key in keys:
            if free >= pages and key >> 32 != step:
                break
            step = key >> 32
            drained[n] = key & 0xFFFFFFFF
            free += server.pages[drained[n]]
            n += 1
    return drained[:n]


@hot
def _list_due(server, step, listed, n, free):
    """Append the requests of one list, and add up the pages that they free."""
    heads = len(server.last_due)
    request = np.int64(server.next_due[step])
    while request != NOBODY:
        listed[n] = request
        n += 1
        free += server.pages[request]
        request = np.int64(server.next_due[heads + request])
    return n, free


@compiled
def _measure(server, runs, n_runs, drained, row):
    """Say whose pages are read, and how old they are: fill part of a row, return the median age."""
    finished = server.totals[_FINISHED]
    # The drained finish after all others, in the order in which they drain.
    for i in range(len(drained)):
        server.finish_rank[drained[i]] = finished + i
    now = finished + len(drained)

    # The oversized request writes its first page, and reads the rest.
    runs.counts[0] -= 1
    foreign_pages = never_written = exposed = 0
    ages = np.empty(n_runs, dtype=np.int64)
    tenants = np.empty(n_runs, dtype=np.int64)
    for run in range(n_runs):
        owner, count = runs.owners[run], np.int64(runs.counts[run])
        if owner == NOBODY:
            never_written += count
        elif count:
            foreign_pages += count
            if not server.pages_read[owner]:
                ages[exposed] = now - server.finish_rank[owner]
                tenants[exposed] = server.tenant[owner]
                exposed += 1
            server.pages_read[owner] += count
    for run in range(n_runs):
        server.pages_read[runs.owners[run]] = 0
    ages, tenants = ages[:exposed], tenants[:exposed]
    _sort(ages)
    _sort(tenants)
    distinct_tenants = min(exposed, 1)
    for i in range(1, exposed):
        distinct_tenants += tenants[i] != tenants[i - 1]

    row[1] = foreign_pages
    row[2] = never_written
    row[3] = exposed
    row[4] = distinct_tenants
    row[5] = ages[-1] if exposed else -1
    row[7] = server.totals[_SEEN] - server.totals[_DROPPED] - finished
    row[8] = server.totals[_SEEN]
    row[9] = finished
    row[10] = server.totals[_DROPPED]
    return (ages[(exposed - 1) // 2] + ages[exposed // 2]) / 2 if exposed else math.nan


@compiled
def _sort(values):
    """Sort in place: one function for all, since a sort takes seconds to compile."""
    values.sort()
