"""The model in plain Python: a second opinion on the compiled simulator, written to be read.

Lists, dictionaries, a heap, and `numpy.random.Generator`; nothing here is fast, and nothing is taken
from kvsim but the declaration of a scenario. From bottom to top: a *policy* knows the order of free pages,
a *pool* knows how many pages a number of tokens needs, a *server* knows steps and requests, and a
*trial* warms a server up and lets the oversized request in.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kvsim import Scenario

# ----------------------------------------------------------------- policies: the order of free pages


class Policy:
    """The order in which free pages are handed out and taken back.

    By default pages leave at the front of one list, and the list starts in the order of the page ids.
    """

    first_page = 0

    def __init__(self, pages: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.free = list(range(self.first_page, self.first_page + pages))

    def available(self) -> int:
        """Pages that can be had, at once or after some tidying."""
        return len(self.free)

    def get_ready(self, pages: int) -> None:
        """Tidy up: somebody is about to ask for pages, and reckons with this many at most."""

    def take(self, count: int) -> list[int]:
        """Hand out pages, of which there are enough."""
        assert count <= len(self.free)
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give_back(self, pages: list[int], full: int) -> None:
        """Take back a request's pages, in the request's order; the first `full` of them are full."""
        raise NotImplementedError


class Lifo(Policy):
    """A stack: the page that was given back last leaves first."""

    def take(self, count: int) -> list[int]:
        return [self.free.pop() for _ in range(count)]

    def give_back(self, pages: list[int], full: int) -> None:
        self.free.extend(pages)


class Fifo(Policy):
    """A queue: the page that was given back first leaves first."""

    def __init__(self, pages: int, rng: np.random.Generator) -> None:
        super().__init__(pages, rng)
        self.queue = deque(self.free)

    def available(self) -> int:
        return len(self.queue)

    def take(self, count: int) -> list[int]:
        return [self.queue.popleft() for _ in range(count)]

    def give_back(self, pages: list[int], full: int) -> None:
        self.queue.extend(pages)


class Random(Policy):
    """Any free page is as likely as any other. The start is shuffled too, as in the reference."""

    def __init__(self, pages: int, rng: np.random.Generator) -> None:
        super().__init__(pages, rng)
        rng.shuffle(self.free)

    def take(self, count: int) -> list[int]:
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        drawn = int(self.rng.integers(len(self.free)))
        last = self.free.pop()
        if drawn == len(self.free):
            return last
        # The last page moves into the gap.
        page, self.free[drawn] = self.free[drawn], last
        return page

    def give_back(self, pages: list[int], full: int) -> None:
        self.free.extend(pages)


class SglangDisaggregated(Policy):
    """SGLang 0.5.23, `PagedTokenToKVPoolAllocator` with `need_sort`: a prefill or decode server.

    Freed pages are staged. When the free list may be too short, both become one list in the order of
    page ids; whether the pages then suffice is another question.
    """

    first_page = 1

    def __init__(self, pages: int, rng: np.random.Generator) -> None:
        super().__init__(pages, rng)
        self.staged: list[int] = []

    def available(self) -> int:
        return len(self.free) + len(self.staged)

    def get_ready(self, pages: int) -> None:
        if pages > len(self.free):
            self.free, self.staged = sorted(self.free + self.staged), []

    def give_back(self, pages: list[int], full: int) -> None:
        self.staged.extend(pages)


class Sglang(Policy):
    """SGLang 0.5.23, the same class without `need_sort`: one server for prefill and decode."""

    first_page = 1

    def give_back(self, pages: list[int], full: int) -> None:
        self.free = sorted(pages) + self.free


class Vllm(Policy):
    """vLLM 0.33.0, `BlockPool` without prefix caching; block 0 is the null block.

    A request's blocks come back last block first, and stand in that order at the front.
    """

    first_page = 1

    def give_back(self, pages: list[int], full: int) -> None:
        self.free = pages[::-1] + self.free


class VllmPrefixCaching(Policy):
    """vLLM 0.33.0, `BlockPool` with prefix caching; no two requests share a prefix.

    Full blocks are kept for later requests as long as possible: at the back, last block first. The
    block that a request left partly filled is of no use to others, and goes to the front.
    """

    first_page = 1

    def give_back(self, pages: list[int], full: int) -> None:
        self.free = pages[full:][::-1] + self.free + pages[:full][::-1]


class Lmdeploy(Policy):
    """LMDeploy 0.18.0, `LogicalAllocator`: the request's blocks, in its own order, to the front."""

    def give_back(self, pages: list[int], full: int) -> None:
        self.free = pages + self.free


POLICIES: dict[str, type[Policy]] = {
    "lifo": Lifo,
    "fifo": Fifo,
    "random": Random,
    "sglang-disaggregated": SglangDisaggregated,
    "sglang": Sglang,
    "vllm": Vllm,
    "vllm-prefix-caching": VllmPrefixCaching,
    "lmdeploy": Lmdeploy,
}

RECORDINGS = {
    "sglang-disaggregated": "sglang-0.5.23-disaggregated",
    "sglang": "sglang-0.5.23-aggregated",
    "vllm": "vllm-0.33.0-no-prefix-caching",
    "vllm-prefix-caching": "vllm-0.33.0-prefix-caching",
    "lmdeploy": "lmdeploy-0.18.0",
}
"""Recordings of the engines' own classes by policy, in tests/data/engines."""

# --------------------------------------------------------------------- the pool: tokens become pages


class Pool:
    """A pool of pages, from which requests take what their tokens need."""

    def __init__(self, policy: str, pages: int, page_size: int, rng: np.random.Generator) -> None:
        self.policy = POLICIES[policy](pages, rng)
        self.pages = pages
        self.page_size = page_size

    @property
    def free_pages(self) -> int:
        return self.policy.available()

    @property
    def used_pages(self) -> int:
        return self.pages - self.free_pages

    def pages_for(self, tokens: int) -> int:
        return math.ceil(tokens / self.page_size)

    def alloc(self, tokens: int) -> list[int] | None:
        """Take the pages of a new prompt; None if there are too few."""
        # SGLang judges by this bound, before it reckons the exact need.
        self.policy.get_ready(tokens // self.page_size + 2)
        count = self.pages_for(tokens)
        return self.policy.take(count) if count <= self.free_pages else None

    def lacks(self, held: list[int], tokens: int) -> int:
        """Pages that a request lacks that holds some and comes to have `tokens`."""
        return self.pages_for(tokens) - len(held)

    def grow(self, batch: list[tuple[list[int], int]]) -> list[list[int]] | None:
        """Take what each of some requests lacks, in turn: (pages held, tokens to come).

        None for all of them if there are too few. A request that gets one new token needs a page at
        most: SGLang judges by the number of requests, whether or not they need any.
        """
        lacking = [self.lacks(held, tokens) for held, tokens in batch]
        self.policy.get_ready(max(len(batch), sum(lacking)))
        if sum(lacking) > self.free_pages:
            return None
        return [self.policy.take(count) for count in lacking]

    def free(self, held: list[int], tokens: int) -> None:
        """Give back all the pages of a request that has `tokens`."""
        self.policy.give_back(held, tokens // self.page_size)


def replay(
    policy: str, pool_pages: int, page_size: int, operations: Iterable[dict[str, object]]
) -> list[tuple[list[int], bool, int]]:
    """Do the operations of a recording: what each hands out, whether it failed, pages free afterwards."""
    pool = Pool(policy, pool_pages, page_size, np.random.default_rng(0))
    held: dict[int, list[int]] = {}
    results = []
    for operation in operations:
        request, tokens = operation["request"], operation["tokens"]
        pages: list[int] | None = []
        match operation["kind"]:
            case "alloc":
                pages = pool.alloc(tokens)
                if pages is not None:
                    held[request] = list(pages)
            case "grow":
                grown = pool.grow([(held[request], tokens)])
                pages = None if grown is None else grown[0]
                held[request] += pages or []
            case "free":
                pool.free(held.pop(request), tokens)
        results.append((pages or [], pages is None, pool.free_pages))
    return results


# --------------------------------------------------------------- the server: steps and its requests


@dataclass
class Request:
    """A background request; it holds its pages until its finish step."""

    number: int
    tokens: int
    pages: list[int]
    tenant: int
    finish_step: int
    finished_as: int | None = None
    """How many had finished before it."""


@dataclass
class Server:
    """One pool with its live requests."""

    scenario: Scenario
    rng: np.random.Generator
    step_number: int = 0
    seen: int = 0
    dropped: int = 0
    retracted: int = 0
    finished: int = 0
    due: list[tuple[int, int, Request]] = field(default_factory=list)
    writer: dict[int, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = Pool(self.scenario.policy, self.scenario.pool_pages, self.scenario.page_size, self.rng)

    def step(self, arrivals: bool) -> None:
        """Finish what is due, decode, and let one request in if the pool is used less than the cap."""
        self.step_number += 1
        while self.due and self.due[0][0] <= self.step_number:
            self._finish(heapq.heappop(self.due)[2])
        if self.scenario.decode_tokens_per_step:
            self._decode()
        if arrivals and self.pool.used_pages < self.scenario.utilisation * self.pool.pages:
            self._arrive()

    def _finish(self, request: Request) -> None:
        self.pool.free(request.pages, request.tokens)
        request.finish_step = self.step_number
        request.finished_as = self.finished
        self.finished += 1

    def _decode(self) -> None:
        """Let every live request, oldest first, produce its tokens and write the pages that they need.

        As long as all of them need more pages than are free the newest is retracted, for good.
        """
        more = self.scenario.decode_tokens_per_step
        batch = sorted((request for _, _, request in self.due), key=lambda request: request.number)
        while sum(self.pool.lacks(r.pages, r.tokens + more) for r in batch) > self.pool.free_pages:
            self._retract(batch.pop())
        grown = self.pool.grow([(request.pages, request.tokens + more) for request in batch])
        for request, pages in zip(batch, grown, strict=True):
            request.tokens += more
            request.pages += pages
            self.writer.update(dict.fromkeys(pages, request))

    def _retract(self, request: Request) -> None:
        self.due = [entry for entry in self.due if entry[2] is not request]
        heapq.heapify(self.due)
        self._finish(request)
        self.retracted += 1

    def _arrive(self) -> None:
        scenario, number = self.scenario, self.seen
        self.seen += 1
        tokens = self._draw_tokens()
        pages = self.pool.alloc(tokens)
        if pages is None:
            self.dropped += 1
            return
        tenant = int(self.rng.integers(scenario.tenants))
        finish_step = self.step_number + int(self.rng.geometric(1 / scenario.request_lifetime_steps))
        request = Request(number, tokens, pages, tenant, finish_step)
        self.writer.update(dict.fromkeys(pages, request))
        heapq.heappush(self.due, (finish_step, number, request))

    def _draw_tokens(self) -> int:
        scenario = self.scenario
        drawn = self.rng.lognormal(np.log(scenario.request_tokens_median), scenario.request_tokens_sigma)
        return max(scenario.request_tokens_min, min(int(drawn), scenario.request_tokens_max))


# ------------------------------------------------------- the trial: a warm server, an oversized request


def trial(scenario: Scenario, seed: int) -> dict[str, float]:
    """Run one trial: every outcome by name."""
    server = Server(scenario, np.random.default_rng(seed))
    for _ in range(scenario.warm_steps):
        server.step(arrivals=True)
    outcomes = {
        "used_pages": server.pool.used_pages,
        "kv_cache_usage": server.pool.used_pages / scenario.pool_pages,
        "live_requests": len(server.due),
        "requests_seen": server.seen,
        "requests_finished": server.finished,
        "requests_dropped": server.dropped,
        "requests_retracted": server.retracted,
    }
    tokens = scenario.prompt_tokens
    if tokens == "uniform":
        tokens = int(server.rng.integers(scenario.prefill_pool_tokens + 1, scenario.context_tokens + 1))
    pages = _admit(server, tokens)
    outcomes["prompt_tokens_drawn"] = tokens
    outcomes["drain_steps"] = server.step_number - scenario.warm_steps
    return outcomes | _exposure(server, pages)


def _admit(server: Server, tokens: int) -> list[int]:
    """Stop arrivals, wait until the pool has room, and take the oversized request's pages."""
    while server.pool.free_pages < server.pool.pages_for(tokens):
        server.step(arrivals=False)
    pages = server.pool.alloc(tokens)
    assert pages is not None
    return pages


def _exposure(server: Server, pages: list[int]) -> dict[str, float]:
    """Say what is read: all pages but the first, which the placeholder wrote."""
    owners = [server.writer[page] for page in pages[1:] if page in server.writer]
    exposed = {owner.number: owner for owner in owners}.values()
    ages = [server.finished - owner.finished_as for owner in exposed]
    ages_steps = [server.step_number - owner.finish_step for owner in exposed]
    of_request = Counter(owner.number for owner in owners)
    of_tenant = Counter(owner.tenant for owner in owners)
    largest_request = max(of_request.values(), default=0)
    largest_tenant = max(of_tenant.values(), default=0)
    return {
        "pages": len(pages),
        "foreign_pages": len(owners),
        "never_written": len(pages) - 1 - len(owners),
        "foreign_frac": len(owners) / len(pages),
        "distinct_requests": len(of_request),
        "distinct_tenants": len(of_tenant),
        "median_age": float(statistics.median(ages)) if ages else math.nan,
        "max_age": max(ages, default=-1),
        "median_age_steps": float(statistics.median(ages_steps)) if ages else math.nan,
        "max_age_steps": max(ages_steps, default=-1),
        "largest_request_pages": largest_request,
        "largest_request_frac": largest_request / len(pages),
        "largest_tenant_pages": largest_tenant,
        "largest_tenant_frac": largest_tenant / len(pages),
    }
