"""The files that a table or a study writes: rows, CSV, Markdown and a picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcl.errors import MissingExtraError, counted
from graphcl.files.atomic import write_whole
from graphcl.research.paper import plots
from graphcl.research.paper.rendering import csv_text, markdown_table, terminal_table
from graphcl.research.paper.studies.study import Study
from graphcl.research.trials.rows import Row


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


def study_markdown(study: Study, rows: Sequence[Row], *, picture: str = "") -> str:
    """Returns a study's page: the claim, the picture if there is one, and the table."""
    parts = [study.claim, f"![{study.title}]({picture})" if picture else ""]
    columns, lines = study_lines(study, rows)
    parts += [markdown_table(columns, lines), provenance_text(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def study_csv(study: Study, rows: Sequence[Row]) -> str:
    """Returns a study's numbers, unrounded."""
    return csv_text(study.summary(rows))


def study_terminal(study: Study, rows: Sequence[Row], *, width: int | None = None) -> str:
    """Returns a study's table for a terminal."""
    columns, lines = study_lines(study, rows)
    table = terminal_table(study.title, columns, lines, width=width)
    return f"{table}\n{provenance_text(rows)}"


def study_lines(study: Study, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and lines of a study's table; mean and deviation share a column."""
    summary = study.summary(rows)
    names = [name for name in (summary[0] if summary else {}) if name not in ("std", "failed")]
    columns = [name.replace("_", " ") for name in names]
    return columns, [[_text(line, name) for name in names] for line in summary]


def provenance_text(rows: Sequence[Row]) -> str:
    """Returns a sentence on how the numbers were measured: nodes, seeds, device, failures."""
    scored = [row for row in rows if "failed" not in row]
    devices = ", ".join(sorted({str(row.get("device")) for row in scored})) or "nothing measured"
    seeds = len({row["seed"] for row in scored})
    failed = len(rows) - len(scored)
    lost = f"; {counted(failed, 'run')} failed" if failed else ""
    timed = any("seconds" in row for row in scored)
    what = "Seconds" if timed else "Scores on test nodes (nothing was chosen by them)"
    over = f"mean ± sample deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{what}; {over}; {devices}{lost}."


def _text(line: Row, name: str) -> str:
    value = line[name]
    if value is None:
        return "–"
    if name == "mean" and isinstance(value, int | float):
        places = 1 if abs(value) > 1.5 else 3
        spread = f" ± {line['std']:.{places}f}" if line["std"] is not None else ""
        return f"{value:.{places}f}{spread}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
