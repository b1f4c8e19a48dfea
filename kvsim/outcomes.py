"""What a trial yields: every outcome, with its unit and meaning, and the columns of a table of trials."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvsim.scenario import PARAMETERS, Parameter


@dataclass(frozen=True)
class Outcome:
    """The declaration of one outcome of a trial.

    Attributes
    ----------
    name : str
        Its column.
    unit : str
        Its unit, as it stands on an axis.
    label : str
        What it is, in a few words: axes and table heads.
    doc : str
        What it is, exactly.
    dtype : {"int64", "float64"}
        The type of its column.
    share : bool
        Whether it lies between 0 and 1.
    missing : float or None
        The value that stands for "this trial has none": never averaged, always counted.
    """

    name: str
    unit: str
    label: str
    doc: str
    dtype: str = "int64"
    share: bool = False
    missing: float | None = None


_ALL = (
    Outcome("pages", "pages", "context", "pages that the oversized request reads or writes"),
    Outcome(
        "foreign_pages",
        "pages",
        "foreign pages",
        "pages read that another request wrote",
    ),
    Outcome("never_written", "pages", "never written", "pages read that nobody has written yet"),
    Outcome(
        "foreign_frac",
        "share of context",
        "foreign share of context",
        "foreign_pages / pages; the placeholder's own page stays in the denominator",
        "float64",
        share=True,
    ),
    Outcome(
        "distinct_requests",
        "requests",
        "requests exposed",
        "other requests of which at least one page was read",
    ),
    Outcome(
        "distinct_tenants",
        "tenants",
        "tenants exposed",
        "tenants that these requests belong to",
    ),
    Outcome(
        "median_age",
        "requests finished since",
        "median age of residue",
        "median over the exposed requests of the requests finished since they finished",
        "float64",
        missing=math.nan,
    ),
    Outcome(
        "max_age",
        "requests finished since",
        "largest age of residue",
        "the largest of these ages",
        missing=-1,
    ),
    Outcome(
        "median_age_steps",
        "steps since finished",
        "median age of residue",
        "median over the exposed requests of the steps since they finished",
        "float64",
        missing=math.nan,
    ),
    Outcome(
        "max_age_steps",
        "steps since finished",
        "largest age of residue",
        "the largest of these ages",
        missing=-1,
    ),
    Outcome(
        "largest_request_pages",
        "pages",
        "pages of the largest request",
        "pages read of the one request of which most was read",
    ),
    Outcome(
        "largest_request_frac",
        "share of context",
        "share of the largest request",
        "largest_request_pages / pages",
        "float64",
        share=True,
    ),
    Outcome(
        "largest_tenant_pages",
        "pages",
        "pages of the largest tenant",
        "pages read of the one tenant of whom most was read",
    ),
    Outcome(
        "largest_tenant_frac",
        "share of context",
        "share of the largest tenant",
        "largest_tenant_pages / pages",
        "float64",
        share=True,
    ),
    Outcome(
        "kv_cache_usage",
        "share of pool pages",
        "KV-cache usage",
        "used pages / pool_pages when the warm-up ends",
        "float64",
        share=True,
    ),
    Outcome("used_pages", "pages", "used pages", "pages in use when the warm-up ends"),
    Outcome("live_requests", "requests", "live requests", "requests that hold pages when the warm-up ends"),
    Outcome(
        "requests_seen",
        "requests",
        "requests seen",
        "background requests that arrived during the warm-up, the dropped ones included",
    ),
    Outcome(
        "requests_finished",
        "requests",
        "requests finished",
        "background requests finished when the warm-up ends",
    ),
    Outcome(
        "requests_dropped",
        "requests",
        "requests dropped",
        "background requests dropped because the pool had too few free pages",
    ),
    Outcome(
        "requests_retracted",
        "requests",
        "requests retracted",
        "live requests that gave way because decoding found no free page; finished, too, from then on",
    ),
    Outcome(
        "drain_steps",
        "steps",
        "drain",
        "steps that the oversized request waits, with arrivals stopped, until the pool has room",
    ),
    Outcome("prompt_tokens_drawn", "tokens", "prompt", "tokens of the oversized request's prompt"),
)

OUTCOMES: dict[str, Outcome] = {outcome.name: outcome for outcome in _ALL}
"""Every outcome of a trial by name, in the order of the columns."""

TRIAL_COLUMNS: tuple[str, ...] = (*PARAMETERS, "seed", *OUTCOMES)
"""The columns of a table of trials: the scenario, the seed, the outcomes."""


def column_type(name: str) -> str:
    """The type of a column of trials: ``string``, ``int64``, ``uint64`` or ``float64``.

    A parameter that takes words beside integers (`prompt_tokens`) is text in files.
    """
    if name == "seed":
        return "uint64"
    declared: Outcome | Parameter | None = OUTCOMES.get(name) or PARAMETERS.get(name)
    if declared is None:
        raise KeyError(name)
    if isinstance(declared, Outcome):
        return declared.dtype
    if declared.choices:
        return "string"
    return "int64" if declared.kind == "integer" else "float64"
