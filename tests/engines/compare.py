"""Hold `kvsim.PagePool` against the real allocator classes of engines, on random operations.

Run by hand where an engine's package is installed; see README.md. Exit status: 0 if every class that was
met hands out the same pages, 1 at the first difference or the first class that cannot be driven, 2 if no
engine is installed.
"""

from __future__ import annotations

import abc
import argparse
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import random
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kvsim import PagePool
from kvsim.policies import FIRST_PAGE
from kvsim.scenario import ENGINES

OPERATIONS_PER_POOL = 2_000
PAGE_SIZES = (16, 32, 64)
INSTALL = (
    "pip install torch==2.13.0 packaging; pip install --no-deps sglang==0.5.23 vllm==0.33.0 lmdeploy==0.18.0"
)

# Parts of an engine that its allocator imports and does not use, and that would import much more.
HEAVY = {
    "sglang": (),
    "vllm": (
        "vllm.config",
        "vllm.distributed",
        "vllm.model_executor",
        "vllm.multimodal",
        "vllm.platforms",
        "vllm.pooling_params",
        "vllm.sampling_params",
        "vllm.v1.attention",
        "vllm.v1.engine",
        "vllm.v1.metrics",
        "vllm.v1.structured_output",
        "vllm.v1.utils",
    ),
    "lmdeploy": (),
}
# No stand-ins for these: an allocator computes with them, or an engine asks them what machine it is on.
NO_STANDINS = {"numpy", "torch", "amdsmi", "libtpu", "tpu_inference"}


class _AnythingType(abc.ABCMeta):
    """A class that can be called, indexed, joined and asked for any attribute, and yields itself."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> Any:
        return super().__new__(mcs, name, bases, namespace)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, namespace)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        return Anything if cls is Anything else super().__call__(*args, **keywords)

    def __getitem__(cls, key: Any) -> Any:
        return Anything

    def __or__(cls, other: Any) -> Any:
        return Anything

    __ror__ = __or__

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class Anything(metaclass=_AnythingType):
    """Stands in for what a missing package would have defined; engines also inherit from it."""

    def __init__(self, *_: Any, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _EmptyModule(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module wherever `wanted` says so."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if self._wanted(name) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def import_without_heavy_parts(engine: str, module: str) -> types.ModuleType:
    """Import a module of an engine with stand-ins for what it does not need.

    The engine's own top-level ``__init__`` is passed over: it patches other packages. What is missing is
    stood in for only where the engine asks for it; torch, which probes for packages too, finds none.
    """

    def is_heavy(name: str) -> bool:
        return any(name == part or name.startswith(f"{part}.") for part in HEAVY[engine])

    def is_missing(name: str) -> bool:
        top = name.partition(".")[0]
        if top == engine or top in NO_STANDINS or top in sys.stdlib_module_names:
            return False
        frame = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "") in skipped:
            frame = frame.f_back
        return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == engine

    skipped = {__name__, "importlib", "importlib._bootstrap", "importlib._bootstrap_external"}
    if module in sys.modules:
        return sys.modules[module]
    spec = importlib.util.find_spec(engine)
    assert spec is not None
    package = types.ModuleType(engine)
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[engine] = package
    first, last = _Finder(is_heavy), _Finder(is_missing)
    sys.meta_path.insert(0, first)
    sys.meta_path.append(last)
    try:
        return importlib.import_module(module)
    finally:
        sys.meta_path.remove(first)
        sys.meta_path.remove(last)


class EnginePool(Protocol):
    """A real pool, driven as its engine drives it; requests go by number.

    `alloc` and `grow` return the page ids handed out, or None if there are too few.
    """

    def alloc(self, request: int, tokens: int) -> list[int] | None: ...

    def grow(self, request: int, tokens: int) -> list[int] | None: ...

    def free(self, request: int, tokens: int) -> None: ...

    @property
    def free_pages(self) -> int: ...


class SGLangPool:
    """`PagedTokenToKVPoolAllocator`: it deals in tokens' places, page after page."""

    def __init__(self, pages: int, page_size: int, need_sort: bool) -> None:
        module = import_without_heavy_parts("sglang", "sglang.srt.mem_cache.allocator.paged")
        import torch

        self._tensor = lambda values: torch.tensor(values, dtype=torch.int64)
        self._join = torch.cat
        self._page_size = page_size
        self._pool = module.PagedTokenToKVPoolAllocator(
            pages * page_size, page_size, torch.float16, "cpu", None, need_sort
        )
        # The kernels for a GPU are Triton's; the class has the same in torch for machines without it.
        self._pool.use_triton_kernels = False
        self._places: dict[int, Any] = {}

    def alloc(self, request: int, tokens: int) -> list[int] | None:
        none, all_ = self._tensor([0]), self._tensor([tokens])
        places = self._pool.alloc_extend(none, none, all_, all_, self._tensor([-1]), tokens)
        if places is None:
            return None
        self._places[request] = places
        return self._pages(places[:: self._page_size])

    def grow(self, request: int, tokens: int) -> list[int] | None:
        length = self._tensor([tokens])
        held = self._places[request]
        place = self._pool.alloc_decode(length, length, held[-1:])
        if place is None:
            return None
        self._places[request] = self._join([held, place])
        return self._pages(place) if len(held) % self._page_size == 0 else []

    def free(self, request: int, tokens: int) -> None:
        self._pool.free(self._places.pop(request))

    @property
    def free_pages(self) -> int:
        return int(self._pool.available_size()) // self._page_size

    def _pages(self, places: Any) -> list[int]:
        return [int(page) for page in places // self._page_size]


class VLLMPool:
    """`BlockPool`: as `SingleTypeKVCacheManager` drives it, each full block hashed, none alike."""

    def __init__(self, pages: int, page_size: int, prefix_caching: bool) -> None:
        module = import_without_heavy_parts("vllm", "vllm.v1.core.block_pool")
        self._prefix_caching = prefix_caching
        self._page_size = page_size
        # One more: block 0 stands for no block.
        self._pool = module.BlockPool(pages + 1, prefix_caching, page_size)
        self._blocks: dict[int, list[Any]] = {}
        self._hashed: dict[int, int] = {}

    def alloc(self, request: int, tokens: int) -> list[int] | None:
        return self._allocate(request, tokens)

    def grow(self, request: int, tokens: int) -> list[int] | None:
        return self._allocate(request, tokens)

    def _allocate(self, request: int, tokens: int) -> list[int] | None:
        held = self._blocks.get(request, [])
        wanted = -(-tokens // self._page_size) - len(held)
        new = []
        if wanted:
            try:
                new = self._pool.get_new_blocks(wanted)
            except ValueError:
                return None
        self._blocks[request] = held + new
        if self._prefix_caching:
            self._hash_full_blocks(request, tokens)
        return [block.block_id for block in new]

    def _hash_full_blocks(self, request: int, tokens: int) -> None:
        full = tokens // self._page_size
        hashes = [f"{request}-{i}".encode() for i in range(full)]
        self._pool.cache_full_blocks(
            request=types.SimpleNamespace(block_hashes=hashes),
            blocks=self._blocks[request],
            num_cached_blocks=self._hashed.get(request, 0),
            num_full_blocks=full,
            block_size=self._page_size,
            kv_cache_group_id=0,
        )
        self._hashed[request] = full

    def free(self, request: int, tokens: int) -> None:
        self._hashed.pop(request, None)
        self._pool.free_blocks(reversed(self._blocks.pop(request)))

    @property
    def free_pages(self) -> int:
        return int(self._pool.get_num_free_blocks())


class LMDeployPool:
    """`LogicalAllocator`, as `DefaultBlockManager` drives it, without host memory.

    Page ids are those of the physical blocks, which hold what is read; the logical ones are alike.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        path = "lmdeploy.pytorch.paging.block_manager.base_block_manager"
        self._module = import_without_heavy_parts("lmdeploy", path)
        import numpy as np

        self._join = np.concatenate
        self._page_size = page_size
        self._pool = self._module.LogicalAllocator(0, pages)
        self._blocks: dict[int, Any] = {}

    def alloc(self, request: int, tokens: int) -> list[int] | None:
        return self._allocate(request, tokens)

    def grow(self, request: int, tokens: int) -> list[int] | None:
        return self._allocate(request, tokens)

    def _allocate(self, request: int, tokens: int) -> list[int] | None:
        held = self._blocks.get(request, ())
        wanted = -(-tokens // self._page_size) - len(held)
        try:
            new = self._pool.allocate(wanted)
        except MemoryError:
            return None
        self._blocks[request] = self._join([held, new]) if len(held) else new
        return [int(page) for page in self._pool.get_physical_blocks(new)]

    def free(self, request: int, tokens: int) -> None:
        self._pool.free(self._blocks.pop(request))

    @property
    def free_pages(self) -> int:
        return int(self._pool.get_phy_allocator("gpu").get_num_free_blocks())


class Subject(NamedTuple):
    """A policy, and the class that it must equal.

    Attributes
    ----------
    open_pool : callable
        From pages and page size to the real pool.
    metadata : dict
        What a recording says of the class.
    pool_pages, page_size : int
        Those of a recording.
    """

    policy: str
    engine: str
    open_pool: Callable[[int, int], EnginePool]
    metadata: dict[str, str]
    pool_pages: int
    page_size: int


SUBJECTS = (
    Subject(
        "sglang-disaggregated",
        "sglang",
        lambda pages, page_size: SGLangPool(pages, page_size, need_sort=True),
        {"cls": "PagedTokenToKVPoolAllocator", "need_sort": "True"},
        512,
        64,
    ),
    Subject(
        "sglang",
        "sglang",
        lambda pages, page_size: SGLangPool(pages, page_size, need_sort=False),
        {"cls": "PagedTokenToKVPoolAllocator", "need_sort": "False"},
        512,
        64,
    ),
    Subject(
        "vllm",
        "vllm",
        lambda pages, page_size: VLLMPool(pages, page_size, prefix_caching=False),
        {"cls": "BlockPool", "prefix_caching": "False"},
        511,
        16,
    ),
    Subject(
        "vllm-prefix-caching",
        "vllm",
        lambda pages, page_size: VLLMPool(pages, page_size, prefix_caching=True),
        {"cls": "BlockPool", "prefix_caching": "True"},
        511,
        16,
    ),
    Subject("lmdeploy", "lmdeploy", LMDeployPool, {"cls": "LogicalAllocator"}, 512, 64),
)


class Operation(NamedTuple):
    """What was asked of a pool: `tokens` are all that the request has, or comes to have."""

    kind: str
    request: int
    tokens: int


class Answer(NamedTuple):
    """What a pool did: the pages it handed out, None if it refused, and those that are free after."""

    pages: list[int] | None
    free_pages: int


class Load:
    """Random operations on one pool: spells that fill it, that let requests grow, that empty it.

    Parameters
    ----------
    rng : random.Random
    pages, page_size : int
    """

    def __init__(self, rng: random.Random, pages: int, page_size: int) -> None:
        self._rng = rng
        self._page_size = page_size
        self._capacity = pages * page_size
        self._live: dict[int, int] = {}
        self._requests = 0
        self._start_spell()

    def _start_spell(self) -> None:
        rng = self._rng
        self._left = rng.randint(20, 200)
        self._weights = rng.choice([(6, 2, 2), (2, 12, 1), (2, 2, 5), (4, 4, 3), (1, 30, 0)])
        self._longest = max(1, int(self._capacity * rng.choice([0.02, 0.1, 0.3, 1.1])))

    def draw(self) -> Operation:
        """Draw what to do next."""
        if self._left == 0:
            self._start_spell()
        self._left -= 1
        kind = self._rng.choices(("alloc", "grow", "free"), self._weights)[0] if self._live else "alloc"
        if kind == "alloc":
            self._requests += 1
            return Operation(kind, self._requests - 1, self._draw_prompt())
        request = self._rng.choice(list(self._live))
        return Operation(kind, request, self._live[request] + (kind == "grow"))

    def _draw_prompt(self) -> int:
        tokens = self._rng.randint(1, self._longest)
        # Prompts that end with a page, or just past one, are where a trigger's rounding shows.
        if self._rng.random() < 0.3:
            tokens = -(-tokens // self._page_size) * self._page_size + self._rng.randint(0, 1)
        return tokens

    def note(self, operation: Operation, refused: bool) -> None:
        """Remember who is live."""
        if operation.kind == "free":
            del self._live[operation.request]
        elif not refused:
            self._live[operation.request] = operation.tokens


def do_to_engine(pool: EnginePool, operation: Operation) -> Answer:
    kind, request, tokens = operation
    pages: list[int] | None = []
    if kind == "alloc":
        pages = pool.alloc(request, tokens)
    elif kind == "grow":
        pages = pool.grow(request, tokens)
    else:
        pool.free(request, tokens)
    return Answer(pages, pool.free_pages)


def do_to_kvsim(pool: PagePool, operation: Operation) -> Answer:
    kind, request, tokens = operation
    pages: list[int] | None = []
    if kind == "alloc":
        pages = pool.alloc(tokens, request)
    elif kind == "grow":
        pages = pool.grow(request, tokens)
    else:
        pool.free(request)
    return Answer(pages, pool.free_pages)


class UndrivableError(Exception):
    """An engine is installed, but its class is not where it was, or lacks a package that it needs."""


class DifferenceError(Exception):
    """The two pools did not do the same."""


def compare(
    subject: Subject, pages: int, page_size: int, operations: int, rng: random.Random
) -> list[tuple[Operation, Answer]]:
    """Do random operations to both pools.

    Returns
    -------
    list of (Operation, Answer)
        What the engine did.

    Raises
    ------
    DifferenceError
        At the first operation that they do not answer alike.
    UndrivableError
        If the engine's pool cannot be opened.
    """
    try:
        real = subject.open_pool(pages, page_size)
    except (ImportError, AttributeError, TypeError) as error:
        raise UndrivableError(f"{type(error).__name__}: {error}") from error
    ours = PagePool(subject.policy, pages, page_size)
    load = Load(rng, pages, page_size)
    done = []
    for number in range(operations):
        operation = load.draw()
        answer, own = do_to_engine(real, operation), do_to_kvsim(ours, operation)
        if answer != own:
            raise DifferenceError(
                f"operation {number} on {pages} pages of {page_size} tokens: {operation.kind} of request "
                f"{operation.request}, {operation.tokens} tokens\n"
                f"    engine: pages {answer.pages}, free_pages {answer.free_pages}\n"
                f"    kvsim:  pages {own.pages}, free_pages {own.free_pages}"
            )
        load.note(operation, answer.pages is None)
        done.append((operation, answer))
    return done


def count(done: list[tuple[Operation, Answer]]) -> Counter[str]:
    """Count the operations by what came of them."""
    counts: Counter[str] = Counter()
    for operation, answer in done:
        if answer.pages is None:
            counts[f"{operation.kind} refused"] += 1
        elif operation.kind == "grow":
            counts["grow by a page" if answer.pages else "grow within a page"] += 1
        else:
            counts[operation.kind] += 1
    return counts


def write_recording(path: Path, subject: Subject, version: str, done: list[tuple[Operation, Answer]]) -> None:
    """Write a table that `kvsim.replay` takes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = pa.array([operation.kind for operation, _ in done]).dictionary_encode()
    columns = {
        "op": pa.array(range(len(done)), pa.int32()),
        "kind": kinds,
        "request": pa.array([operation.request for operation, _ in done], pa.int32()),
        "tokens": pa.array([operation.tokens for operation, _ in done], pa.int32()),
        "pages": pa.array([answer.pages or [] for _, answer in done], pa.list_(pa.int32())),
        "failed": pa.array([answer.pages is None for _, answer in done]),
        "free_pages": pa.array([answer.free_pages for _, answer in done], pa.int32()),
    }
    metadata = {
        "engine": subject.engine,
        "version": version,
        **subject.metadata,
        "pages": str(subject.pool_pages),
        "page_size": str(subject.page_size),
        "first_page": str(FIRST_PAGE.get(subject.policy, 0)),
    }
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)


def draw_pools(operations: int, rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Draw pages, page size and operations of one pool after another."""
    for first in range(0, operations, OPERATIONS_PER_POOL):
        pages = rng.choice([rng.randint(4, 40), rng.randint(40, 512), rng.randint(512, 2048)])
        yield pages, rng.choice(PAGE_SIZES), min(OPERATIONS_PER_POOL, operations - first)


def find_version(engine: str) -> str | None:
    """Look up the version of an engine; None if it is not installed."""
    try:
        return importlib.metadata.version(engine)
    except importlib.metadata.PackageNotFoundError:
        return None


def run_subject(subject: Subject, version: str, operations: int, seed: int, record: Path | None) -> None:
    """Compare one class, print what was met, write a recording if asked for."""
    rng = random.Random(seed)
    pools: Any = draw_pools(operations, rng)
    if record:
        pools = [(subject.pool_pages, subject.page_size, operations)]
    done = []
    for pages, page_size, share in pools:
        done += compare(subject, pages, page_size, share, rng)
    parts = ", ".join(f"{number:,} {what}" for what, number in sorted(count(done).items()))
    print(f"{subject.policy}: {len(done):,} operations, no difference ({parts})")
    if record:
        write_recording(record, subject, version, done)
        print(f"{subject.policy}: recorded in {record}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=sorted(HEAVY), help="only this one; by default all installed")
    parser.add_argument("--operations", type=int, default=20_000, help="for each class")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write a recording of one pool; if there are several classes, FILE's name takes on the policy's",
    )
    arguments = parser.parse_args()
    if arguments.operations < 1:
        parser.error("--operations: must be at least 1")
    return arguments


def main() -> int:
    """Run the comparison; return the exit status."""
    arguments = parse_arguments()
    subjects = [s for s in SUBJECTS if arguments.engine in (None, s.engine)]
    versions = {engine: find_version(engine) for engine in dict.fromkeys(s.engine for s in subjects)}
    for engine, version in versions.items():
        if version is None:
            print(f"{engine}: not installed, skipped")
    subjects = [s for s in subjects if versions[s.engine]]
    if not subjects:
        print(f"no engine to compare with; install one: {INSTALL}", file=sys.stderr)
        return 2
    for subject in subjects:
        version, record = versions[subject.engine], arguments.record
        read_from = ENGINES[subject.policy]
        same = f" {version}," in read_from
        note = "" if same else " -- ANOTHER VERSION: a difference may be the engine's change of order"
        print(f"{subject.policy}: met {subject.engine} {version}; policy read from {read_from}{note}")
        if record and len(subjects) > 1:
            record = record.with_name(f"{record.stem}-{subject.policy}{record.suffix}")
        try:
            run_subject(subject, str(version), arguments.operations, arguments.seed, record)
        except DifferenceError as difference:
            print(f"{subject.policy}: DIFFERENCE at {difference}")
            return 1
        except UndrivableError as error:
            print(f"{subject.policy}: CANNOT BE DRIVEN, {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
