"""A pool whose pages are told apart: the order of real engines, page by page, in compiled code.

The free list, the pages staged beside it, and the pages of each live request are *chains*: linked lists
of nodes, each a run of consecutive page numbers in ascending or descending order. Whatever happens
to a request's pages, most nodes are only linked anew; who wrote a page last is kept page by page.

`kvsim.policies` says which engine, version and class each order was read from, and what is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.compiled import hot

NOBODY = 0
"""Owner of a page that has never been written. Requests are numbered from 1; nobody has no pages."""

ORDERS = ("lifo", "fifo", "sglang-disaggregated", "sglang", "vllm", "vllm-prefix-caching", "lmdeploy")
"""The policies that a pool of chains can follow. The simulator runs `lifo` and `fifo` without chains."""

_LIFO, _FIFO, _SGLANG_DISAGGREGATED, _SGLANG, _VLLM, _VLLM_PREFIX_CACHING, _LMDEPLOY = range(len(ORDERS))
_NONE = -1
_FRONT, _BACK, _READY, _STAGE_FRONT, _STAGE_BACK, _NODES, _SPARE = range(7)


class Chains(NamedTuple):
    """A pool of chains.

    Attributes
    ----------
    order : int
        Index into `ORDERS`.
    pages : int
        Pages, free or not, numbered from 0.
    page_size : int
        Tokens a page.
    owners : numpy.ndarray of int32, shape (pages,)
        Who wrote each page last.
    first, length, next : numpy.ndarray of int32, shape (pages + 1,)
        Nodes: the first page of a run; its pages, negative if their numbers descend; the next node.
    heads, tails : numpy.ndarray of int32, shape (requests + 1,)
        The chain of each request.
    marks : numpy.ndarray of int64, shape (7,)
        First and last node of the free list; the pages on it; first and last node of the stage;
        nodes ever used; first of the nodes that may be used again.
    """

    order: int
    pages: int
    page_size: int
    owners: npt.NDArray[np.int32]
    first: npt.NDArray[np.int32]
    length: npt.NDArray[np.int32]
    next: npt.NDArray[np.int32]
    heads: npt.NDArray[np.int32]
    tails: npt.NDArray[np.int32]
    marks: npt.NDArray[np.int64]


def open_chains(policy: str, pages: int, page_size: int, requests: int) -> Chains:
    """Make room for a pool of chains that serves at most `requests` requests between two resets."""

    def room(length: int) -> npt.NDArray[np.int32]:
        return np.zeros(length, dtype=np.int32)

    return Chains(
        order=ORDERS.index(policy),
        pages=pages,
        page_size=page_size,
        owners=room(pages),
        first=room(pages + 1),
        length=room(pages + 1),
        next=room(pages + 1),
        heads=room(requests + 1),
        tails=room(requests + 1),
        marks=np.zeros(7, dtype=np.int64),
    )


@hot
def reset_chains(pool):
    """Make all pages free and unwritten, ascending; under `lifo`, as the reference has it, descending."""
    pool.owners[:] = NOBODY
    marks = pool.marks
    marks[_NODES] = 0
    marks[_SPARE] = marks[_STAGE_FRONT] = marks[_STAGE_BACK] = _NONE
    node = _add_node(pool, 0, pool.pages)
    if pool.order == _LIFO:
        _turn(pool, node)
    marks[_FRONT] = marks[_BACK] = node
    marks[_READY] = pool.pages


@hot
def get_chain_ready(pool, pages):
    """Tidy up for somebody who asks for pages and reckons with this many at most."""
    if pool.order == _SGLANG_DISAGGREGATED and pages > pool.marks[_READY]:
        _merge_stage(pool)


@hot
def cut_chain(pool, pages):
    """Take the first `pages` pages, at least one, off the free list; return the chain's ends."""
    marks = pool.marks
    head = node = marks[_FRONT]
    left = pages - abs(np.int64(pool.length[node]))
    while left > 0:
        node = np.int64(pool.next[node])
        left -= abs(np.int64(pool.length[node]))
    rest = np.int64(pool.next[node])
    if left < 0:
        # The last node holds more than is wanted.
        rest = _split(pool, node, abs(np.int64(pool.length[node])) + left)
    pool.next[node] = _NONE
    marks[_FRONT] = rest
    if rest == _NONE or (left < 0 and pool.next[rest] == _NONE):
        marks[_BACK] = rest
    marks[_READY] -= pages
    return head, node


@hot
def take_chain(pool, request, pages):
    """Hand out pages to a new request, which writes them all."""
    head, tail = cut_chain(pool, pages)
    pool.heads[request] = head
    pool.tails[request] = tail
    _write(pool, head, request)


@hot
def extend_chain(pool, request, pages):
    """Hand out more pages to a request that holds some."""
    head, tail = cut_chain(pool, pages)
    _write(pool, head, request)
    pool.next[pool.tails[request]] = head
    pool.tails[request] = tail


@hot
def give_back_chain(pool, request, tokens, pages):
    """Take back the pages of a request that holds `tokens` tokens."""
    order = pool.order
    head, tail = np.int64(pool.heads[request]), np.int64(pool.tails[request])
    if order == _SGLANG_DISAGGREGATED:
        _append_to_stage(pool, head, tail)
        return
    pool.marks[_READY] += pages
    if order == _FIFO:
        _append(pool, head, tail)
        return
    if order == _SGLANG:
        head, tail = _sort(pool, head)
    elif order != _LMDEPLOY:
        head, tail = _reverse(pool, head)
    if order == _VLLM_PREFIX_CACHING:
        # Full pages are hashed and go to the back; a partial tail, now the first page, to the front.
        if tokens // pool.page_size == pages:
            _append(pool, head, tail)
            return
        partial = head
        head = _split(pool, partial, 1) if abs(pool.length[partial]) > 1 else np.int64(pool.next[partial])
        if head != _NONE:
            _append(pool, head, tail if tail != partial else head)
        tail = head = partial
    pool.next[tail] = pool.marks[_FRONT]
    if pool.marks[_FRONT] == _NONE:
        pool.marks[_BACK] = tail
    pool.marks[_FRONT] = head


@hot
def read_chain(pool, head, owners, counts):
    """Say who wrote the pages of a chain last, as runs of one owner; return their number."""
    n = 0
    node = head
    while node != _NONE:
        step = 1 if pool.length[node] > 0 else -1
        page = np.int64(pool.first[node])
        for _ in range(abs(pool.length[node])):
            owner = pool.owners[page]
            if n and owners[n - 1] == owner:
                counts[n - 1] += 1
            else:
                owners[n] = owner
                counts[n] = 1
                n += 1
            page += step
        node = np.int64(pool.next[node])
    return n


@hot
def list_pages(pool, head, pages):
    """List the page numbers of a chain, in order; return how many there are."""
    n = 0
    node = head
    while node != _NONE:
        step = 1 if pool.length[node] > 0 else -1
        for i in range(abs(pool.length[node])):
            pages[n] = pool.first[node] + i * step
            n += 1
        node = np.int64(pool.next[node])
    return n


@hot
def save(pool, room):
    """Copy all but the owners of pages, for `restore`; there must be room for 3 * (pages + 1) + 7."""
    used = pool.marks[_NODES]
    for i in range(used):
        room[3 * i] = pool.first[i]
        room[3 * i + 1] = pool.length[i]
        room[3 * i + 2] = pool.next[i]
    for i in range(len(pool.marks)):
        room[3 * used + i] = pool.marks[i]
    return used


@hot
def restore(pool, room, used):
    """Go back to what `save` copied."""
    for i in range(used):
        pool.first[i] = room[3 * i]
        pool.length[i] = room[3 * i + 1]
        pool.next[i] = room[3 * i + 2]
    for i in range(len(pool.marks)):
        pool.marks[i] = room[3 * used + i]


@hot
def _add_node(pool, first, length):
    marks = pool.marks
    node = marks[_SPARE]
    if node == _NONE:
        node = marks[_NODES]
        marks[_NODES] = node + 1
    else:
        marks[_SPARE] = pool.next[node]
    pool.first[node] = first
    pool.length[node] = length
    pool.next[node] = _NONE
    return node


@hot
def _split(pool, node, pages):
    """Cut a node after so many pages; return the node of the rest, which comes next."""
    length = np.int64(pool.length[node])
    kept = pages if length > 0 else -pages
    rest = _add_node(pool, pool.first[node] + kept, length - kept)
    pool.next[rest] = pool.next[node]
    pool.length[node] = kept
    pool.next[node] = rest
    return rest


@hot
def _turn(pool, node):
    """Turn a run around: its last page comes first."""
    length = np.int64(pool.length[node])
    pool.first[node] += length - 1 if length > 0 else length + 1
    pool.length[node] = -length


@hot
def _write(pool, head, request):
    node = head
    while node != _NONE:
        length = np.int64(pool.length[node])
        start = np.int64(pool.first[node])
        if length < 0:
            start, length = start + length + 1, -length
        for page in range(start, start + length):
            pool.owners[page] = request
        node = np.int64(pool.next[node])


@hot
def _append(pool, head, tail):
    """Put a chain at the back of the free list."""
    if pool.marks[_BACK] == _NONE:
        pool.marks[_FRONT] = head
    else:
        pool.next[pool.marks[_BACK]] = head
    pool.marks[_BACK] = tail


@hot
def _append_to_stage(pool, head, tail):
    if pool.marks[_STAGE_BACK] == _NONE:
        pool.marks[_STAGE_FRONT] = head
    else:
        pool.next[pool.marks[_STAGE_BACK]] = head
    pool.marks[_STAGE_BACK] = tail


@hot
def _merge_stage(pool):
    """Make one free list of the free and the staged pages, ascending."""
    marks = pool.marks
    if marks[_STAGE_FRONT] == _NONE:
        return
    pool.next[marks[_STAGE_BACK]] = marks[_FRONT]
    marks[_FRONT], marks[_BACK] = _sort(pool, marks[_STAGE_FRONT])
    marks[_STAGE_FRONT] = marks[_STAGE_BACK] = _NONE
    ready = 0
    node = marks[_FRONT]
    while node != _NONE:
        ready += pool.length[node]
        node = np.int64(pool.next[node])
    marks[_READY] = ready


@hot
def _reverse(pool, head):
    """Turn a chain around, page by page; return its new first and last node."""
    node, done = head, _NONE
    while node != _NONE:
        _turn(pool, node)
        following = np.int64(pool.next[node])
        pool.next[node] = done
        done, node = node, following
    return done, head


@hot
def _sort(pool, head):
    """Sort a chain of ascending runs by page number, and join what adjoins; return first and last node.

    A bottom-up merge sort of linked lists.
    """
    size = 1
    while True:
        merges = 0
        left, head, tail = head, _NONE, _NONE
        while left != _NONE:
            merges += 1
            right, left_size = left, 0
            while left_size < size and right != _NONE:
                right = np.int64(pool.next[right])
                left_size += 1
            right_size = size
            while left_size or (right_size and right != _NONE):
                from_left = left_size > 0 and (
                    not right_size or right == _NONE or pool.first[left] < pool.first[right]
                )
                if from_left:
                    node, left = left, np.int64(pool.next[left])
                    left_size -= 1
                else:
                    node, right = right, np.int64(pool.next[right])
                    right_size -= 1
                if tail == _NONE:
                    head = node
                else:
                    pool.next[tail] = node
                tail = node
            left = right
        pool.next[tail] = _NONE
        if merges <= 1:
            return head, _join(pool, head)
        size *= 2


@hot
def _join(pool, head):
    """Make one node of neighbours whose pages follow each other; return the last node."""
    node = head
    following = np.int64(pool.next[node])
    while following != _NONE:
        if pool.first[following] == pool.first[node] + pool.length[node]:
            pool.length[node] += pool.length[following]
            pool.next[node] = pool.next[following]
            pool.next[following] = pool.marks[_SPARE]
            pool.marks[_SPARE] = following
        else:
            node = following
        following = np.int64(pool.next[node])
    return node
