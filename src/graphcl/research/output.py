"""How results are shown: tables as text, pictures, and the files of a table or a study.

Pictures have colours that colour-blind readers can tell apart.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphcl.datasets import CATALOGUE
from graphcl.errors import MissingExtraError, counted, import_extra
from graphcl.files.atomic import whole_file, write_whole
from graphcl.files.records import aligned
from graphcl.research.rows import Row, text

# Paul Tol's bright scheme; markers differ too, so that colour is never the only difference.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#bbbbbb")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class Table(NamedTuple):
    """A table of texts; what stands out in it is between asterisks, as in Markdown."""

    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Report:
    """A table or a study, ready to be shown and written: what `compare` and `reproduce` end with.

    Attributes:
        name: of its files, without the extension.
        about: its numbers, as JSON has them.
        tables: what it shows.
        notes: what stands below the tables.
        lines: its lines as CSV has them.
        claim: what stands above the tables on its page.
        draw: returns its picture; None if there is nothing to draw.
        narrow: the tables as a terminal shows them; None if these are the same.
    """

    name: str
    about: Mapping[str, object]
    tables: Sequence[Table]
    notes: Sequence[str]
    lines: Sequence[Mapping[str, object]]
    claim: str = ""
    draw: Callable[[], Any] | None = None
    narrow: Sequence[Table] | None = None

    @property
    def markdown(self) -> str:
        """Its page."""
        picture = f"![{self.name}]({self.name}.png)" if self.draw else ""
        parts = [self.claim, picture, *(markdown_table(*one) for one in self.tables), *self.notes]
        return "\n\n".join(filter(None, parts)) + "\n"

    def terminal(self) -> str:
        """Returns its text for a terminal."""
        tables = self.tables if self.narrow is None else self.narrow
        return "\n".join([*(terminal_table(*one) for one in tables), *self.notes])

    def write(self, folder: Path) -> dict[str, str]:
        """Writes Markdown, CSV, LaTeX and a PNG, each atomically, and returns their paths.

        Without matplotlib no picture is drawn, and ``plot`` names the missing extra.
        """
        folder.mkdir(parents=True, exist_ok=True)
        written = {}
        for kind, ending, content in (
            ("markdown", "md", self.markdown),
            ("csv", "csv", csv_text(self.lines)),
            ("latex", "tex", "\n".join(latex_table(*one) for one in self.tables)),
        ):
            written[kind] = str(folder / f"{self.name}.{ending}")
            write_whole(Path(written[kind]), content)
        if self.draw is not None:
            path = folder / f"{self.name}.png"
            try:
                save(self.draw(), path)
                written["plot"] = str(path)
            except MissingExtraError as error:
                written["plot"] = f"not drawn: {error}"
        return written

    def show(self, folder: Path) -> tuple[dict[str, object], str]:
        """Writes the files; returns the numbers, and the text for this terminal, with the files."""
        files = self.write(folder)
        listed = "\n".join(f"{kind}: {path}" for kind, path in files.items())
        return {**self.about, "files": files}, f"{self.terminal()}\n{listed}"


def markdown_table(columns: Sequence[str], lines: Sequence[Sequence[str]], title: str = "") -> str:
    """Returns a Markdown table."""
    rows = [columns, ["---"] * len(columns), *lines]
    table = "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)
    return f"**{title}**\n\n{table}" if title else table


def latex_table(columns: Sequence[str], lines: Sequence[Sequence[str]], title: str = "") -> str:
    """Returns a `tabular` in the style of booktabs."""
    head, *body = (" & ".join(map(latex_text, line)) + r" \\" for line in (columns, *lines))
    return "\n".join(
        [
            *([f"% {title}"] if title else []),
            rf"\begin{{tabular}}{{ll{'r' * (len(columns) - 2)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def latex_text(text: str) -> str:
    """Returns text with the characters escaped that LaTeX would read as commands."""
    for character in "&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text).replace("±", r"$\pm$")


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Returns rows as CSV; None becomes an empty field."""
    stream = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def terminal_table(columns: Sequence[str], lines: Sequence[Sequence[str]], title: str = "") -> str:
    """Returns a table for a terminal."""
    shown = [[cell.replace("**", "") for cell in line] for line in (columns, *lines)]
    return "\n".join([*filter(None, [title]), *aligned(shown), ""])


def runs_text(counts: Sequence[int]) -> str:
    """Returns how many runs there were, in brackets; nothing if there was none."""
    if not counts:
        return ""
    span = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    return f" ({span} {'run' if max(counts) == 1 else 'runs'})"


def failure_text(name: str, cell: Any) -> str:
    """Says how many runs of a cell failed, and why the most of them did."""
    of = counted(cell.failed + cell.runs, "run")
    return f"{name}: {cell.failed} of {of} failed ({cell.reason})."


def new_figure(
    width: float, height: float, panels: int = 1, lines: int = 1
) -> tuple[Any, list[Any]]:
    """Returns a figure and its panels, line by line, without pyplot's window and global state.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = import_extra("matplotlib.figure", feature="a plot", extra="plot")
    figure = matplotlib.Figure(figsize=(width, height), facecolor="white", layout="constrained")
    return figure, list(figure.subplots(lines, panels // lines, squeeze=False).flat)


def save(figure: Any, path: Path) -> None:
    """Writes a PNG atomically."""
    with whole_file(path) as staging:
        figure.savefig(staging, dpi=110, format="png", metadata={"Software": None})


def plot(lines: Sequence[Row], *, x: str, by: str, panel: str, **settings: str) -> Any:
    """Draws the column ``mean`` of `lines` over the column `x`, with a band of one deviation.

    Each value of the column `by` gets a curve, and each value of `panel` a panel. Where `x` holds
    names, they stand from top to bottom, and means are points with error bars. `settings` are
    those of matplotlib's axes, such as ``xlabel`` and ``xscale``.
    """
    lines = [line for line in lines if line["mean"] is not None]
    panels, kinds = (list(dict.fromkeys(text(line, key) for line in lines)) for key in (panel, by))
    names = any(isinstance(line[x], str) for line in lines)
    places = max(len({line[x] for line in lines if line[panel] == one}) for one in panels)
    height = 1.6 + 0.3 * places if names else 3.8
    figure, axes = new_figure(4.6 * len(panels) + 0.6, height, len(panels))
    for axis, one in zip(axes, panels, strict=True):
        for index, kind in enumerate(kinds):
            found = [line for line in lines if (line[by], line[panel]) == (kind, one)]
            colour = COLOURS[index % 7]
            marker = MARKERS[(index + index // 7) % 7]
            style = {"color": colour, "marker": marker, "markersize": 5, "label": kind}
            at = [line[x] for line in found]
            mean = np.array([line["mean"] for line in found])
            std = np.array([line["std"] or 0.0 for line in found])
            if names:
                axis.errorbar(mean, at, xerr=std, linestyle="none", capsize=2, **style)
            else:
                axis.plot(at, mean, markevery=1 + len(at) // 12, **style)
                axis.fill_between(at, mean - std, mean + std, color=colour, alpha=0.15)
        axis.set(title=title_of(one), **settings)
        if names:
            axis.invert_yaxis()
        finish(axis)
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=max(1, 60 * len(panels) // (6 + max(map(len, kinds)))),  # as many as fit
        frameon=False,
        fontsize=8,
    )
    return figure


def title_of(dataset: str) -> str:
    """Returns a dataset's title, or the name itself if there is no such dataset."""
    return CATALOGUE[dataset].title if dataset in CATALOGUE else dataset


def finish(axis: Any) -> None:
    """Applies the common style to a panel."""
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
