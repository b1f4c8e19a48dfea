"""A pool to drive by hand: the simulator's own compiled code, one operation at a time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.chains import list_pages
from kvsim.compiled import compiled
from kvsim.pcg64 import Stream
from kvsim.policies import FIRST_PAGE, Urn, extend, get_ready, give_back, look, open_pool, reset, take
from kvsim.scenario import MAX_SEED, PARAMETERS

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class PagePool:
    """A pool of pages under an allocator policy.

    Parameters
    ----------
    policy : str
        One of `kvsim.scenario.POLICIES`.
    pool_pages : int
        Pages of the pool.
    page_size : int
        Tokens a page.
    seed : int
        Under `random`, the seed of ``numpy.random.default_rng``; of no use to the others.

    Raises
    ------
    ValueError
        If a value is not allowed.

    Examples
    --------
    >>> pool = PagePool("vllm", 8, page_size=16)
    >>> pool.alloc(40)
    [1, 2, 3]
    >>> pool.alloc(100) is None, pool.free_pages
    (True, 5)
    >>> pool.grow(0, 50)
    [4]
    >>> pool.free(0)
    >>> pool.alloc(20, request="another")
    [4, 3]
    """

    def __init__(self, policy: str, pool_pages: int, page_size: int = 64, *, seed: int = 0) -> None:
        self.policy = str(PARAMETERS["policy"].canonical(policy))
        self.pool_pages = int(PARAMETERS["pool_pages"].canonical(pool_pages))
        self.page_size = int(PARAMETERS["page_size"].canonical(page_size))
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= MAX_SEED:
            raise ValueError(f"seed: {seed!r} is not allowed; must be an integer from 0 to {MAX_SEED}")
        self._first_page = FIRST_PAGE.get(self.policy, 0)
        self._pool, self._runs = open_pool(
            self.policy, self.pool_pages, self.page_size, self.pool_pages, by_page=True
        )
        self._stream = np.zeros(6, dtype=np.uint64)
        self._free = _reset(self._pool, self._stream)
        if isinstance(self._pool, Urn):
            self._shuffle(self._pool, int(seed))
        self._held: dict[Hashable, list[int]] = {}
        self._tokens: dict[Hashable, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._unused = list(range(self.pool_pages, 0, -1))
        self._allocs = 0
        self._pages = np.empty(self.pool_pages, dtype=np.int32)

    def _shuffle(self, urn: Urn, seed: int) -> None:
        """Fill the urn with page numbers, where the simulator fills it with who wrote them."""
        rng = np.random.default_rng(seed)
        order = list(range(self.pool_pages))
        rng.shuffle(order)
        urn.owners[:] = order
        state: Any = rng.bit_generator.state
        words = [state["state"]["state"], state["state"]["inc"]]
        halves = [half for word in words for half in divmod(word, 2**64)]
        self._stream[:] = [*halves, state["has_uint32"], state["uinteger"] if state["has_uint32"] else 0]

    @property
    def free_pages(self) -> int:
        """Pages that no request holds."""
        return int(self._free[0])

    def alloc(self, tokens: int, request: Hashable | None = None) -> list[int] | None:
        """Hand out the pages of a new request.

        Parameters
        ----------
        tokens : int
            Tokens of its prompt, at least 1.
        request : hashable, optional
            Its name; by default the number of calls before this one.

        Returns
        -------
        list of int, or None
            Page ids, as the engine numbers them, in the order in which they are handed out; None if
            there are too few.

        Raises
        ------
        ValueError
            If `tokens` is below 1, or the request holds pages already.
        """
        if request is None:
            request = self._allocs
        if request in self._held:
            raise ValueError(f"request: {request!r} holds pages already; must be a new one")
        tokens = _checked_tokens(tokens)
        self._allocs += 1
        pages = -(-tokens // self.page_size)
        _get_ready(self._pool, tokens // self.page_size + 2)
        if pages > self.free_pages:
            return None
        number = self._unused.pop()
        self._numbers[request] = number
        self._held[request] = []
        return self._hand_out(request, tokens, pages, _take)

    def grow(self, request: Hashable, tokens: int) -> list[int] | None:
        """Hand out what a live request lacks to hold `tokens` tokens, as a decode batch of its own.

        Returns
        -------
        list of int, or None
            Page ids, often none; None if there are too few, which changes nothing.

        Raises
        ------
        KeyError
            If no such request holds pages.
        ValueError
            If `tokens` is less than it has.
        """
        held = self._held[request]
        if _checked_tokens(tokens) < self._tokens[request]:
            raise ValueError(f"tokens: {tokens} is not allowed; must be at least {self._tokens[request]}")
        pages = -(-tokens // self.page_size) - len(held)
        # The engines judge growth by one token by the one page that it may need, and does not always.
        _get_ready(self._pool, max(1, pages))
        if pages > self.free_pages:
            return None
        return self._hand_out(request, tokens, pages, _extend)

    def free(self, request: Hashable) -> None:
        """Take back all pages of a request.

        Raises
        ------
        KeyError
            If no such request holds pages.
        """
        held, tokens, number = self._held.pop(request), self._tokens.pop(request), self._numbers.pop(request)
        if isinstance(self._pool, Urn):
            for page in held:
                self._free = _give_back(self._pool, self._free, page, 1, 1)
        else:
            self._free = _give_back(self._pool, self._free, number, tokens, len(held))
        self._unused.append(number)

    def _hand_out(self, request: Hashable, tokens: int, pages: int, how: Any) -> list[int]:
        number, held = self._numbers[request], self._held[request]
        self._tokens[request] = int(tokens)
        if pages == 0:
            return []
        if isinstance(self._pool, Urn):
            _look(self._pool, self._free, self._stream, pages, self._runs)
            new = self._runs.owners[:pages].tolist()
        self._free = how(self._pool, self._free, self._stream, number, pages)
        if not isinstance(self._pool, Urn):
            n = _list_held(self._pool, number, self._pages)
            new = (self._pages[len(held) : n] + self._first_page).tolist()
        held += new
        return list(new)


def _checked_tokens(tokens: int) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int | np.integer) or tokens < 1:
        raise ValueError(f"tokens: {tokens!r} is not allowed; must be an integer of at least 1")
    return int(tokens)


class Replay(list[list[int]]):
    """What a replay handed out: a list of page ids for every operation.

    Attributes
    ----------
    failed : list of bool
        Whether each operation was refused for lack of pages.
    free_pages : list of int
        Pages that no request held after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[bool] = []
        self.free_pages: list[int] = []


def replay(
    policy: str,
    operations: pd.DataFrame | pa.Table,
    *,
    pool_pages: int | None = None,
    page_size: int | None = None,
    seed: int = 0,
) -> Replay:
    """Do recorded operations, and say which pages each hands out.

    Parameters
    ----------
    policy : str
    operations : pandas.DataFrame or pyarrow.Table
        One row an operation, in order: `kind` (``alloc``, ``grow`` or ``free``), `request`, `tokens` (of
        the prompt; when it grows, all that it comes to have).
    pool_pages, page_size : int, optional
        By default those of the table's metadata (`pages`, `page_size`), else those that its columns
        `pages`, `failed` and `free_pages` imply.
    seed : int
        As in `PagePool`.

    Returns
    -------
    Replay
        A list of lists of page ids, with `failed` and `free_pages`.

    Raises
    ------
    ValueError
        If a kind of operation is unknown, or the pool's size cannot be told.
    """
    metadata = {}
    if not hasattr(operations, "iloc"):
        stored = operations.schema.metadata or {}
        metadata = {key: int(stored[key]) for key in (b"pages", b"page_size") if key in stored}
        columns = {name: operations[name].to_pylist() for name in operations.column_names}
    else:
        columns = {str(name): operations[name].tolist() for name in operations.columns}
    pool_pages = pool_pages or metadata.get(b"pages") or _implied_pool_pages(columns)
    page_size = page_size or metadata.get(b"page_size") or _implied_page_size(columns)

    pool = PagePool(policy, pool_pages, page_size, seed=seed)
    result = Replay()
    rows = zip(columns["kind"], columns["request"], columns["tokens"], strict=True)
    for kind, request, tokens in rows:
        pages: list[int] | None = []
        if kind == "alloc":
            pages = pool.alloc(tokens, request)
        elif kind == "grow":
            pages = pool.grow(request, tokens)
        elif kind == "free":
            pool.free(request)
        else:
            raise ValueError(f"kind: {kind!r} is not allowed; must be alloc, grow or free")
        result.append(pages or [])
        result.failed.append(pages is None)
        result.free_pages.append(pool.free_pages)
    return result


def _implied_pool_pages(columns: dict[str, list[Any]]) -> int:
    try:
        return int(columns["free_pages"][0]) + len(columns["pages"][0])
    except (KeyError, IndexError):
        raise ValueError("pool_pages: not given, and not implied by the table; must be given") from None


def _implied_page_size(columns: dict[str, list[Any]]) -> int:
    """The one page size by which every prompt needs the pages that it got."""
    low, high = 1, 2**62
    rows = zip(columns["kind"], columns["tokens"], columns.get("pages", []), strict=False)
    for kind, tokens, pages in rows:
        if kind == "alloc" and len(pages):
            low = max(low, -(-tokens // len(pages)))
            if len(pages) > 1:
                high = min(high, -(-tokens // (len(pages) - 1)) - 1)
    if low != high:
        raise ValueError("page_size: not given, and not implied by the table; must be given")
    return int(low)


@compiled
def _load(stream):
    return Stream(stream[0], stream[1], stream[2], stream[3], stream[4], stream[5])


@compiled
def _store(stream, words):
    words[0], words[1], words[2] = stream.high, stream.low, stream.step_high
    words[3], words[4], words[5] = stream.step_low, stream.left, stream.half


@compiled
def _reset(pool, words):
    free, _ = reset(pool, _load(words))
    return free


@compiled
def _get_ready(pool, pages):
    get_ready(pool, pages)


@compiled
def _take(pool, free, words, request, pages):
    free, stream = take(pool, free, _load(words), request, pages)
    _store(stream, words)
    return free


@compiled
def _extend(pool, free, words, request, pages):
    free, stream = extend(pool, free, _load(words), request, pages)
    _store(stream, words)
    return free


@compiled
def _give_back(pool, free, request, tokens, pages):
    return give_back(pool, free, request, tokens, pages)


@compiled
def _look(pool, free, words, pages, runs):
    nobody = np.empty(0, dtype=np.int32)
    return look(pool, free, _load(words), nobody, (np.empty(0, dtype=np.int64), nobody), 0, pages, runs)


@compiled
def _list_held(pool, request, pages):
    return list_pages(pool, pool.heads[request], pages)
