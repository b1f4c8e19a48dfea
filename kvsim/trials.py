"""Tables of trials in files: one a job, one an experiment, and what a file says it holds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kvsim import __version__
from kvsim.digest import model_digest
from kvsim.files import atomic_write
from kvsim.outcomes import TRIAL_COLUMNS, column_type
from kvsim.scenario import ENGINES, PARAMETERS, Scenario, as_text

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.grid import Experiment, Job

SCHEMA_VERSION = 1
"""Version of the columns of a table of trials and of their meaning."""

_KEY = b"kvsim"
_MISSING = "is missing"
_DAMAGED = (OSError, pa.ArrowException, UnicodeDecodeError)
"""What PyArrow raises on a file that is not whole; the last where the name of a column is hit."""


class TrialsError(ValueError):
    """Files of trials that cannot be used.

    Attributes
    ----------
    lines : list of str
        One line for each file: which, what is wrong with it, and how to make it anew.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))


def trials_schema() -> pa.Schema:
    """The Arrow schema of a table of trials: `TRIAL_COLUMNS`, none of them ever null.

    A parameter that takes words beside integers (`prompt_tokens`) is text.
    """
    return pa.schema(
        [pa.field(name, getattr(pa, column_type(name))(), nullable=False) for name in TRIAL_COLUMNS]
    )


def scenario_columns(scenarios: Sequence[Scenario], seeds: npt.NDArray[np.uint64]) -> dict[str, pa.Array]:
    """The columns that say what each trial is of: every parameter, and the seed, scenarios x seeds."""
    columns = {
        name: _repeated([getattr(scenario, name) for scenario in scenarios], column_type(name), len(seeds))
        for name in PARAMETERS
    }
    return columns | {"seed": arrow_array(np.tile(seeds, len(scenarios)), "uint64")}


def arrow_array(values: npt.NDArray[Any], dtype: str) -> pa.Array:
    """Wrap an array: without `pa.array`, which imports pandas, half a second in every job."""
    values = np.ascontiguousarray(values, dtype=dtype)
    return pa.Array.from_buffers(getattr(pa, dtype)(), len(values), [None, pa.py_buffer(values)])


def _repeated(values: Sequence[Any], dtype: str, times: int) -> pa.Array:
    if dtype != "string":
        return arrow_array(np.repeat(np.array(values, dtype=dtype), times), dtype)
    texts = [as_text(value).encode() for value in values]
    offsets = np.zeros(len(texts) * times + 1, dtype=np.int32)
    np.cumsum(np.repeat([len(text) for text in texts], times), out=offsets[1:])
    joined = b"".join(text * times for text in texts)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(joined))


def numbered_prompts(frame: pd.DataFrame) -> pd.DataFrame:
    """Turn the text of parameters that take words beside integers back into words and integers, in place."""
    import pandas as pd

    for name, parameter in PARAMETERS.items():
        if name in frame and parameter.kind == "integer" and parameter.choices:
            values = {text: parameter.parse(text) for text in frame[name].unique()}
            frame[name] = pd.Series([values[text] for text in frame[name]], index=frame.index, dtype=object)
    return frame


def write_trials(path: str | os.PathLike[str], table: pa.Table, about: Mapping[str, Any]) -> None:
    """Write a table of trials as Parquet, under a temporary name first.

    Parameters
    ----------
    path : path-like
    table : pyarrow.Table
        Of `trials_schema`.
    about : mapping
        What it holds: written as metadata, beside the versions of kvsim, schema and model.

    Raises
    ------
    OSError
        If the file cannot be written. Nothing is left behind.
    """
    schema = trials_schema()
    write_table(path, table.cast(schema) if table.schema != schema else table, about)


def write_table(path: str | os.PathLike[str], table: pa.Table, about: Mapping[str, Any]) -> None:
    """Write any table as Parquet with the same metadata, under a temporary name first."""
    table = table.replace_schema_metadata({_KEY: _metadata(about)})
    with atomic_write(path) as temporary, _writer(temporary, table.schema) as writer:
        writer.write_table(table)


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    # With checksums, a byte that a disk has changed is found; without, some are read as other numbers.
    return pq.ParquetWriter(path, schema, write_page_checksum=True)


def about_job(grid: str, seeds: Sequence[int]) -> dict[str, Any]:
    """What the file of a job holds: its scenarios as canonical arguments, and its seeds."""
    return {"scenarios": grid, "seeds": _seeds_text(seeds)}


def _seeds_text(seeds: Sequence[int]) -> str:
    return f"{seeds[0]}:{seeds[-1] + 1}"


def _versions() -> dict[str, Any]:
    return {"kvsim": __version__, "schema": SCHEMA_VERSION, "model": model_digest(), "engines": ENGINES}


def _metadata(about: Mapping[str, Any]) -> bytes:
    return json.dumps({**_versions(), **about}, sort_keys=True).encode()


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file of trials says it holds: versions, and what `write_trials` was told."""
    return _about(pq.read_schema(path).metadata)


def _about(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """What kvsim noted in a file; nothing if kvsim did not write it."""
    try:
        about = json.loads((metadata or {})[_KEY])
    except (KeyError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def read_job(path: str | os.PathLike[str], job: Job) -> pa.Table:
    """Read the file of a job, and check that it is whole, and of this job and this model.

    Raises
    ------
    TrialsError
        If it is not; one line that says why, and how to make it anew.
    """
    problem = _problem(Path(path), job)
    if problem is None:
        try:
            table = pq.read_table(path, partitioning=None, page_checksum_verification=True)
        except _DAMAGED:
            problem = "is damaged"
        else:
            expected = scenario_columns(job.scenarios, _seed_array(job.seeds))
            wrong = [name for name, column in expected.items() if not _equal(table[name], column)]
            if not wrong:
                return table
            problem = f"has rows of other trials than it says: column {wrong[0]}"
    raise TrialsError([_line(path, problem)])


def _equal(column: pa.ChunkedArray, expected: pa.Array) -> bool:
    return bool(column.equals(pa.chunked_array([expected])))


def _seed_array(seeds: range) -> npt.NDArray[np.uint64]:
    # NumPy's arange would overflow on the last seed there is.
    return np.uint64(seeds.start) + np.arange(len(seeds), dtype=np.uint64)


def _problem(path: Path, job: Job) -> str | None:
    """Say what is wrong with the file of a job, as far as its footer tells; None if nothing is."""
    if not path.exists():
        return _MISSING
    if path.is_dir():
        return "is a folder"
    if path.stat().st_size == 0:
        return "is empty"
    try:
        footer = pq.read_metadata(path)
    except PermissionError:
        return "cannot be read: permission denied"
    except _DAMAGED:
        return "is truncated, or not Parquet"
    about = _about(footer.metadata)
    if not about:
        return "was not written by kvsim"
    versions = _versions()
    for name in ("schema", "model"):
        if about.get(name) != versions[name]:
            return f"is stale: of version {about.get(name)} of the {name}, not {versions[name]}"
    for name, expected in about_job(job.grid, job.seeds).items():
        if about.get(name) != expected:
            return f"is of another job: its {name} are {about.get(name)}, not {expected}"
    try:
        has_columns = footer.schema.to_arrow_schema().equals(trials_schema())
    except _DAMAGED:
        has_columns = False
    if not has_columns:
        return "has other columns than a table of trials"
    rows = len(job.scenarios) * len(job.seeds)
    return None if footer.num_rows == rows else f"has {footer.num_rows} rows, not {rows}"


def _line(path: str | os.PathLike[str], problem: str) -> str:
    remedy = (
        "run the same command again" if problem == _MISSING else "delete it and run the same command again"
    )
    return f"{path} {problem}; to make it anew, {remedy}"


def collect(experiment: Experiment, root: str | os.PathLike[str]) -> Iterator[pa.Table]:
    """Read the trials of an experiment, a cell at a time, rows in the order scenarios x seeds.

    Parameters
    ----------
    experiment : Experiment
    root : path-like
        The folder of results.

    Raises
    ------
    TrialsError
        If files are missing, damaged, stale or of something else: all that their footers tell at once,
        before the first table.
    """
    root = Path(root)
    problems = [(root / job.path, _problem(root / job.path, job)) for job in experiment.jobs]
    lines = [_line(path, problem) for path, problem in problems if problem]
    if lines:
        raise TrialsError(lines)
    blocks = len(experiment.blocks)
    for i in range(0, len(experiment.jobs), blocks):
        jobs = experiment.jobs[i : i + blocks]
        yield _interleave([read_job(root / job.path, job) for job in jobs], len(jobs[0].scenarios))


def _interleave(tables: Sequence[pa.Table], scenarios: int) -> pa.Table:
    """Put blocks of seeds, each scenarios x seeds, together as scenarios x all seeds."""
    if len(tables) == 1:
        return tables[0]
    lengths = [len(table) // scenarios for table in tables]
    starts = np.cumsum([0, *(len(table) for table in tables[:-1])])
    order = np.concatenate(
        [
            np.arange(start + scenario * length, start + (scenario + 1) * length)
            for scenario in range(scenarios)
            for start, length in zip(starts, lengths, strict=True)
        ]
    )
    return pa.concat_tables(tables).take(arrow_array(order, "int64"))


def write_experiment(
    tables: Iterable[pa.Table], output: str | os.PathLike[str], about: Mapping[str, Any]
) -> Iterator[pa.Table]:
    """Write the tables of an experiment into one Parquet file, one row group each, and pass them on.

    The file appears, whole, when the last table has been taken: one walk over the trials serves the file
    and the summary, and only one cell is in memory at a time.
    """
    schema = trials_schema().with_metadata({_KEY: _metadata(about)})
    with atomic_write(output) as temporary, _writer(temporary, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))
            yield table


def read_trials(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a file of trials as `kvsim.simulate` returns them, or some of its columns."""
    frame = pq.read_table(path, columns=columns, partitioning=None).to_pandas()
    return numbered_prompts(frame)
