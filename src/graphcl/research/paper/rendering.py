"""Tables as text: Markdown, CSV, and for a terminal."""

import csv
import io
from collections.abc import Mapping, Sequence

from graphcl.datasets import CATALOGUE
from graphcl.errors import counted
from graphcl.research.paper.published import BEYOND, SUPERVISED, UNSUPERVISED, decimals
from graphcl.research.paper.reproduce import Figures, Table1Row
from graphcl.research.paper.table2 import ERRORS_STATED, Cell, tasks


def table_2_markdown(cells: Sequence[Cell]) -> str:
    """Returns Table 2, one line per system and three columns per dataset: ours, paper, difference.

    Footnotes explain how differences are judged, and any notes on scores.
    """
    parts = []
    for heading, members in tasks(cells).items():
        datasets = list(dict.fromkeys(cell.dataset for cell in members))
        columns = ["", "Method"]
        for dataset in datasets:
            columns += [f"{CATALOGUE[dataset].title}, ours", "paper", "difference"]
        by = {(cell.title, cell.group, cell.dataset): cell for cell in members}
        lines = []
        for group in (UNSUPERVISED, SUPERVISED, BEYOND):
            titles = dict.fromkeys(cell.title for cell in members if cell.group == group)
            for number, title in enumerate(titles):
                line = [group if number == 0 else "", _bold(title)]
                for dataset in datasets:
                    cell = by.get((title, group, dataset))
                    line += [ours(cell), theirs(cell), difference(cell)] if cell else ["–"] * 3
                lines.append(line)
        parts.append(f"**{heading}**\n\n{markdown_table(columns, lines)}")
    return "\n\n".join([*parts, *footnotes(cells)]) + "\n"


def footnotes(cells: Sequence[Cell]) -> list[str]:
    """Returns the footnotes: runs, how differences are judged, failures, notes on datasets."""
    runs = sorted({cell.runs for cell in cells if cell.runs and not cell.deterministic})
    notes = [
        "Mean ± sample standard deviation over runs on the test nodes"
        + (f" ({_span(runs)} {'run' if runs[-1] == 1 else 'runs'})" if runs else "")
        + "; "
        + ERRORS_STATED
        + "."
    ]
    absent = dict.fromkeys(cell.dataset for cell in cells if cell.state == "absent")
    if absent:
        titles = ", ".join(CATALOGUE[name].title for name in absent)
        notes.append(f"Absent: {titles} (not on the machine that ran this).")
    for cell in cells:
        if cell.failed:
            of = cell.failed + cell.runs
            name = f"{cell.title} on {CATALOGUE[cell.dataset].title}"
            notes.append(f"{name}: {cell.failed} of {counted(of, 'run')} failed ({cell.reason}).")
    on_datasets = dict.fromkeys((cell.dataset, cell.note) for cell in cells if cell.note)
    notes += [f"{CATALOGUE[dataset].title}: {note}." for dataset, note in on_datasets]
    return notes


def ours(cell: Cell) -> str:
    """Returns our score as text, or why there is none."""
    if cell.mean is None:
        return cell.state
    places = decimals(cell.dataset)
    if cell.deterministic:
        return f"{cell.mean:.{places}f} (no seed)"
    if cell.std is None:
        return f"{cell.mean:.{places}f} (one run)"
    return f"{cell.mean:.{places}f} ± {cell.std:.{places}f}"


def theirs(cell: Cell) -> str:
    """Returns the published score as text."""
    if cell.paper is None:
        return "–"
    places = decimals(cell.dataset)
    spread = f" ± {cell.paper_std:.{places}f}" if cell.paper_std is not None else ""
    return f"{cell.paper:.{places}f}{spread}"


def difference(cell: Cell) -> str:
    """Returns the difference and its judgement as text."""
    if cell.difference is None:
        return "–"
    return f"{signed(cell.difference, decimals(cell.dataset))}, {judged(cell)}"


def judged(cell: Cell) -> str:
    """Returns ``within``, ``outside`` or ``n/a``."""
    return {True: "within", False: "outside", None: "n/a"}[cell.within]


def signed(value: float, places: int) -> str:
    """Returns a number with its sign; the minus is the typographic one."""
    return f"{value:+.{places}f}".replace("-", "−")


def table_2_csv(cells: Sequence[Cell]) -> str:
    """Returns one line per cell with all its numbers, unrounded."""
    return csv_text([cell.as_row() for cell in cells])


def table_2_terminal(cells: Sequence[Cell], *, width: int | None = None) -> str:
    """Returns one table per dataset, narrow enough for a terminal."""
    parts = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        members = [cell for cell in cells if cell.dataset == dataset]
        title = CATALOGUE[dataset].title
        if all(cell.state == "absent" for cell in members):
            parts.append(f"{title}: absent (not on this machine; see graphcl datasets)")
            continue
        lines = [
            [
                cell.title,
                cell.group,
                ours(cell),
                f"{cell.runs}" + (f" ({cell.failed} failed)" if cell.failed else ""),
                theirs(cell),
                signed(cell.difference, decimals(dataset)) if cell.difference is not None else "–",
                judged(cell) if cell.difference is not None else "–",
            ]
            for cell in members
        ]
        columns = ("Method", "", "Ours", "Runs", "Paper", "Difference", "Two errors")
        parts.append(terminal_table(title, columns, lines, width=width))
    return "\n".join([*parts, *footnotes(cells)])


def table_1_markdown(rows: Sequence[Table1Row]) -> str:
    """Returns Table 1 with the paper's numbers and ours."""
    return markdown_table(_TABLE_1_COLUMNS, [_table_1_line(row) for row in rows]) + "\n"


def table_1_terminal(rows: Sequence[Table1Row], *, width: int | None = None) -> str:
    """Returns Table 1 for a terminal."""
    lines = [_table_1_line(row) for row in rows]
    return terminal_table("Table 1: ours (paper's)", _TABLE_1_COLUMNS, lines, width=width)


_TABLE_1_COLUMNS = ("Dataset", "Task", "Figures", "Nodes", "Edges", "Features", "Classes", "Split")


def _table_1_line(row: Table1Row) -> list[str]:
    about, paper = [row["title"], row["task"]], _figure_texts(row["paper"])
    if row["ours"] is None:
        return [*about, "paper's; ours absent", *paper]
    pairs = zip(_figure_texts(row["ours"]), paper, strict=True)
    same = [mine if mine == theirs else f"{mine} ({theirs})" for mine, theirs in pairs]
    return [*about, "ours (paper's)", *same]


def _figure_texts(figures: Figures) -> list[str]:
    counts = (figures["nodes"], figures["edges"], figures["features"], figures["classes"])
    split = "/".join(f"{count:,}" for count in figures["split"])
    return [*(f"{count:,}" for count in counts), split]


def table_1_csv(rows: Sequence[Table1Row]) -> str:
    """Returns two lines per dataset: the paper's numbers and ours."""
    return csv_text(
        [
            {"dataset": row["dataset"], "figures": who, **(figures or {})}
            for row in rows
            for who, figures in (("paper", row["paper"]), ("ours", row["ours"]))
        ]
    )


def markdown_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


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
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    for line in lines:
        table.add_row(*(str(value) for value in line))
    console = Console(width=width or 160, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _bold(title: str) -> str:
    return f"**{title}**" if title == "GraphCL" else title


def _span(values: Sequence[int]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"
