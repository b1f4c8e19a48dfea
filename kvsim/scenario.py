"""What a trial is given: every parameter of the model, with its unit, bounds and default.

A parameter is declared once, as a field of `Scenario`. Checks, command line, config schema, file
names and result columns are all derived from that declaration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

POLICIES = (
    "lifo",
    "fifo",
    "random",
    "sglang-disaggregated",
    "sglang",
    "vllm",
    "vllm-prefix-caching",
    "lmdeploy",
)
"""Allocator policies: the order in which free pages are handed out and taken back."""

ENGINES = {
    "sglang-disaggregated": "SGLang 0.5.23, PagedTokenToKVPoolAllocator, need_sort on",
    "sglang": "SGLang 0.5.23, PagedTokenToKVPoolAllocator, need_sort off",
    "vllm": "vLLM 0.33.0, BlockPool, prefix caching off",
    "vllm-prefix-caching": "vLLM 0.33.0, BlockPool, prefix caching on",
    "lmdeploy": "LMDeploy 0.18.0, LogicalAllocator",
}
"""The engine, version and class that a policy's order was read from."""

MAX_TOKENS = 2**31 - 1
MAX_DECODE_TOKENS = 2**16
MAX_SEED = 2**64 - 1

Value = str | int | float


@dataclass(frozen=True)
class Parameter:
    """The declaration of one `Scenario` field.

    Attributes
    ----------
    name : str
        The field's name: also the config key, the column, and the argument.
    kind : {"choice", "integer", "number"}
        What its values are. An integer parameter may have `choices` too: words that stand for a
        distribution instead of a fixed value.
    unit : str
        The unit of its values; empty for a pure name.
    symbol : str
        The LaTeX symbol that tables use.
    source : str
        Where the default comes from.
    doc : str
        One line that says what it is.
    """

    name: str
    kind: Literal["choice", "integer", "number"]
    default: Value
    unit: str
    symbol: str
    source: str
    doc: str
    choices: tuple[str, ...] = ()
    minimum: float = -math.inf
    maximum: float = math.inf

    @property
    def allowed(self) -> str:
        """What would be right, in words: the end of an error message."""
        words = list(self.choices)
        if self.kind != "choice":
            noun = "an integer" if self.kind == "integer" else "a number"
            words.append(f"{noun} from {as_text(self.minimum)} to {as_text(self.maximum)}")
        return " or ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])

    def canonical(self, value: Any) -> Value:
        """The value in its one canonical form: `str`, `int` or `float`.

        Parameters
        ----------
        value
            A Python or NumPy scalar.

        Raises
        ------
        ValueError
            If it is not allowed; the message names parameter, value and what would be right.
        """
        if hasattr(value, "item") and not hasattr(value, "__len__"):
            value = value.item()
        if isinstance(value, str):
            if value in self.choices:
                return value
        elif self.kind != "choice" and isinstance(value, int | float) and not isinstance(value, bool):
            whole = isinstance(value, int) or value.is_integer()
            if self.minimum <= value <= self.maximum and (whole or self.kind == "number"):
                return int(value) if self.kind == "integer" else float(value)
        raise ValueError(f"{self.name}: {value!r} is not allowed; must be {self.allowed}")

    def parse(self, text: str) -> Value:
        """The value that a text spells, as `as_text` or a command line does.

        Raises
        ------
        ValueError
            As `canonical`.
        """
        if text in self.choices or self.kind == "choice":
            return self.canonical(text)
        try:
            return self.canonical(float(text) if set(text) & set(".eEnN") else int(text))
        except ValueError:
            raise ValueError(f"{self.name}: {text!r} is not allowed; must be {self.allowed}") from None


def as_text(value: Value) -> str:
    """The one canonical spelling of a value: ``0.3`` for 0.30, ``40`` for 40.0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return str(int(value))
    return str(value) if isinstance(value, str) else repr(value)


def _parameter(
    default: Value,
    doc: str,
    *,
    unit: str,
    symbol: str,
    source: str,
    choices: tuple[str, ...] = (),
    minimum: float = -math.inf,
    maximum: float = math.inf,
) -> Any:
    metadata = dict(
        doc=doc,
        unit=unit,
        symbol=symbol,
        source=source,
        choices=choices,
        minimum=minimum,
        maximum=maximum,
    )
    return field(default=default, metadata=metadata)


_REFERENCE = "reference study"
_ISSUE = "sgl-project/sglang issue #30233"


@dataclass(frozen=True)
class Scenario:
    """Every parameter of a trial except the seed.

    A trial is one fresh server that serves background requests for `warm_steps` steps and then
    one oversized request of `prompt_tokens` tokens. Values are checked, and kept in one canonical
    form: ``Scenario(utilisation=1) == Scenario(utilisation=1.0)``.

    Raises
    ------
    ValueError
        If a value is of the wrong type or out of bounds, or if the pool can never hold the
        oversized request. The message names field, value and bound.
    TypeError
        If a field is unknown.
    """

    policy: str = _parameter(
        "lifo",
        "allocator policy: the order in which free pages are handed out and taken back",
        unit="",
        symbol=r"\pi",
        source=_REFERENCE,
        choices=POLICIES,
    )
    utilisation: float = _parameter(
        0.5,
        "cap on admission: a background request arrives only while used pages are below it",
        unit="share of pool pages",
        symbol="u",
        source=_REFERENCE,
        minimum=0,
        maximum=1,
    )
    warm_steps: int = _parameter(
        3000,
        "steps of background traffic before the oversized request comes",
        unit="steps",
        symbol="W",
        source=_REFERENCE,
        minimum=0,
        maximum=10_000_000,
    )
    prompt_tokens: int | str = _parameter(
        "uniform",
        "prompt of the oversized request; uniform draws from prefill_pool_tokens + 1 .. context_tokens",
        unit="tokens",
        symbol="L",
        source=_REFERENCE,
        choices=("uniform",),
        minimum=1,
        maximum=MAX_TOKENS,
    )
    pool_pages: int = _parameter(
        32_768,
        "pages of the decode server's pool",
        unit="pages",
        symbol="N",
        source=_REFERENCE,
        minimum=1,
        maximum=2**27,
    )
    page_size: int = _parameter(
        64,
        "tokens whose keys and values one page holds",
        unit="tokens",
        symbol="s",
        source=_REFERENCE,
        minimum=1,
        maximum=2**20,
    )
    prefill_pool_tokens: int = _parameter(
        681_280,
        "longest prompt that the prefill server accepts",
        unit="tokens",
        symbol=r"L_{\mathrm{prefill}}",
        source=_ISSUE,
        minimum=0,
        maximum=MAX_TOKENS,
    )
    context_tokens: int = _parameter(
        1_048_576,
        "context limit of the model: the longest prompt there is",
        unit="tokens",
        symbol=r"L_{\max}",
        source=_ISSUE,
        minimum=1,
        maximum=MAX_TOKENS,
    )
    request_tokens_median: float = _parameter(
        8_000,
        "median of the log-normal prompt length of background requests",
        unit="tokens",
        symbol="m",
        source=_REFERENCE,
        minimum=1,
        maximum=MAX_TOKENS,
    )
    request_tokens_sigma: float = _parameter(
        1.1,
        "standard deviation of the logarithm of that length",
        unit="",
        symbol=r"\sigma",
        source=_REFERENCE,
        minimum=0,
        maximum=10,
    )
    request_tokens_min: int = _parameter(
        100,
        "shorter background prompts are lengthened to this",
        unit="tokens",
        symbol=r"\ell_{\min}",
        source=_REFERENCE,
        minimum=1,
        maximum=MAX_TOKENS,
    )
    request_tokens_max: int = _parameter(
        400_000,
        "longer background prompts are shortened to this",
        unit="tokens",
        symbol=r"\ell_{\max}",
        source=_REFERENCE,
        minimum=1,
        maximum=MAX_TOKENS,
    )
    request_lifetime_steps: float = _parameter(
        40,
        "mean of the geometric lifetime of a background request",
        unit="steps",
        symbol=r"\tau",
        source=_REFERENCE,
        minimum=1,
        maximum=10_000_000,
    )
    decode_tokens_per_step: int = _parameter(
        0,
        "tokens that every live request produces in a step; with 0 requests hold what their prompts need",
        unit="tokens / step",
        symbol="d",
        source=_REFERENCE,
        minimum=0,
        maximum=MAX_DECODE_TOKENS,
    )
    tenants: int = _parameter(
        200,
        "tenants, equally likely, that background requests belong to",
        unit="tenants",
        symbol="T",
        source=_REFERENCE,
        minimum=1,
        maximum=MAX_TOKENS,
    )

    def __post_init__(self) -> None:
        for name, parameter in PARAMETERS.items():
            object.__setattr__(self, name, parameter.canonical(getattr(self, name)))
        if self.request_tokens_min > self.request_tokens_max:
            raise ValueError(
                f"request_tokens_min: {self.request_tokens_min} is not allowed; "
                f"must be at most request_tokens_max, {self.request_tokens_max}"
            )
        longest, name = self.prompt_tokens, "prompt_tokens"
        if isinstance(longest, str):
            longest, name = self.context_tokens, "context_tokens"
            if longest <= self.prefill_pool_tokens:
                raise ValueError(
                    f"context_tokens: {longest} is not allowed with prompt_tokens uniform; "
                    f"must be larger than prefill_pool_tokens, {self.prefill_pool_tokens}"
                )
        capacity = self.pool_pages * self.page_size
        if longest > capacity:
            raise ValueError(
                f"{name}: {longest} is not allowed; must be at most {capacity}, "
                f"all that {self.pool_pages} pages of {self.page_size} tokens can hold"
            )

    @cached_property
    def name(self) -> str:
        """Its canonical name: the parameters that differ from the defaults, ``default`` if none.

        Two scenarios are equal exactly if their names are.
        """
        return scenario_name({name: getattr(self, name) for name in PARAMETERS})


def scenario_name(values: Mapping[str, Value]) -> str:
    """The canonical name of a full or partial scenario, e.g. ``policy=fifo,utilisation=0.3``.

    Parameters
    ----------
    values : mapping of str to value
        Canonical values by parameter name. Defaults are left out, and the order of the fields is
        that of `Scenario`, so that a new parameter at its default renames nothing.
    """
    return (
        ",".join(
            f"{name}={as_text(values[name])}"
            for name, parameter in PARAMETERS.items()
            if name in values and values[name] != parameter.default
        )
        or "default"
    )


def _declared(f: Any) -> Parameter:
    kind = {"str": "choice", "float": "number"}.get(f.type, "integer")
    default = float(f.default) if kind == "number" else f.default
    return Parameter(name=f.name, kind=kind, default=default, **f.metadata)  # type: ignore[arg-type]


PARAMETERS: dict[str, Parameter] = {f.name: _declared(f) for f in fields(Scenario)}
"""Every parameter of a trial by name, in the order of the columns."""
