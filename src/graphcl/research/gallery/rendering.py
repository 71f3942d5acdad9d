"""A comparison as Markdown, CSV, LaTeX, for a terminal, and as a picture."""

from dataclasses import asdict
from typing import Any

import numpy as np

from graphcl.errors import counted
from graphcl.evaluation.splits import METRICS
from graphcl.research.gallery.comparison import RAW
from graphcl.research.gallery.summary import Cell, Summary
from graphcl.research.paper.plots import COLOURS, MARKERS, finish, new_figure
from graphcl.research.paper.rendering import csv_text, markdown_table, terminal_table

MEAN, DISTANCE = "Mean", "Mean distance to the best"
LOSSES = "Graphs over a point below raw features"


def markdown(summary: Summary, *, picture: str = "") -> str:
    """Returns the table with its footnotes, and the picture if there is one."""
    columns, lines = _lines(summary, bold="**{}**")
    parts = [f"![Score per graph and system]({picture})"] if picture else []
    return "\n\n".join([*parts, markdown_table(columns, lines), *footnotes(summary)]) + "\n"


def terminal(summary: Summary, *, width: int | None = None) -> str:
    """Returns the table for a terminal: a line per system, as there may be many graphs."""
    lines = []
    for one in summary.overall:
        losses = "–" if one.losses is None else str(one.losses)
        lines.append([one.system, "", _percent(one.mean), f"{100 * one.distance:.1f}", losses])
    overall = terminal_table(
        f"{counted(len(summary.common), 'graph')} that every system was scored on",
        ("System", "", "Mean", "Distance to the best", "Over a point below raw"),
        lines,
        width=width,
    )
    columns, each = _lines(summary, bold="{}")
    lines = each[: len(summary.graphs)]
    table = terminal_table("Score, %", columns, lines, width=width)
    return "\n".join([table, *([overall] if summary.overall else []), *footnotes(summary)])


def latex(summary: Summary) -> str:
    """Returns a `tabular` in the style of the package booktabs."""
    columns, lines = _lines(summary, bold=r"\textbf{{{}}}", escape=_escaped)
    body = [" & ".join(line) + r" \\" for line in lines]
    body.insert(len(summary.graphs), r"\midrule")
    return "\n".join(
        [
            rf"\begin{{tabular}}{{ll{'r' * (len(columns) - 2)}}}",
            r"\toprule",
            " & ".join(_escaped(column) for column in columns) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def csv(summary: Summary) -> str:
    """Returns a line per graph and system with all numbers, unrounded."""
    return csv_text([asdict(cell) for cell in summary.cells])


def footnotes(summary: Summary) -> list[str]:
    """Returns how to read the table, and every failure."""
    count = len(summary.common)
    spread = sorted({cell.runs for cell in summary.cells if cell.runs and not cell.identical})
    runs = ""
    if spread:
        count_text = "–".join(str(value) for value in dict.fromkeys((spread[0], spread[-1])))
        runs = f" ({count_text} {'run' if spread[-1] == 1 else 'runs'})"
    notes = [
        f"In %: mean over runs{runs}, each a mean over the graph's splits, ± sample standard "
        "deviation over runs. Logistic regression on frozen embeddings, the same for all systems, "
        "its strength chosen on validation nodes. The best of each graph is bold.",
        f"The last lines are over the {counted(count, 'graph')} that every system was scored on.",
    ]
    failed = [cell for cell in summary.cells if cell.failed]
    for cell in failed:
        of = cell.failed + cell.runs
        notes.append(
            f"{cell.system} on {cell.graph}: {cell.failed} of {counted(of, 'run')} failed "
            f"({cell.reason})."
        )
    return notes


def _lines(
    summary: Summary, *, bold: str, escape: Any = lambda text: text
) -> tuple[list[str], list[list[str]]]:
    """Returns columns, and lines: one per graph, then the three of `Overall`."""
    lines = []
    for graph in summary.graphs:
        cells = [summary.cell(graph, system) for system in summary.systems]
        means = [cell.mean for cell in cells if cell.mean is not None]
        metric = next((METRICS.get(cell.metric, cell.metric) for cell in cells if cell.metric), "–")
        line = [escape(graph), escape(metric)]
        for cell in cells:
            best = bool(means) and cell.mean == max(means)
            shown = escape(_score(cell))
            line.append(bold.format(shown) if best else shown)
        lines.append(line)
    if summary.overall:
        lines.append([MEAN, "", *(_percent(one.mean) for one in summary.overall)])
        lines.append([DISTANCE, "", *(f"{100 * one.distance:.1f}" for one in summary.overall)])
        losses = ["–" if one.losses is None else str(one.losses) for one in summary.overall]
        lines.append(
            [
                LOSSES,
                "",
                *(
                    "–" if one.system == RAW else text
                    for one, text in zip(summary.overall, losses, strict=True)
                ),
            ]
        )
    return ["Graph", "Score", *summary.systems], lines


def _score(cell: Cell) -> str:
    if cell.mean is None:
        return "failed" if cell.failed else "–"
    spread = f" ± {100 * cell.std:.1f}" if cell.std is not None else ""
    return f"{_percent(cell.mean)}{spread}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _escaped(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return text.replace("±", r"$\pm$")


def draw(summary: Summary) -> Any:
    """Draws the score of each system on each graph, and its mean distance to the best."""
    graphs, systems = summary.graphs[::-1], summary.systems
    figure, (left, right) = new_figure(12, 1.6 + 0.3 * max(len(graphs), len(systems)), 2)
    for number, system in enumerate(systems):
        cells = [summary.cell(graph, system) for graph in graphs]
        shown = [(100 * c.mean, place) for place, c in enumerate(cells) if c.mean is not None]
        if not shown:
            continue
        x, y = zip(*shown, strict=True)
        marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        style = {"color": COLOURS[number % len(COLOURS)], "marker": marker, "s": 28, "alpha": 0.85}
        left.scatter(x, y, label=system, **style)
    left.set(xlabel="score, %", yticks=np.arange(len(graphs)), title="Each graph")
    left.set_yticklabels(graphs)
    finish(left)
    ordered = sorted(summary.overall, key=lambda one: -one.distance)
    places = np.arange(len(ordered))
    colours = [COLOURS[systems.index(one.system) % len(COLOURS)] for one in ordered]
    right.barh(places, [100 * one.distance for one in ordered], color=colours)
    right.set(xlabel="mean distance to the best, points", yticks=places)
    right.set(
        title=f"All of {counted(len(summary.common), 'graph')} that every system was scored on"
    )
    right.set_yticklabels([one.system for one in ordered])
    finish(right)
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=8,
    )
    return figure
