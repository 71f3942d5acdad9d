"""How results are shown: tables as text, pictures, and the files of a table or a study.

Pictures have colours that colour-blind readers can tell apart.
"""

import csv
import io
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphcl.datasets import CATALOGUE
from graphcl.errors import MissingExtraError, import_extra
from graphcl.files.atomic import whole_file, write_whole
from graphcl.research.rows import Row, number, text

# Paul Tol's bright scheme; markers differ too, so that colour is never the only difference.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#bbbbbb")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Report:
    """A table or a study, ready to be shown and written: what `compare` and `reproduce` end with.

    Attributes:
        name: of its files, without the extension.
        about: its numbers, as JSON has them.
        terminal: returns its text for a terminal of so many columns; None if there is none.
        markdown: its page.
        lines: its lines as CSV has them.
        latex: its `tabular`; empty if there is none.
        draw: returns its picture; None if there is nothing to draw.
    """

    name: str
    about: Mapping[str, object]
    terminal: Callable[[int | None], str]
    markdown: str
    lines: Sequence[Mapping[str, object]]
    latex: str = ""
    draw: Callable[[], Any] | None = None

    def write(self, folder: Path) -> dict[str, str]:
        """Writes Markdown, CSV, LaTeX and a PNG, each atomically, and returns their paths.

        Without matplotlib no picture is drawn, and ``plot`` names the missing extra.
        """
        folder.mkdir(parents=True, exist_ok=True)
        written = {}
        texts = {"markdown": self.markdown, "csv": csv_text(self.lines), "latex": self.latex}
        for kind, ending in (("markdown", "md"), ("csv", "csv"), ("latex", "tex")):
            if texts[kind] or kind != "latex":
                path = folder / f"{self.name}.{ending}"
                write_whole(path, texts[kind])
                written[kind] = str(path)
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
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        listed = "\n".join(f"{kind}: {path}" for kind, path in files.items())
        return {**self.about, "files": files}, f"{self.terminal(width)}\n{listed}"


def markdown_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


def latex_table(columns: Sequence[str], lines: Sequence[Sequence[str]], *, rule_after: int) -> str:
    """Returns a `tabular` in the style of booktabs, with a rule after so many lines."""
    body = [" & ".join(line) + r" \\" for line in lines]
    body.insert(rule_after, r"\midrule")
    return "\n".join(
        [
            rf"\begin{{tabular}}{{ll{'r' * (len(columns) - 2)}}}",
            r"\toprule",
            " & ".join(map(latex_text, columns)) + r" \\",
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
    return text.replace("±", r"$\pm$")


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Returns rows as CSV; None becomes an empty field."""
    stream = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def terminal_table(
    title: str,
    columns: Sequence[str],
    lines: Sequence[Sequence[object]],
    *,
    width: int | None = None,
) -> str:
    """Returns a table for a terminal of `width` columns; None means 160."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 2 else "right")
    for line in lines:
        table.add_row(*(str(value) for value in line))
    console = Console(width=width or 160, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def new_figure(
    width: float, height: float, panels: int = 1, lines: int = 1
) -> tuple[Any, list[Any]]:
    """Returns a figure and its panels, line by line, without pyplot's window and global state.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    of_plots = {"feature": "a plot", "extra": "plot"}
    backend = import_extra("matplotlib.backends.backend_agg", **of_plots)
    figure = import_extra("matplotlib.figure", **of_plots).Figure(
        figsize=(width, height), facecolor="white", layout="constrained"
    )
    backend.FigureCanvasAgg(figure)
    axes = figure.subplots(lines, panels // lines, squeeze=False).flat
    return figure, list(axes)


def save(figure: Any, path: Path) -> None:
    """Writes a PNG atomically."""
    with whole_file(path) as staging:
        figure.savefig(staging, dpi=110, format="png", metadata={"Software": None})


def plot_lines(
    lines: Sequence[Row],
    *,
    x: str,
    by: str,
    xlabel: str,
    ylabel: str,
    log: bool = False,
    titles: dict[str, str] | None = None,
    panel: str | None = None,
) -> Any:
    """Draws the lines of `averages`: means over `x` with a band of one deviation.

    Each value of the column `by` gets a line, and each value of `panel`, if given, a panel. The
    legend names the values of `by` as in `titles`; `log` makes the x axis logarithmic.
    """
    panels = list(dict.fromkeys(text(line, panel) for line in lines)) if panel else [None]
    figure, axes = new_figure(4.6 * len(panels) + 0.6, 3.8, len(panels))
    kinds = list(dict.fromkeys(text(line, by) for line in lines))
    for axis, one in zip(axes, panels, strict=True):
        for index, kind in enumerate(kinds):
            found = [
                line
                for line in lines
                if line[by] == kind
                and line["mean"] is not None
                and (panel is None or line[panel] == one)
            ]
            style = {"color": COLOURS[index % 7], "marker": MARKERS[index % 7]}
            places = [line[x] for line in found]
            mean = np.array([line["mean"] for line in found])
            std = np.array([line["std"] or 0.0 for line in found])
            axis.plot(places, mean, label=(titles or {}).get(kind, kind), markersize=5, **style)
            axis.fill_between(places, mean - std, mean + std, color=style["color"], alpha=0.15)
        axis.set(xlabel=xlabel, ylabel=ylabel, xscale="log" if log else "linear")
        if one is not None:
            axis.set_title(one)
        finish(axis)
    axes[0].legend(frameon=False, fontsize=9)
    return figure


def plot_grid(lines: Sequence[Row], *, x: str, y: str, by: str, xlabel: str, ylabel: str) -> Any:
    """Draws a heat map per value of `by`, with the mean written in every cell."""
    kinds = list(dict.fromkeys(text(line, by) for line in lines))
    figure, axes = new_figure(5.2 * len(kinds) + 0.4, 4.6, len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        found = [line for line in lines if line[by] == kind]
        columns, rows = (sorted({number(line, name) for line in found}) for name in (x, y))
        grid = np.full((len(rows), len(columns)), np.nan)
        for line in found:
            if line["mean"] is not None:
                place = rows.index(number(line, y)), columns.index(number(line, x))
                grid[place] = line["mean"]
        image = axis.imshow(grid, origin="lower", aspect="auto", cmap="cividis")
        # Dark cells have low values: their text is white.
        middle = np.nanmean([np.nanmin(grid), np.nanmax(grid)]) if found else 0.0
        for (row, column), value in np.ndenumerate(grid):
            shown, colour = (
                ("–", "black")
                if np.isnan(value)
                else (
                    f"{value:.1f}" if value > 1 else f"{value:.3f}",
                    "white" if value < middle else "black",
                )
            )
            axis.text(column, row, shown, ha="center", va="center", color=colour, fontsize=7)
        axis.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
        axis.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
        axis.set(xlabel=xlabel, ylabel=ylabel, title=title_of(kind))
        figure.colorbar(image, ax=axis)
    return figure


def title_of(dataset: str) -> str:
    """Returns a dataset's title, or the name itself if there is no such dataset."""
    return CATALOGUE[dataset].title if dataset in CATALOGUE else dataset


def finish(axis: Any) -> None:
    """Applies the common style to a panel."""
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
