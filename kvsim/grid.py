"""From a config to scenarios and jobs: what a study runs, and where each part of it is written.

A config is YAML for people. `load_config` reads it strictly, reports every problem at once, and yields an
`Experiment` per entry: its scenarios, its seeds, and its jobs. All names and orders are canonical: the same
content, in whatever order or spelling, gives the same `Config`.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kvsim.scenario import MAX_SEED, PARAMETERS, Parameter, Scenario, Value, as_text, scenario_name

INNER = ("warm_steps", "prompt_tokens")
"""Parameters in which scenarios may differ and still share a server: they never split jobs."""

OUTER = tuple(name for name in PARAMETERS if name not in INNER)
"""The parameters that may split jobs."""

FIRST_SEED = 20261027
SEED_COUNT = 30
SEEDS_PER_JOB = 1000

MAX_SCENARIOS = 200_000
MAX_JOBS = 200_000
MAX_CELL_BYTES = 180

_MAX_DEPTH = 30
_MAX_NODES = 1_000_000
_SHOWN = 60

Key = tuple[str | int, ...]
Axes = dict[str, tuple[Value, ...]]
FigureCheck = Callable[[Mapping[str, Any], "Experiment"], list[str]]


class ConfigError(ValueError):
    """A config that cannot be used.

    Attributes
    ----------
    lines : list of str
        Every problem, one line each: file and line, the key's path, the value, and what is allowed.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))


@dataclass(frozen=True)
class Job:
    """One process: the scenarios of a cell for a block of seeds, written to one file.

    Attributes
    ----------
    experiment : str
    cell : str
        Canonical name of the outer parameters that differ from the defaults, e.g.
        ``policy=fifo+utilisation=0.3``; ``default`` if none does.
        Those that vary inside the job are not in it.
    seeds : range
    scenarios : tuple of Scenario
        In canonical order.
    grid : str
        The scenarios as canonical command-line text, e.g. ``--grid 'policy=fifo warm_steps=0,5'``.
    """

    experiment: str
    cell: str
    seeds: range
    scenarios: tuple[Scenario, ...]
    grid: str

    @property
    def path(self) -> str:
        """Its file, relative to the folder of results."""
        return f"{self.experiment}/trials/{self.cell}/{self.seeds[0]}-{self.seeds[-1]}.parquet"

    @property
    def arguments(self) -> str:
        """What ``kvsim run`` needs to run it, the output apart: canonical text, quoted for a shell."""
        return f"{self.grid} --seeds {self.seeds.start}:{self.seeds.stop}"


@dataclass(frozen=True)
class Experiment:
    """A named set of scenarios that run on the same seeds.

    Attributes
    ----------
    name : str
    scenarios : tuple of Scenario
        Without duplicates, in canonical order: cell by cell, parameters in the order of the columns,
        values ascending, words in the order of their declaration.
    seeds : range
    job_by : tuple of str
        The outer parameters whose values split jobs.
    seeds_per_job : int
        Block k of the seeds starts at ``first + k * seeds_per_job``.
    """

    name: str
    scenarios: tuple[Scenario, ...]
    seeds: range
    job_by: tuple[str, ...] = OUTER
    seeds_per_job: int = SEEDS_PER_JOB

    @cached_property
    def dimensions(self) -> tuple[str, ...]:
        """The parameters that take more than one value in it, in the order of the columns."""
        first = self.scenarios[0]
        return tuple(
            name
            for name in PARAMETERS
            if any(getattr(s, name) != getattr(first, name) for s in self.scenarios)
        )

    @cached_property
    def cells(self) -> dict[str, tuple[Scenario, ...]]:
        """The scenarios of each job by the canonical name of what they share."""
        named = [name for name in OUTER if name in self.job_by or name not in self.dimensions]
        cells: defaultdict[tuple[Value, ...], list[Scenario]] = defaultdict(list)
        for scenario in self.scenarios:
            cells[tuple(getattr(scenario, name) for name in named)].append(scenario)
        return {
            _file_name(scenario_name(dict(zip(named, values, strict=True)))): tuple(scenarios)
            for values, scenarios in cells.items()
        }

    @cached_property
    def blocks(self) -> tuple[range, ...]:
        """The blocks of seeds, one job each."""
        starts = range(self.seeds.start, self.seeds.stop, self.seeds_per_job)
        return tuple(range(start, min(start + self.seeds_per_job, self.seeds.stop)) for start in starts)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """Its jobs, cell by cell."""
        return tuple(
            Job(self.name, cell, block, scenarios, grid)
            for cell, scenarios in self.cells.items()
            for grid in [grid_arguments(scenarios)]
            for block in self.blocks
        )


@dataclass(frozen=True)
class Config:
    """A whole study.

    Attributes
    ----------
    experiments : dict of str to Experiment
    figures : dict of str to dict
        Declarations of figures, as they stand in the config (1.0 as 1).
    """

    experiments: dict[str, Experiment]
    figures: dict[str, dict[str, Any]]

    @cached_property
    def digest(self) -> str:
        """Digest of what the study is, 16 hexadecimal digits.

        The order and spelling of the config, and how its jobs are split, change nothing.
        """
        content = {
            "experiments": {
                name: [grid_arguments(canonical_order(e.scenarios)), e.seeds.start, e.seeds.stop]
                for name, e in self.experiments.items()
            },
            "figures": self.figures,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def load_config(
    paths: Sequence[str | Path],
    overrides: Mapping[str, Any] | None = None,
    *,
    figure_check: FigureCheck | None = None,
) -> Config:
    """Read a config from one or several YAML files.

    Parameters
    ----------
    paths : sequence of path-like
        Later files change earlier ones: mappings are merged, anything else is replaced.
    overrides : mapping, optional
        Merged last.
    figure_check : callable, optional
        Gives the problems of a figure's declaration, for a declaration and the experiment that it names.

    Raises
    ------
    ConfigError
        If a file cannot be read, or anything in it is wrong. It lists all problems.
    """
    source = _Source()
    content: Any = {}
    for path in paths:
        content = _merged(content, source.read(Path(path)))
    if overrides is not None:
        content = _merged(content, source.plain(overrides, ()))
    if not paths and overrides is None:
        content = None
    if source.unreadable:
        raise ConfigError(source.report())

    for problem in _shape_problems(content):
        source.add(*problem)
    config = _build(content, source, figure_check)
    if source.problems:
        raise ConfigError(source.report())
    return config


def overlaps(config: Config) -> list[str]:
    """Say which experiments share some of their seeds, but not all: one line a pair.

    Experiments on the same seeds are compared on common random numbers, those on disjoint seeds are
    independent; those in between are neither.
    """
    lines = []
    for one, other in itertools.combinations(config.experiments.values(), 2):
        first, last = max(one.seeds[0], other.seeds[0]), min(one.seeds[-1], other.seeds[-1])
        if first <= last and one.seeds != other.seeds:
            lines.append(
                f"{one.name} and {other.name} share {last - first + 1} seeds ({first} to {last}) but not "
                "all: they are neither paired nor independent"
            )
    return lines


# --- Scenarios as text -----------------------------------------------------------------------------


def grid_arguments(scenarios: Sequence[Scenario]) -> str:
    """The canonical ``--grid`` arguments that stand for scenarios, quoted for a shell.

    One argument is a product of values; several are a union. Parameters that neither vary nor differ
    from their defaults are left out. `parse_grid` gives the scenarios back.
    """
    return " ".join(f"--grid {shlex.quote(_product_text(product))}" for product in _products(scenarios))


def parse_grid(texts: Iterable[str]) -> tuple[Scenario, ...]:
    """The scenarios that ``--grid`` arguments stand for, in canonical order, without duplicates.

    Raises
    ------
    ValueError
        If a parameter is unknown or stands twice, a value is not allowed, or there are too many scenarios.
    """
    combinations: dict[tuple[Value, ...], None] = {}
    total = 0
    for text in texts:
        axes: dict[str, tuple[Value, ...]] = {}
        for assignment in [] if text.strip() == "default" else text.split():
            name, values = parse_setting(assignment)
            if name in axes:
                raise ValueError(f"{name}: stands twice in {_shown(text)}; must stand once")
            axes[name] = values
        total += math.prod(map(len, axes.values()))
        if total > MAX_SCENARIOS:
            raise ValueError(f"grid: {total} scenarios are not allowed; must be at most {MAX_SCENARIOS}")
        combinations.update(dict.fromkeys(_combinations(axes, {})))
    return canonical_order(_scenario(values) for values in combinations)


def parse_setting(text: str) -> tuple[str, tuple[Value, ...]]:
    """Split ``name=value,value`` into a parameter's name and its canonical values.

    Raises
    ------
    ValueError
        If it has another form, the parameter is unknown, or a value is not allowed.
    """
    name, equals, values = text.partition("=")
    if not equals:
        raise ValueError(f"{_shown(text)} is not allowed; must be parameter=value or parameter=value,value")
    if name not in PARAMETERS:
        raise ValueError(f"{_key((name,))}: is not a parameter; {did_you_mean(name, PARAMETERS)}")
    return name, tuple(PARAMETERS[name].parse(value) for value in values.split(","))


def parse_seeds(text: str) -> range:
    """The seeds that ``first:stop`` stands for (`stop` excluded), or the one seed of ``first``.

    Raises
    ------
    ValueError
        If the range is empty, or a seed is not from 0 to 2**64 - 1.
    """
    match = re.fullmatch(r"(\d{1,30})(?::(\d{1,30}))?", text, re.ASCII)
    if not match:
        raise ValueError(f"seeds: {_shown(text)} is not allowed; must be first:stop, e.g. 5:25, or one seed")
    first = int(match[1])
    stop = int(match[2]) if match[2] else first + 1
    if first >= stop:
        raise ValueError(f"seeds: {text} is empty; the second number must be larger than the first")
    if stop - 1 > MAX_SEED:
        raise ValueError(f"seeds: {text} is not allowed; must be from 0 to {MAX_SEED}")
    return range(first, stop)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message on an unknown name: the nearest known one, else all of them."""
    known = list(known)
    near = difflib.get_close_matches(str(name)[:_SHOWN], known, n=1)
    return f"did you mean {near[0]}?" if near else f"must be one of {', '.join(known)}"


def canonical_order(scenarios: Iterable[Scenario], first: Sequence[str] = ()) -> tuple[Scenario, ...]:
    """Sort scenarios by their parameters: `first`, the other outer ones, the inner ones."""
    outer = [name for name in OUTER if name not in first]
    keys = [(name, _value_key(PARAMETERS[name])) for name in (*first, *outer, *INNER)]
    return tuple(sorted(scenarios, key=lambda s: [key(getattr(s, name)) for name, key in keys]))


def _value_key(parameter: Parameter) -> Callable[[Value], tuple[int, Value]]:
    words = {word: (place, 0) for place, word in enumerate(parameter.choices)}
    return lambda value: words.get(value) or (len(words), value)  # type: ignore[arg-type]


def _products(scenarios: Sequence[Scenario]) -> list[Axes]:
    """Merge scenarios into few products of values, greedily along one parameter at a time."""
    varying = [n for n in PARAMETERS if any(getattr(s, n) != getattr(scenarios[0], n) for s in scenarios)]
    products: list[tuple[tuple[Value, ...], ...]] = [
        tuple((getattr(s, name),) for name in varying) for s in scenarios
    ]
    for place, name in enumerate(varying):
        merged: defaultdict[Any, set[Value]] = defaultdict(set)
        for product in products:
            merged[product[:place], product[place + 1 :]].update(product[place])
        key = _value_key(PARAMETERS[name])
        products = [
            (*before, tuple(sorted(values, key=key)), *after) for (before, after), values in merged.items()
        ]
    shared = {name: (getattr(scenarios[0], name),) for name in PARAMETERS if name not in varying}
    return [{**shared, **dict(zip(varying, product, strict=True))} for product in products]


def _product_text(axes: Axes) -> str:
    stated = (
        f"{name}={','.join(map(as_text, axes[name]))}"
        for name, parameter in PARAMETERS.items()
        if axes[name] != (parameter.default,)
    )
    return " ".join(stated) or "default"


def _file_name(name: str) -> str:
    """Fit a cell's name to a file system: cut and marked by a digest if it is long or has odd letters.

    Plus signs stand for commas, at which Snakemake splits the wildcards of a cluster job.
    """
    name = name.replace(",", "+")
    fit = re.sub(r"[^A-Za-z0-9_.=+-]", "_", name)
    if fit == name and len(name) <= MAX_CELL_BYTES:
        return name
    return f"{fit[: MAX_CELL_BYTES - 13]}~{hashlib.sha256(name.encode()).hexdigest()[:12]}"


# --- Reading YAML strictly -------------------------------------------------------------------------


class _Problem(NamedTuple):
    """Where something is wrong (a key's path, or nowhere in particular), and what."""

    key: Key
    text: str


class _Source:
    """The files of a config: where each key stands, and what is wrong so far."""

    def __init__(self) -> None:
        self.places: dict[Key, tuple[int, int]] = {}
        self.problems: dict[tuple[int, int, str], None] = {}
        self.troubled: set[Key] = set()
        self._holders: set[Key] = set()
        self.unreadable = False
        self._files: list[str] = []
        self._nodes = 0

    def read(self, path: Path) -> Any:
        """Read one file; its problems are noted."""
        self._files.append(str(path))
        try:
            text = path.read_bytes().decode("utf-8-sig")
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            if root is not None:
                return self._value(root, (), ())
            self._refuse(1, "is empty; must be a mapping with experiments")
        except OSError as error:
            self._refuse(0, f"cannot be read: {error.strerror}")
        except ValueError as error:
            # UnicodeDecodeError, or a path or a character that the system or YAML has no name for.
            kind = "is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else "cannot be read"
            self._refuse(0, kind)
        except RecursionError:
            self._refuse(0, "is nested too deeply")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._refuse(mark.line + 1 if mark else 0, _yaml_problem(error))
        except yaml.YAMLError:
            self._refuse(0, "is not YAML: it has characters that YAML does not allow")
        return {}

    def _refuse(self, line: int, text: str) -> None:
        self.unreadable = True
        self.problems[len(self._files) - 1, line, text] = None

    def plain(self, value: Any, key: Key) -> Any:
        """Check a value that came from Python, not from a file."""
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    self.add(key, f"the key {_shown(name)} is not text; must be a name")
            items = {n: v for n, v in value.items() if isinstance(n, str)}
            for name in items:
                self.places[(*key, name)] = (len(self._files), 0)
            return {n: self.plain(v, (*key, n)) for n, v in items.items()} if self._descend(key) else None
        if isinstance(value, list | tuple):
            return [self.plain(v, (*key, i)) for i, v in enumerate(value)] if self._descend(key) else None
        if isinstance(value, float) and not math.isfinite(value):
            self.add(key, f"{_shown(value)} is not allowed; must be a finite number")
        elif value is not None and not isinstance(value, bool | int | float | str):
            self.add(
                key, f"a {type(value).__name__} is not allowed; must be text, a number, a list or a mapping"
            )
            return None
        return value

    def add(self, key: Key, text: str, place: tuple[int, int] | None = None) -> None:
        """Note a problem, unless the same key has been found wrong already."""
        if place is None and key in self.troubled:
            return
        self.troubled.add(key)
        self._holders.update(key[:n] for n in range(len(key)))
        if place is None:
            known = (key[:n] for n in range(len(key), -1, -1) if key[:n] in self.places)
            place = self.places.get(next(known, ()), (len(self._files), 0))
        self.problems[(*place, f"{_key(key)}: {text}" if key else text)] = None

    def is_sound(self, key: Key) -> bool:
        """Whether nothing has been found wrong at a key, in what it holds, or in what holds it."""
        held = any(key[:n] in self.troubled for n in range(len(key) + 1))
        return not held and key not in self._holders

    def report(self) -> list[str]:
        """All problems in the order of the files and lines."""
        lines = []
        for file, line, text in sorted(self.problems, key=lambda problem: problem[:2]):
            places = [*self._files[file : file + 1], *([str(line)] if line else [])]
            lines.append(_printable(": ".join([":".join(places)] * bool(places) + [text])))
        return lines

    def _descend(self, key: Key) -> bool:
        self._nodes += 1
        if len(key) > _MAX_DEPTH or self._nodes > _MAX_NODES:
            self.add(key[:1], "is nested too deeply" if len(key) > _MAX_DEPTH else "holds too many values")
            return False
        return True

    def _value(self, node: yaml.Node, key: Key, inside: tuple[yaml.Node, ...]) -> Any:
        place = (len(self._files) - 1, node.start_mark.line + 1)
        self.places[key] = place
        if not self._descend(key):
            return None
        if node in inside:
            self.add(key, "refers to itself; must be written out", place)
            return None
        kinds: dict[type[yaml.Node], str] = {yaml.MappingNode: "map", yaml.SequenceNode: "seq"}
        collection = kinds.get(type(node))
        if collection and node.tag != _TAGS + collection:
            self.add(key, f"has the tag {_cut(node.tag)}; must have none", place)
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key, (*inside, node))
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*key, i), (*inside, node)) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        try:
            return _scalar(node)
        except ValueError as error:
            self.add(key, f"{_cut(node.value)} {error}", place)
            return None

    def _mapping(self, node: yaml.MappingNode, key: Key, inside: tuple[yaml.Node, ...]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for name_node, item in node.value:
            line = name_node.start_mark.line + 1
            place = (len(self._files) - 1, line)
            try:
                name = _scalar(name_node) if isinstance(name_node, yaml.ScalarNode) else None
                if not isinstance(name, str):
                    raise ValueError("is not text; must be a name")
                if name_node.tag.endswith(":merge") and name_node.style is None:
                    raise ValueError("is not allowed; must be written out")
            except ValueError as error:
                shown = name_node.value if isinstance(name_node, yaml.ScalarNode) else "a list or a mapping"
                self.add((*key, shown), f"as a key {error}", place)
                # It stays, so that what holds it does not look empty.
                content.setdefault(shown, None)
                continue
            if name in seen:
                self.add(
                    (*key, name), f"stands twice; must stand once (it is on line {seen[name]} too)", place
                )
            seen.setdefault(name, line)
            value = self._value(item, (*key, name), inside)
            content[name] = _merged(content.get(name), value)
            self.places[(*key, name)] = place
        return content


_TAGS = "tag:yaml.org,2002:"
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?", re.ASCII)
_DECIMAL_INTEGER = re.compile(r"[-+]?(0|[1-9][\d_]*)", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.?(nan|inf|infinity)", re.IGNORECASE)


def _scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar; a plain one that YAML 1.1 takes for something else is refused."""
    text, tag = node.value, node.tag.removeprefix(_TAGS)
    if tag not in {"null", "bool", "int", "float", "str", "timestamp", "merge", "value"}:
        raise ValueError(f"has the tag {_cut(node.tag)}; must have none")
    if node.style is not None:
        return text
    if tag == "null":
        return None
    if tag == "bool":
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        meant = str(text.lower() in ("yes", "on", "y")).lower()
        raise ValueError(f'is {meant} in YAML 1.1; must be "{_cut(text)}" in quotes if the word is meant')
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("is not allowed; must be a finite number")
    if tag in ("int", "float") and ":" in text:
        raise ValueError(f'is a number of base 60 in YAML 1.1; must be "{_cut(text)}" in quotes')
    if not _NUMBER.fullmatch(text):
        if tag in ("int", "float"):
            raise ValueError("is not a decimal number; must be one")
        return text
    return _number(text, tag)


def _number(text: str, tag: str) -> int | float:
    digits = text.replace("_", "")
    if len(digits) > 400 or not math.isfinite(float(digits)):
        raise ValueError("is not allowed; must be a finite number, shorter than 400 digits")
    if tag == "int" and _DECIMAL_INTEGER.fullmatch(text):
        return int(digits)
    if tag == "float":
        return float(digits)
    plain = as_text(float(digits))
    if "e" in plain:
        mantissa, _, exponent = plain.partition("e")
        plain = f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent):+d}"
    if tag == "int":
        # PyYAML takes digits after a zero for octal ones; 08 and 09 it takes for text.
        raise ValueError(f"is {int(digits, 8)} in YAML 1.1; must be {plain}, without leading zeros")
    raise ValueError(f"is text in YAML 1.1; must be {plain}")


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    problem = " ".join(str(error.problem or error.context).split())
    if r"'\t'" in problem or "'\\t'" in problem:
        return "a tab; must be spaces"
    return f"is not YAML: {problem}"


def _merged(content: Any, change: Any) -> Any:
    if not (isinstance(content, dict) and isinstance(change, dict)):
        return change
    return {**content, **{k: _merged(content[k], v) if k in content else v for k, v in change.items()}}


def _key(key: Key) -> str:
    """A key's path as text: ``experiments.load.grid[1].utilisation``."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_-]{1,80}", part)
            text += ("." if text else "") + (part if plain else _shown(part))
    return text


def _shown(value: Any) -> str:
    """A value as YAML would have it, cut if it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return _cut(text)


def _cut(text: str) -> str:
    return _printable(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- Shape: the schema -----------------------------------------------------------------------------


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a config: ``config.schema.yaml`` filled in from the parameters of `Scenario`."""
    text = Path(__file__).with_name("config.schema.yaml").read_text(encoding="utf-8")
    schema: dict[str, Any] = yaml.safe_load(text)
    parts = schema["$defs"]
    values = {name: _value_schema(parameter) for name, parameter in PARAMETERS.items()}
    parts["defaults"]["properties"] = values
    axes = {name: _axis_schema(parameter, values[name]) for name, parameter in PARAMETERS.items()}
    parts["grid"]["properties"] = parts["exclude"]["properties"] = axes
    parts["job_by"] |= {
        "enum": list(OUTER),
        "description": f"a parameter other than {' and '.join(INNER)}, which share a server",
    }
    return schema


def _value_schema(parameter: Parameter) -> dict[str, Any]:
    number: dict[str, Any] = {"type": parameter.kind}
    if math.isfinite(parameter.minimum):
        number["minimum"] = parameter.minimum
    if math.isfinite(parameter.maximum):
        number["maximum"] = parameter.maximum
    words = {"enum": list(parameter.choices)}
    if parameter.kind == "choice":
        shape: dict[str, Any] = words
    elif parameter.choices:
        shape = {"anyOf": [words, number]}
    else:
        shape = number
    return {"description": parameter.allowed, "title": parameter.doc, **shape}


def _axis_schema(parameter: Parameter, value: dict[str, Any]) -> dict[str, Any]:
    entry = value
    if parameter.kind != "choice":
        entry = {"if": {"type": "object"}, "then": {"$ref": "#/$defs/range"}, "else": value}
    several = {"description": "a list of at least one value", "minItems": 1, "items": entry}
    return {"if": {"type": "array"}, "then": several, "else": entry}


def _shape_problems(content: Any) -> Iterator[_Problem]:
    for error in _validator().iter_errors(content):
        yield from _schema_problems(error)


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(config_schema())


def _schema_problems(error: Any) -> Iterator[_Problem]:
    key, value, allowed = tuple(error.absolute_path), error.instance, error.schema.get("description")
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        for name in value:
            if name not in known:
                yield _Problem((*key, name), f"is not a known key; {did_you_mean(name, known)}")
    elif error.validator == "required":
        for name in error.validator_value:
            if name not in value:
                yield _Problem((*key, name), f"is missing; must be {_described(error.schema, name)}")
    elif "propertyNames" in error.absolute_schema_path:
        yield _Problem((*key, value), f"is not allowed as a name; must be {allowed}")
    else:
        known = [word for word in error.schema.get("enum", ()) if isinstance(value, str)]
        misspelt = str(value)[:_SHOWN]
        near = [] if misspelt in PARAMETERS else difflib.get_close_matches(misspelt, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield _Problem(key, f"{_shown(value)} is not allowed; must be {allowed}{hint}")


def _described(schema: Mapping[str, Any], name: str) -> str:
    return str(schema["properties"][name].get("description", "given"))


# --- Content: scenarios ----------------------------------------------------------------------------


def _build(content: Any, source: _Source, figure_check: FigureCheck | None) -> Config:
    """Build what is sound of a config; what is not, is noted in `source`."""
    content = content if isinstance(content, dict) else {}
    experiments: dict[str, Experiment] = {}
    declared = content.get("experiments")
    for name, entry in declared.items() if isinstance(declared, dict) else ():
        experiment = _experiment(name, entry, content, source) if isinstance(entry, dict) else None
        if experiment is not None:
            experiments[name] = experiment
    figures = content.get("figures")
    for name, figure in figures.items() if isinstance(figures, dict) else ():
        if source.is_sound(("figures", name)) and isinstance(declared, dict):
            _check_figure(name, figure, declared, experiments, source, figure_check)
    return Config(experiments, _canonical_numbers(figures) if isinstance(figures, dict) else {})


def _canonical_numbers(content: Any) -> Any:
    """Nested values with 1 for 1.0, so that the spelling of a number changes no figure."""
    if isinstance(content, dict):
        return {name: _canonical_numbers(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_canonical_numbers(value) for value in content]
    return int(content) if isinstance(content, float) and content.is_integer() else content


def _check_figure(
    name: str,
    figure: Mapping[str, Any],
    declared: Mapping[str, Any],
    experiments: Mapping[str, Experiment],
    source: _Source,
    figure_check: FigureCheck | None,
) -> None:
    key, shown = ("figures", name), figure["experiment"]
    if shown not in declared:
        text = f"{_shown(shown)} is not an experiment; {did_you_mean(shown, declared)}"
        source.add((*key, "experiment"), text)
    elif figure_check is not None and shown in experiments:
        for line in figure_check(figure, experiments[shown]):
            part, _, text = line.partition(": ")
            place = source.places.get((*key, part), source.places.get(key))
            source.add((*key, part), text, place)


def _experiment(
    name: str, entry: Mapping[str, Any], content: Mapping[str, Any], source: _Source
) -> Experiment | None:
    key: Key = ("experiments", name)
    products, exclude = _written_out(entry, key, source)
    seeds = _seeds(entry, content, key, source)
    if not all(source.is_sound(part) for part in (key, ("defaults",), ("seeds",))):
        return None
    defaults = {**content.get("defaults", {}), **entry.get("defaults", {})}
    scenarios = _scenarios(products, exclude, defaults, key, source)
    if not scenarios:
        return None
    job_by = tuple(p for p in OUTER if p in entry.get("job_by", OUTER))
    experiment = Experiment(
        name=name,
        scenarios=canonical_order(scenarios, job_by),
        seeds=seeds,
        job_by=job_by,
        seeds_per_job=int(entry.get("seeds_per_job", SEEDS_PER_JOB)),
    )
    jobs = len(experiment.cells) * -(-(seeds.stop - seeds.start) // experiment.seeds_per_job)
    if jobs > MAX_JOBS:
        text = f"{jobs} jobs are not allowed; must be at most {MAX_JOBS}: set job_by or seeds_per_job"
        source.add(key, text)
    return experiment


def _seeds(entry: Mapping[str, Any], content: Mapping[str, Any], key: Key, source: _Source) -> range:
    """The seeds of an experiment; empty if they are found wrong."""
    places = [place for place in (("seeds",), (*key, "seeds")) if source.is_sound(place)]
    if len(places) < 2:
        return range(0)
    stated = {**content.get("seeds", {}), **entry.get("seeds", {})}
    first, count = int(stated.get("first", FIRST_SEED)), int(stated.get("count", SEED_COUNT))
    if first + count - 1 > MAX_SEED:
        text = f"the last of {count} seeds from {first} is not allowed; must be at most {MAX_SEED}"
        source.add((*key, "seeds"), text)
    return range(first, first + count)


def _written_out(
    entry: Mapping[str, Any], key: Key, source: _Source
) -> tuple[list[tuple[Key, Axes]], list[tuple[Key, Axes]]]:
    """The products of an experiment's grid and its excluded ones, each with its place."""
    grid = entry.get("grid", {})
    place: Key = (*key, "grid")
    products = (
        _listed_axes(grid, place, source) if isinstance(grid, list) else [(place, _axes(grid, place, source))]
    )
    return products, _listed_axes(entry.get("exclude", []), (*key, "exclude"), source)


def _listed_axes(mappings: Any, key: Key, source: _Source) -> list[tuple[Key, Axes]]:
    listed = mappings if isinstance(mappings, list) else []
    return [((*key, i), _axes(mapping, (*key, i), source)) for i, mapping in enumerate(listed)]


def _axes(mapping: Any, key: Key, source: _Source) -> Axes:
    """The values of each parameter of a grid, ranges written out; what is wrong with them is noted."""
    axes: Axes = {}
    for name, entry in mapping.items() if isinstance(mapping, dict) else ():
        if source.is_sound((*key, name)):
            listed = isinstance(entry, list)
            values: list[Value] = []
            for i, item in enumerate(entry if listed else [entry]):
                values += _values(item, PARAMETERS[name], (*key, name, i) if listed else (*key, name), source)
            axes[name] = tuple(dict.fromkeys(values))
    return axes


def _values(item: Any, parameter: Parameter, key: Key, source: _Source) -> list[Value]:
    try:
        return range_values(item, parameter) if isinstance(item, dict) else [parameter.canonical(item)]
    except ValueError as error:
        source.add(key, str(error).removeprefix(f"{parameter.name}: "))
        return []


def _scenarios(
    products: Sequence[tuple[Key, Axes]],
    exclude: Sequence[tuple[Key, Axes]],
    defaults: Mapping[str, Any],
    key: Key,
    source: _Source,
) -> list[Scenario]:
    """Expand a sound grid; empty if it is found wrong."""
    total = sum(math.prod(map(len, axes.values())) for _, axes in products)
    if total > MAX_SCENARIOS:
        source.add((*key, "grid"), f"{total} scenarios are not allowed; must be at most {MAX_SCENARIOS}")
        return []
    combinations: dict[tuple[Value, ...], Key] = {}
    for place, axes in products:
        for values in _combinations(axes, defaults):
            combinations.setdefault(values, place)
    for place, partial in exclude:
        wanted = [(list(PARAMETERS).index(name), set(values)) for name, values in partial.items()]
        matched = [values for values in combinations if all(values[at] in some for at, some in wanted)]
        if not matched:
            source.add(place, "matches no scenario; must match at least one that is left")
        for values in matched:
            del combinations[values]
    if not combinations:
        source.add((*key, "exclude"), "leaves no scenario; must leave at least one")
    return _possible(combinations, source)


def _possible(combinations: Mapping[tuple[Value, ...], Key], source: _Source) -> list[Scenario]:
    """Make scenarios; a combination that cannot exist is noted, once for each reason."""
    scenarios = []
    refused: dict[str, tuple[Key, str, str]] = {}
    alike: defaultdict[str, int] = defaultdict(int)
    for values, place in combinations.items():
        try:
            scenarios.append(_scenario(values))
        except ValueError as error:
            reason = re.sub(r"\d[\d.e+-]*", "#", str(error))
            name = scenario_name(dict(zip(PARAMETERS, values, strict=True)))
            refused.setdefault(reason, (place, name, str(error)))
            alike[reason] += 1
    for reason, (place, name, text) in refused.items():
        others = f" (and {alike[reason] - 1} more like it)" if alike[reason] > 1 else ""
        # Noted at its place even where something else is: every reason counts.
        line = source.places.get(place) or source.places.get(place[:2])
        source.add(place, f"{_cut(name)} cannot exist: {text}{others}", line)
    return [] if refused else scenarios


def _scenario(values: tuple[Value, ...]) -> Scenario:
    return Scenario(**dict(zip(PARAMETERS, values, strict=True)))  # type: ignore[arg-type]


def _combinations(
    axes: Mapping[str, Sequence[Value]], fixed: Mapping[str, Any]
) -> Iterator[tuple[Value, ...]]:
    """Every full combination of values, in the order of the parameters."""
    default = {n: p.canonical(fixed[n]) if n in fixed else p.default for n, p in PARAMETERS.items()}
    return itertools.product(*(axes.get(name, (default[name],)) for name in PARAMETERS))


# --- Ranges ----------------------------------------------------------------------------------------


def range_values(spec: Mapping[str, Any], parameter: Parameter) -> list[Value]:
    """Write out a range, exactly: 0.1, 0.2, 0.3, never 0.30000000000000004.

    Parameters
    ----------
    spec : mapping
        ``{from, to, step}``, `to` included where a step hits it, or ``{from, to, num, scale}`` with
        `num` values from `from` to `to`, both included, evenly spaced (`scale: linear`, the default)
        or in equal ratios (`scale: log`).
    parameter : Parameter
        Values are its canonical ones. An integer parameter rounds the values of ``{from, to, num}``
        to integers, without duplicates.

    Raises
    ------
    ValueError
        If the range makes no sense, is too long, or leaves what the parameter allows.
    """
    first, last = _exact(spec["from"]), _exact(spec["to"])
    if first > last:
        raise ValueError(f"{_shown(spec)} is not allowed; from must be at most to")
    if ("step" in spec) == ("num" in spec):
        raise ValueError(f"{_shown(spec)} is not allowed; must have either step or num")
    if "step" in spec:
        if "scale" in spec:
            raise ValueError(f"{_shown(spec)} is not allowed; scale must come with num")
        points = _stepped(first, last, _exact(spec["step"]), spec)
    elif spec.get("scale", "linear") == "linear":
        count = int(spec["num"])
        points = [first + (last - first) * k / (count - 1) for k in range(count)]
    elif first > 0:
        points = _in_ratios(first, last, int(spec["num"]))
    else:
        raise ValueError(f"{_shown(spec)} is not allowed; from must be larger than 0 with scale log")
    if parameter.kind == "integer" and "num" in spec:
        points = [Fraction(math.floor(point + Fraction(1, 2))) for point in points]
    values = [int(p) if p.denominator == 1 else float(p) for p in dict.fromkeys(points)]
    return [parameter.canonical(value) for value in values]


def _exact(number: float) -> Fraction:
    """The decimal number that a text or a literal spells, not the binary one nearest to it."""
    return Fraction(repr(number))


def _stepped(first: Fraction, last: Fraction, step: Fraction, spec: Mapping[str, Any]) -> list[Fraction]:
    count = (last - first) // step + 1
    if count > MAX_SCENARIOS:
        raise ValueError(f"{_shown(spec)} has {count} values; must have at most {MAX_SCENARIOS}")
    return [first + k * step for k in range(count)]


def _in_ratios(first: Fraction, last: Fraction, count: int) -> list[Fraction]:
    """Equal ratios, to 15 significant digits, so that 1 .. 1000 goes through 10 and 100 exactly."""
    working, shown = Context(prec=40), Context(prec=15)
    start, end = (working.divide(Decimal(x.numerator), Decimal(x.denominator)) for x in (first, last))
    ratio = working.ln(working.divide(end, start))
    inner = (
        working.multiply(
            start, working.exp(working.divide(working.multiply(ratio, Decimal(k)), Decimal(count - 1)))
        )
        for k in range(1, count - 1)
    )
    return [first, *(Fraction(shown.plus(point)) for point in inner), last]
