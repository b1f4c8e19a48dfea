"""A pool whose pages are told apart: the order of real engines, page by page, in compiled code.

The free list, the pages staged beside it, and the pages of each live request are *chains*: linked lists
of nodes, each a run of consecutive page numbers, ascending or descending, that one request wrote last.
Whatever happens to a request's pages, most nodes are only linked anew.

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
_FIRST, _LENGTH, _NEXT, _OWNER = range(4)
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
    nodes : numpy.ndarray of int32, shape (pages + 1, 4)
        Nodes: the first page of a run; its pages, negative if their numbers descend; the next node;
        who wrote the pages last.
    heads, tails : numpy.ndarray of int32, shape (requests + 1,)
        The chain of each request.
    marks : numpy.ndarray of int64, shape (7,)
        First and last node of the free list; the pages on it; first and last node of the stage;
        nodes ever used; first of the nodes that may be used again.
    """

    order: int
    pages: int
    page_size: int
    nodes: npt.NDArray[np.int32]
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
        nodes=np.zeros((pages + 1, 4), dtype=np.int32),
        heads=room(requests + 1),
        tails=room(requests + 1),
        marks=np.zeros(7, dtype=np.int64),
    )


@hot
def reset_chains(pool):
    """Make all pages free and unwritten, ascending; under `lifo`, as the reference has it, descending."""
    marks = pool.marks
    marks[_NODES] = 0
    marks[_SPARE] = marks[_STAGE_FRONT] = marks[_STAGE_BACK] = _NONE
    node = _add_node(pool, 0, pool.pages, NOBODY)
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
def cut_chain(pool, pages, writer):
    """Take the first `pages` pages, at least one, off the free list; return the chain's ends.

    `writer` writes them; `NOBODY` leaves them as they are.
    """
    marks = pool.marks
    head = node = marks[_FRONT]
    left = pages
    length = abs(np.int64(pool.nodes[node, _LENGTH]))
    while length < left:
        left -= length
        if writer != NOBODY:
            pool.nodes[node, _OWNER] = writer
        node = np.int64(pool.nodes[node, _NEXT])
        length = abs(np.int64(pool.nodes[node, _LENGTH]))
    if length > left:
        rest = _split(pool, node, left)
        if pool.nodes[rest, _NEXT] == _NONE:
            marks[_BACK] = rest
    else:
        rest = np.int64(pool.nodes[node, _NEXT])
        if rest == _NONE:
            marks[_BACK] = _NONE
    if writer != NOBODY:
        pool.nodes[node, _OWNER] = writer
    pool.nodes[node, _NEXT] = _NONE
    marks[_FRONT] = rest
    marks[_READY] -= pages
    return head, node


@hot
def take_chain(pool, request, pages):
    """Hand out pages to a new request, which writes them all."""
    pool.heads[request], pool.tails[request] = cut_chain(pool, pages, request)


@hot
def extend_chain(pool, request, pages):
    """Hand out more pages to a request that holds some."""
    head, tail = cut_chain(pool, pages, request)
    pool.nodes[pool.tails[request], _NEXT] = head
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
        whole = abs(pool.nodes[partial, _LENGTH]) == 1
        head = np.int64(pool.nodes[partial, _NEXT]) if whole else _split(pool, partial, 1)
        if head != _NONE:
            _append(pool, head, tail if tail != partial else head)
        tail = head = partial
    pool.nodes[tail, _NEXT] = pool.marks[_FRONT]
    if pool.marks[_FRONT] == _NONE:
        pool.marks[_BACK] = tail
    pool.marks[_FRONT] = head


@hot
def read_chain(pool, head, owners, counts):
    """Say who wrote the pages of a chain last, node by node; return the number of nodes."""
    n = 0
    node = head
    while node != _NONE:
        owners[n] = pool.nodes[node, _OWNER]
        counts[n] = abs(pool.nodes[node, _LENGTH])
        n += 1
        node = np.int64(pool.nodes[node, _NEXT])
    return n


@hot
def list_pages(pool, head, pages):
    """List the page numbers of a chain, in order; return how many there are."""
    n = 0
    node = head
    while node != _NONE:
        step = 1 if pool.nodes[node, _LENGTH] > 0 else -1
        for i in range(abs(pool.nodes[node, _LENGTH])):
            pages[n] = pool.nodes[node, _FIRST] + i * step
            n += 1
        node = np.int64(pool.nodes[node, _NEXT])
    return n


@hot
def save(pool, room):
    """Copy the pool for `restore`; there must be room for 4 * (pages + 1) + 7."""
    used = pool.marks[_NODES]
    for node in range(used):
        for i in range(4):
            room[4 * node + i] = pool.nodes[node, i]
    for i in range(len(pool.marks)):
        room[4 * used + i] = pool.marks[i]
    return used


@hot
def restore(pool, room, used):
    """Go back to what `save` copied."""
    for node in range(used):
        for i in range(4):
            pool.nodes[node, i] = room[4 * node + i]
    for i in range(len(pool.marks)):
        pool.marks[i] = room[4 * used + i]


@hot
def _add_node(pool, first, length, owner):
    marks = pool.marks
    node = marks[_SPARE]
    if node == _NONE:
        node = marks[_NODES]
        marks[_NODES] = node + 1
    else:
        marks[_SPARE] = pool.nodes[node, _NEXT]
    pool.nodes[node, _FIRST] = first
    pool.nodes[node, _LENGTH] = length
    pool.nodes[node, _NEXT] = _NONE
    pool.nodes[node, _OWNER] = owner
    return node


@hot
def _split(pool, node, pages):
    """Cut a node after so many pages; return the node of the rest, which comes next."""
    length = np.int64(pool.nodes[node, _LENGTH])
    kept = pages if length > 0 else -pages
    rest = _add_node(pool, pool.nodes[node, _FIRST] + kept, length - kept, pool.nodes[node, _OWNER])
    pool.nodes[rest, _NEXT] = pool.nodes[node, _NEXT]
    pool.nodes[node, _LENGTH] = kept
    pool.nodes[node, _NEXT] = rest
    return rest


@hot
def _turn(pool, node):
    """Turn a run around: its last page comes first."""
    length = np.int64(pool.nodes[node, _LENGTH])
    pool.nodes[node, _FIRST] += length - 1 if length > 0 else length + 1
    pool.nodes[node, _LENGTH] = -length


@hot
def _append(pool, head, tail):
    """Put a chain at the back of the free list."""
    if pool.marks[_BACK] == _NONE:
        pool.marks[_FRONT] = head
    else:
        pool.nodes[pool.marks[_BACK], _NEXT] = head
    pool.marks[_BACK] = tail


@hot
def _append_to_stage(pool, head, tail):
    if pool.marks[_STAGE_BACK] == _NONE:
        pool.marks[_STAGE_FRONT] = head
    else:
        pool.nodes[pool.marks[_STAGE_BACK], _NEXT] = head
    pool.marks[_STAGE_BACK] = tail


@hot
def _merge_stage(pool):
    """Make one free list of the free and the staged pages, ascending."""
    marks = pool.marks
    if marks[_STAGE_FRONT] == _NONE:
        return
    pool.nodes[marks[_STAGE_BACK], _NEXT] = marks[_FRONT]
    marks[_FRONT], marks[_BACK] = _sort(pool, marks[_STAGE_FRONT])
    marks[_STAGE_FRONT] = marks[_STAGE_BACK] = _NONE
    ready = 0
    node = marks[_FRONT]
    while node != _NONE:
        ready += pool.nodes[node, _LENGTH]
        node = np.int64(pool.nodes[node, _NEXT])
    marks[_READY] = ready


@hot
def _reverse(pool, head):
    """Turn a chain around, page by page; return its new first and last node."""
    node, done = head, _NONE
    while node != _NONE:
        _turn(pool, node)
        following = np.int64(pool.nodes[node, _NEXT])
        pool.nodes[node, _NEXT] = done
        done, node = node, following
    return done, head


@hot
def _sort(pool, head):
    """Sort a chain of ascending runs by page number, and join what adjoins; return first and last node.

    A natural merge sort: pages leave in stretches that ascend already.
    """
    while True:
        stretches = 0
        rest, head, tail = head, _NONE, _NONE
        while rest != _NONE:
            left = rest
            right = _cut_stretch(pool, left)
            rest = _cut_stretch(pool, right) if right != _NONE else _NONE
            stretches += 1
            while left != _NONE or right != _NONE:
                from_left = right == _NONE or (
                    left != _NONE and pool.nodes[left, _FIRST] < pool.nodes[right, _FIRST]
                )
                node = left if from_left else right
                if from_left:
                    left = np.int64(pool.nodes[node, _NEXT])
                else:
                    right = np.int64(pool.nodes[node, _NEXT])
                if tail == _NONE:
                    head = node
                else:
                    pool.nodes[tail, _NEXT] = node
                tail = node
        if stretches <= 1:
            return head, _join(pool, head)


@hot
def _cut_stretch(pool, node):
    """Cut a chain where it stops ascending; return the rest."""
    following = np.int64(pool.nodes[node, _NEXT])
    while following != _NONE and pool.nodes[following, _FIRST] > pool.nodes[node, _FIRST]:
        node = following
        following = np.int64(pool.nodes[node, _NEXT])
    pool.nodes[node, _NEXT] = _NONE
    return following


@hot
def _join(pool, head):
    """Make one node of neighbours whose pages follow each other and have one owner; return the last node."""
    node = head
    following = np.int64(pool.nodes[node, _NEXT])
    while following != _NONE:
        adjoins = pool.nodes[following, _FIRST] == pool.nodes[node, _FIRST] + pool.nodes[node, _LENGTH]
        if adjoins and pool.nodes[following, _OWNER] == pool.nodes[node, _OWNER]:
            pool.nodes[node, _LENGTH] += pool.nodes[following, _LENGTH]
            pool.nodes[node, _NEXT] = pool.nodes[following, _NEXT]
            pool.nodes[following, _NEXT] = pool.marks[_SPARE]
            pool.marks[_SPARE] = following
        else:
            node = following
        following = np.int64(pool.nodes[node, _NEXT])
    return node
