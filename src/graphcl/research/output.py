"""Tables as text, for files and for a terminal, and the files that a table or a study writes."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcl.errors import MissingExtraError
from graphcl.files.atomic import write_whole
from graphcl.research import plots


@dataclass(frozen=True)
class Artefacts:
    """The files of one table or study.

    Attributes:
        folder: where they are.
        name: their name without the extension.
    """

    folder: Path
    name: str

    @property
    def rows(self) -> Path:
        """The file of rows, which grows as runs finish."""
        return self.folder / f"{self.name}.jsonl"

    def write(
        self,
        *,
        markdown: str,
        csv: str,
        latex: str | None = None,
        draw: Callable[[], Any] | None = None,
    ) -> dict[str, str]:
        """Writes Markdown, CSV, LaTeX and a PNG, each atomically, and returns their paths.

        Without matplotlib no picture is drawn, and ``plot`` names the missing extra.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        written = {}
        for kind, ending, text in (
            ("markdown", "md", markdown),
            ("csv", "csv", csv),
            ("latex", "tex", latex),
        ):
            if text is None:
                continue
            path = self.folder / f"{self.name}.{ending}"
            write_whole(path, text)
            written[kind] = str(path)
        if draw is not None:
            path = self.folder / f"{self.name}.png"
            try:
                plots.save(draw(), path)
                written["plot"] = str(path)
            except MissingExtraError as error:
                written["plot"] = f"not drawn: {error}"
        return written


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
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    for line in lines:
        table.add_row(*(str(value) for value in line))
    console = Console(width=width or 160, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
