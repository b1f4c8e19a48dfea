"""The server: background requests come and go, step by step, then an oversized request looks in.

Each step finishes what is due, in the order of the requests' numbers; lets every live request decode,
if requests grow; and then lets one background request in if used pages are below the cap. The oversized
request never changes the server: it is a look from the side, so that one warm-up serves every warm-up
length and prompt. Only where requests grow it waits for room on the server itself, once.

When a step's decoding needs more pages than are free, the request that came last is retracted, and the
next one, until the others' need is met, in the manner of SGLang. Its pages go back as if it had finished,
and it does not return.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.chains import NOBODY
from kvsim.compiled import compiled, hot
from kvsim.pcg64 import Stream, geometric, integers, standard_normal, start
from kvsim.policies import draws_pages, extend, get_ready, give_back, look, reset, take

UNIFORM = 0
"""Stands for a prompt whose length is drawn."""

COUNTS = (
    "pages",
    "foreign_pages",
    "never_written",
    "distinct_requests",
    "distinct_tenants",
    "max_age",
    "max_age_steps",
    "largest_request_pages",
    "largest_tenant_pages",
    "used_pages",
    "live_requests",
    "requests_seen",
    "requests_finished",
    "requests_dropped",
    "requests_retracted",
    "drain_steps",
    "prompt_tokens_drawn",
)
"""The outcomes that `run_trials` writes as integers, in order."""

MEDIANS = ("median_age", "median_age_steps")
"""The outcomes that it writes as floats, in order."""

EXPOSURE = ("look", "trial", "request", "tenant", "pages", "age", "age_steps")
"""What it writes of every request that a look exposes, in order."""

(
    _PAGES,
    _FOREIGN_PAGES,
    _NEVER_WRITTEN,
    _DISTINCT_REQUESTS,
    _DISTINCT_TENANTS,
    _MAX_AGE,
    _MAX_AGE_STEPS,
    _LARGEST_REQUEST_PAGES,
    _LARGEST_TENANT_PAGES,
    _USED_PAGES,
    _LIVE_REQUESTS,
    _REQUESTS_SEEN,
    _REQUESTS_FINISHED,
    _REQUESTS_DROPPED,
    _REQUESTS_RETRACTED,
    _DRAIN_STEPS,
    _PROMPT_TOKENS_DRAWN,
) = range(len(COUNTS))

_READ_AHEAD = 64
_SEEN, _DRAWN, _FINISHED, _DROPPED, _RETRACTED = range(5)


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
    decode_tokens: int


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
    tokens : numpy.ndarray of int64, shape (warm_steps + 1,)
    pages, tenant, lifetime : numpy.ndarray of int32, shape (warm_steps + 1,)
        What each request drew; tokens and pages grow with it. Requests are numbered from 1; `NOBODY`,
        0, has no pages.
    finish_step : numpy.ndarray of int32, shape (warm_steps + 1,)
    finish_rank : numpy.ndarray of int32, shape (warm_steps + 1,)
        How many requests had finished when it finished.
    next_due : numpy.ndarray of int32, shape (2 * warm_steps + 3,)
        Linked lists of the requests due at each step, by number, that end in `NOBODY`. The first
        nodes head the lists of the steps, the last of them that of all steps beyond the warm-up;
        then come the nodes of the requests.
    last_due : numpy.ndarray of int32, shape (warm_steps + 2,)
        The last node of each list.
    next_live, last_live : numpy.ndarray of int32, shape (warm_steps + 1,)
        Linked list of the live requests, by number, both ways around from `NOBODY`; kept only where
        requests grow.
    totals : numpy.ndarray of int64, shape (5,)
        Requests seen; drawn; finished; dropped; retracted.
    streams_before : numpy.ndarray of uint64, shape (_READ_AHEAD, 4)
        The changing words of the stream before each of the requests that were drawn ahead, by number
        modulo _READ_AHEAD.
    pages_read : numpy.ndarray of int32, shape (warm_steps + 1,)
        Room for a look: zeros between two looks.
    """

    tokens: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int32]
    tenant: npt.NDArray[np.int32]
    lifetime: npt.NDArray[np.int32]
    finish_step: npt.NDArray[np.int32]
    finish_rank: npt.NDArray[np.int32]
    next_due: npt.NDArray[np.int32]
    last_due: npt.NDArray[np.int32]
    next_live: npt.NDArray[np.int32]
    last_live: npt.NDArray[np.int32]
    totals: npt.NDArray[np.int64]
    streams_before: npt.NDArray[np.uint64]
    pages_read: npt.NDArray[np.int32]


def open_server(warm_steps: int) -> Server:
    """Make room for a server that is warmed for at most `warm_steps` steps."""
    by_request = [np.zeros(warm_steps + 1, dtype=np.int32) for _ in range(8)]
    pages, tenant, lifetime, finish_step, finish_rank, next_live, last_live, pages_read = by_request
    heads = warm_steps + 2
    return Server(
        tokens=np.zeros(warm_steps + 1, dtype=np.int64),
        pages=pages,
        tenant=tenant,
        lifetime=lifetime,
        finish_step=finish_step,
        finish_rank=finish_rank,
        next_due=np.zeros(heads + warm_steps + 1, dtype=np.int32),
        last_due=np.empty(heads, dtype=np.int32),
        next_live=next_live,
        last_live=last_live,
        totals=np.empty(5, dtype=np.int64),
        streams_before=np.empty((_READ_AHEAD, 4), dtype=np.uint64),
        pages_read=pages_read,
    )


@compiled
def run_trials(pool, runs, server, workload, oversized, words, counts, medians, exposures):
    """Run one server for every seed, and look at it as often as asked.

    Parameters
    ----------
    pool, runs : pool, Runs
        From `policies.open_pool`, with room for as many requests as the last look's warm-up has steps.
    server : Server
        From `open_server`, for the last look's warm-up.
    workload : Workload
    oversized : Oversized
        One look only where requests grow.
    words : numpy.ndarray of uint64, shape (seeds, 4)
        From `pcg64.seed_words`.
    counts : numpy.ndarray of int64, shape (looks, seeds, len(COUNTS))
        Overwritten.
    medians : numpy.ndarray of float64, shape (looks, seeds, len(MEDIANS))
        Overwritten.
    exposures : numpy.ndarray of int64, shape (rows, len(EXPOSURE))
        A row for every look, seed and exposed request, overwritten as far as it goes. There are as many
        as `distinct_requests` add up to; with no row none is asked for.
    """
    exposed = 0
    for trial in range(len(words)):
        _restart(server)
        free, stream = reset(pool, start(words[trial]))
        step = 0
        for which in range(len(oversized.warm_steps)):
            free, stream = _advance(pool, server, workload, free, stream, step, oversized.warm_steps[which])
            step = oversized.warm_steps[which]
            row = counts[which, trial]
            _report_load(pool, server, free, row)
            tokens = oversized.prompt_tokens[which]
            own_stream = _stream_now(pool, server, stream)
            if tokens == UNIFORM:
                drawn, own_stream = integers(own_stream, oversized.longest - oversized.shortest + 1)
                tokens = oversized.shortest + drawn
            pages = -(-tokens // workload.page_size)
            now = step
            if workload.decode_tokens:
                free, own_stream, now = _wait(pool, server, workload, free, own_stream, step, pages)
            drained = _drain(server, free.pages, now, pages)
            if len(drained):
                now = np.int64(server.finish_step[drained[-1]])
            n_runs = look(pool, free, own_stream, drained, (server.tokens, server.pages), tokens, pages, runs)
            row[_PAGES] = pages
            row[_DRAIN_STEPS] = now - step
            row[_PROMPT_TOKENS_DRAWN] = tokens
            rows = exposures[exposed:]
            exposed += _measure(server, runs, n_runs, drained, now, row, medians[which, trial], rows)
            for i in range(min(row[_DISTINCT_REQUESTS], len(rows))):
                rows[i, 0], rows[i, 1] = which, trial


@hot
def _report_load(pool, server, free, row):
    totals = server.totals
    row[_USED_PAGES] = pool.pages - free.pages
    row[_LIVE_REQUESTS] = totals[_SEEN] - totals[_DROPPED] - totals[_FINISHED]
    row[_REQUESTS_SEEN] = totals[_SEEN]
    row[_REQUESTS_FINISHED] = totals[_FINISHED]
    row[_REQUESTS_DROPPED] = totals[_DROPPED]
    row[_REQUESTS_RETRACTED] = totals[_RETRACTED]


@hot
def _restart(server):
    server.totals[:] = 0
    heads = len(server.last_due)
    server.next_due[:heads] = NOBODY
    for step in range(heads):
        server.last_due[step] = step
    server.next_live[NOBODY] = server.last_live[NOBODY] = NOBODY


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
            free, finished = _finish(pool, server, workload, free, finished, request)
            request = np.int64(server.next_due[heads + request])
        while request != NOBODY:
            free, finished = _finish(pool, server, workload, free, finished, request)
            request = np.int64(server.next_due[heads + request])
        if workload.decode_tokens:
            free, stream, finished = _decode(pool, server, workload, free, stream, finished, step)

        if pool.pages - free.pages >= workload.cap_pages:
            continue
        seen += 1
        request = seen
        if one_by_one:
            stream = _draw_tokens(server, workload, stream, request)
        elif request > drawn:
            drawn, stream = _read_ahead(server, workload, stream, drawn)
        pages = np.int64(server.pages[request])
        get_ready(pool, np.int64(server.tokens[request]) // workload.page_size + 2)
        if pages > free.pages:
            dropped += 1
            if not one_by_one:
                # A dropped request leaves the stream after its length, before its tenant.
                stream = _draw_tokens(server, workload, _stream_before(server, stream, request), request)
                drawn = seen
            continue
        free, stream = take(pool, free, stream, request, pages)
        if one_by_one:
            stream = _draw_tenant_and_lifetime(server, workload, stream, request)
        finish_step = step + server.lifetime[request]
        server.finish_step[request] = finish_step
        # A list's head is a node like any other: to append needs no case for an empty list.
        due = min(finish_step, heads - 1)
        server.next_due[server.last_due[due]] = request
        server.next_due[heads + request] = NOBODY
        server.last_due[due] = heads + request
        if workload.decode_tokens:
            _enlist(server, request)
    server.totals[_SEEN], server.totals[_DRAWN] = seen, drawn
    server.totals[_FINISHED], server.totals[_DROPPED] = finished, dropped
    return free, stream


@hot
def _finish(pool, server, workload, free, finished, request):
    server.finish_rank[request] = finished
    tokens, pages = np.int64(server.tokens[request]), np.int64(server.pages[request])
    free = give_back(pool, free, request, tokens, pages)
    if workload.decode_tokens:
        _delist(server, request)
    return free, finished + np.int64(request != NOBODY)


@hot
def _enlist(server, request):
    newest = server.last_live[NOBODY]
    server.next_live[newest] = request
    server.last_live[request] = newest
    server.next_live[request] = NOBODY
    server.last_live[NOBODY] = request


@hot
def _delist(server, request):
    older, newer = server.last_live[request], server.next_live[request]
    if request != NOBODY:
        server.next_live[older] = newer
        server.last_live[newer] = older


@hot
def _decode(pool, server, workload, free, stream, finished, step):
    """Let every live request produce its tokens of a step, and take the pages that it comes to need."""
    batch = wanted = 0
    request = np.int64(server.next_live[NOBODY])
    while request != NOBODY:
        batch += 1
        wanted += _pages_wanted(server, workload, request)
        request = np.int64(server.next_live[request])
    while wanted > free.pages:
        request = np.int64(server.last_live[NOBODY])
        batch -= 1
        wanted -= _pages_wanted(server, workload, request)
        _remove_due(server, request)
        server.finish_step[request] = step
        free, finished = _finish(pool, server, workload, free, finished, request)
        server.totals[_RETRACTED] += 1
    # A token a request: the engines judge by the number of requests. More tokens may need more pages.
    get_ready(pool, max(batch, wanted))
    request = np.int64(server.next_live[NOBODY])
    while request != NOBODY:
        pages = _pages_wanted(server, workload, request)
        if pages:
            free, stream = extend(pool, free, stream, request, pages)
            server.pages[request] += pages
        server.tokens[request] += workload.decode_tokens
        request = np.int64(server.next_live[request])
    return free, stream, finished


@hot
def _pages_wanted(server, workload, request):
    tokens = np.int64(server.tokens[request]) + workload.decode_tokens
    return -(-tokens // workload.page_size) - server.pages[request]


@hot
def _remove_due(server, request):
    """Take a request out of the list of those due when it was to finish."""
    heads = len(server.last_due)
    due = min(np.int64(server.finish_step[request]), heads - 1)
    node = due
    while server.next_due[node] != request:
        node = heads + np.int64(server.next_due[node])
    server.next_due[node] = server.next_due[heads + request]
    if server.last_due[due] == heads + request:
        server.last_due[due] = node


@compiled
def _wait(pool, server, workload, free, stream, step, pages):
    """Run the server on, arrivals stopped, until `pages` pages are free: where requests grow meanwhile."""
    finished = server.totals[_FINISHED]
    while free.pages < pages:
        step += 1
        request = np.int64(server.next_live[NOBODY])
        while request != NOBODY:
            following = np.int64(server.next_live[request])
            if server.finish_step[request] == step:
                free, finished = _finish(pool, server, workload, free, finished, request)
            request = following
        free, stream, finished = _decode(pool, server, workload, free, stream, finished, step)
    server.totals[_FINISHED] = finished
    return free, stream, step


@hot
def _draw_tokens(server, workload, stream, request):
    """Draw the tokens of a background request: a clipped log-normal."""
    normal, stream = standard_normal(stream)
    drawn = math.exp(workload.log_median + workload.sigma * normal)
    # Clipped before it becomes an integer, which could not hold every float.
    whole = workload.tokens_max if drawn >= workload.tokens_max else np.int64(drawn)
    tokens = max(whole, workload.tokens_min)
    server.tokens[request] = tokens
    server.pages[request] = _ceil_div(np.uint32(tokens), np.uint32(workload.page_size))
    return stream


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
        stream = _draw_tokens(server, workload, stream, request)
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
def _measure(server, runs, n_runs, drained, now, row, medians, exposures):
    """Say whose pages are read, how many of each, and how old they are; return how many are exposed."""
    finished = server.totals[_FINISHED]
    # The drained finish after all others, in the order in which they drain.
    for i in range(len(drained)):
        server.finish_rank[drained[i]] = finished + i
    finished += len(drained)

    # The oversized request writes its first page, and reads the rest.
    runs.counts[0] -= 1
    foreign_pages = never_written = exposed = 0
    owners = np.empty(n_runs, dtype=np.int32)
    for run in range(n_runs):
        owner, count = runs.owners[run], np.int64(runs.counts[run])
        if owner == NOBODY:
            never_written += count
        elif count:
            foreign_pages += count
            if not server.pages_read[owner]:
                owners[exposed] = owner
                exposed += 1
            server.pages_read[owner] += count

    ages, ages_steps, by_tenant = np.empty((3, exposed), dtype=np.int64)
    largest = 0
    for i in range(exposed):
        owner = owners[i]
        pages = np.int64(server.pages_read[owner])
        server.pages_read[owner] = 0
        largest = max(largest, pages)
        ages[i] = finished - server.finish_rank[owner]
        ages_steps[i] = now - server.finish_step[owner]
        by_tenant[i] = (np.int64(server.tenant[owner]) << 32) | pages
        if i < len(exposures):
            exposures[i, 2], exposures[i, 3], exposures[i, 4] = owner, server.tenant[owner], pages
            exposures[i, 5], exposures[i, 6] = ages[i], ages_steps[i]
    _sort(ages)
    _sort(ages_steps)
    _sort(by_tenant)
    tenants = largest_tenant = pages = 0
    for i in range(exposed):
        if i == 0 or by_tenant[i] >> 32 != by_tenant[i - 1] >> 32:
            tenants += 1
            pages = 0
        pages += by_tenant[i] & 0xFFFFFFFF
        largest_tenant = max(largest_tenant, pages)

    row[_FOREIGN_PAGES] = foreign_pages
    row[_NEVER_WRITTEN] = never_written
    row[_DISTINCT_REQUESTS] = exposed
    row[_DISTINCT_TENANTS] = tenants
    row[_MAX_AGE] = ages[-1] if exposed else -1
    row[_MAX_AGE_STEPS] = ages_steps[-1] if exposed else -1
    row[_LARGEST_REQUEST_PAGES] = largest
    row[_LARGEST_TENANT_PAGES] = largest_tenant
    medians[0] = _median(ages)
    medians[1] = _median(ages_steps)
    return exposed


@hot
def _median(values):
    """Median of sorted values; NaN of none."""
    n = len(values)
    return (values[(n - 1) // 2] + values[n // 2]) / 2 if n else math.nan


@compiled
def _sort(values):
    """Sort in place: one function for all, since a sort takes seconds to compile."""
    values.sort()
