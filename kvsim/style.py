"""How every figure of the project looks: colours and markers, sizes, fonts, and how one is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.files import atomic_write, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MILLIMETRE = 1 / 25.4
WIDTHS = {"one": 85 * MILLIMETRE, "two": 178 * MILLIMETRE}
"""Widths of figures in inches, by the columns of a page that they take."""

FORMATS = ("pdf", "svg", "png")


class Look(NamedTuple):
    """How one level of a hue is drawn; hues differ in marker and dash too, not in colour alone.

    Attributes
    ----------
    colour : str
        As ``#rrggbb``.
    marker : str
        A marker of Matplotlib.
    dash : tuple of float
        Lengths of strokes and gaps in line widths; empty for a solid line.
    width : float
        Width of the line in points.
    """

    colour: str
    marker: str
    dash: tuple[float, ...] = ()
    width: float = 1.2


PALETTE: dict[str, Look] = {
    # The incident's own engine and role stands out: the one red, the widest line.
    "sglang-disaggregated": Look("#D55E00", "o", (), 2.2),
    "lifo": Look("#0072B2", "s", (4, 1.5)),
    "fifo": Look("#E69F00", "^", (1, 1)),
    "random": Look("#009E73", "D", (5, 1.5, 1, 1.5)),
    "sglang": Look("#CC79A7", "v", (6, 2)),
    "vllm": Look("#56B4E9", "P", (2, 1)),
    "vllm-prefix-caching": Look("#332288", "X", (4, 1.5, 1, 1, 1, 1.5)),
    "lmdeploy": Look("#4D4D4D", "h", (2, 2)),
}
"""The look of each allocator policy, the same in every figure.

Any two stay apart under simulated protanopia, deuteranopia and tritanopia (the base is M. Okabe and
K. Ito, "Color Universal Design", 2008); in grey, markers and dashes tell them apart.
"""

PARTS: dict[str, tuple[str, str]] = {
    "foreign": ("foreign", "#882255"),
    "never_written": ("never written", "#EADFA6"),
    "own": ("own placeholder page", "#FFFFFF"),
}
"""Label and colour of each part of the oversized request's context: dark, light and white in grey."""

_WORDS = ("#117733", "#AA4499", "#999933", "#661100", "#6699CC", "#444466", "#44AA99", "#BB6677")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (4, 1.5),
    (1, 1),
    (5, 1.5, 1, 1.5),
    (6, 2),
    (2, 1),
    (3, 3),
    (8, 2),
)
NEUTRAL = Look("#333333", "o")
"""The look of a figure without hue."""

MAX_HUES = len(_MARKERS)


def looks(levels: Sequence[Any]) -> list[Look]:
    """One look for each level of a hue.

    Policies have their own, everywhere. Numbers are drawn from light to dark (a sequential palette
    that stays in order in grey), other words from a list; neither has a policy's colour.

    Raises
    ------
    ValueError
        For more than `MAX_HUES` levels that are no policies: markers would repeat.
    """
    if levels and all(level in PALETTE for level in levels):
        return [PALETTE[level] for level in levels]
    if len(levels) > MAX_HUES:
        raise ValueError(f"hue has {len(levels)} levels; at most {MAX_HUES} can be told apart")
    colours: Sequence[str] = _WORDS
    if not any(isinstance(level, str) for level in levels):
        import seaborn as sns

        colours = list(reversed(sns.color_palette("viridis", len(levels) + 1).as_hex()[:-1]))
    return [Look(*look) for look in zip(colours, _MARKERS, _DASHES, strict=False)][: len(levels)]


def settings() -> Any:
    """Settings of Matplotlib that hold while a figure is drawn and while it is saved.

    The style is seaborn's "ticks", written out: to import seaborn takes seconds, in every job that draws.
    The fonts are those that Matplotlib ships; text stays text; ids in SVG are drawn from a fixed salt.
    """
    return {
        "figure.facecolor": "white",
        "axes.facecolor": "white",
        "axes.edgecolor": ".15",
        "axes.labelcolor": ".15",
        "text.color": ".15",
        "xtick.color": ".15",
        "ytick.color": ".15",
        "lines.solid_capstyle": "round",
        "patch.edgecolor": "w",
        "patch.force_edgecolor": True,
        "font.family": "DejaVu Sans",
        "font.sans-serif": ["DejaVu Sans"],
        "mathtext.fontset": "dejavusans",
        "font.size": 7,
        "axes.labelsize": 7.5,
        "axes.titlesize": 7.5,
        "xtick.labelsize": 6.5,
        "ytick.labelsize": 6.5,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
        "legend.columnspacing": 1.2,
        "axes.linewidth": 0.6,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "axes.formatter.use_mathtext": False,
        "grid.color": "#DDDDDD",
        "grid.linewidth": 0.4,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "xtick.minor.size": 1.5,
        "ytick.minor.size": 1.5,
        "lines.linewidth": 1.2,
        "lines.markersize": 4.5,
        "figure.dpi": 100,
        "savefig.dpi": 300,
        "savefig.bbox": None,
        "figure.constrained_layout.h_pad": 0.03,
        "figure.constrained_layout.w_pad": 0.03,
        "svg.fonttype": "none",
        "svg.hashsalt": "kvsim",
        "pdf.fonttype": 42,
    }


def save_figure(figure: Figure, caption: str, stem: Path, provenance: Mapping[str, str]) -> list[Path]:
    """Write ``stem.pdf``, ``stem.svg``, ``stem.png`` and the caption as ``stem.txt``.

    The same figure gives the same bytes: no date is written.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    caption : str
        Also stands in the metadata of each file.
    stem : path
        Path without its suffix.
    provenance : mapping of str to str
        What the figure was made from, e.g. digest of the config and version; in the metadata.

    Returns
    -------
    list of path
        The files written.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    from matplotlib import rc_context

    words = [f"{key} {value}" for key, value in provenance.items()]
    metadata: dict[str, dict[str, Any]] = {
        "pdf": {"Subject": caption, "Keywords": "; ".join(words), "CreationDate": None},
        "svg": {"Description": caption, "Keywords": words, "Date": None},
        "png": {"Description": caption} | dict(provenance),
    }
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in (*FORMATS, "txt")]
    with rc_context(settings()):
        for suffix, path in zip(FORMATS, paths, strict=False):
            with atomic_write(path) as temporary:
                figure.savefig(temporary, format=suffix, metadata=metadata[suffix])
    write_text(paths[-1], caption + "\n")
    return paths
