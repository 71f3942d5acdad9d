"""Writes docs/research/reproduction.md and its pictures from committed rows.

usage: python -m benchmarks.reproduction [--check | --statistics]

Tables, pictures and every number on the page come from rows in benchmarks/results. Explanations,
which contain no numbers, come from benchmarks/explanations.toml. `--check` only compares the page,
and exits with 1 if it does not match the rows. `--statistics` appends the figures of Table 1 for
the datasets on this machine that are not part of the package.
"""

import argparse
import json
import math
import sys
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.findings import FINDINGS
from graphcl.datasets import CATALOGUE
from graphcl.files.atomic import write_whole
from graphcl.recipes import load_recipe, recipe_names
from graphcl.research import output, paper
from graphcl.research import rows as result_rows
from graphcl.research.paper import INDUCTIVE, TRANSDUCTIVE, UNSUPERVISED, Cell, assemble, decimals
from graphcl.research.rows import Row
from graphcl.research.studies import STUDIES
from graphcl.research.studies.study import Study
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.system import settings_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/research/reproduction.md"
IMAGES = ROOT / "docs/research/images/reproduction"
EXPLANATIONS = ROOT / "benchmarks/explanations.toml"
SOURCES = ("accuracy", "baselines", "ppi", "table2")  # how the names of files with scores start
TOLERANCE = {**dict.fromkeys(TRANSDUCTIVE, 1.5), **dict.fromkeys(INDUCTIVE, 0.015)}
# Names of systems in the rows of benchmarks.ppi.
WHAT = {"trained": "graphcl", "random encoder": "random-encoder", "raw features": "raw"}


def score_rows(results: Path = RESULTS) -> list[Row]:
    """Returns the rows of every file with scores, as far as Table 2 shows them."""
    files = sorted(path for path in results.glob("*.jsonl") if path.stem.startswith(SOURCES))
    return chosen([row for path in files for row in result_rows.read(path)])


def chosen(rows: Sequence[Row]) -> list[Row]:
    """Returns the last row of each seed with the shipped settings, or else with the newest.

    Recipes that the paper's table does not have are systems of their own.
    """
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in filter(None, map(normalised, rows)):
        if not row.get("study"):
            found[row["method"], row["graph"]].append(row)
    kept: list[Row] = []
    for each in found.values():
        shipped = [row for row in each if _is_shipped(row)]
        shipped = shipped or [row for row in each if _settings(row) == _settings(each[-1])]
        kept += {row["seed"]: row for row in shipped}.values()
    return kept


def _settings(row: Row) -> Any:
    return row.get("settings", row.get("recipe")) or {}


def _is_shipped(row: Row) -> bool:
    """Whether a row has the settings that this version would use on its dataset.

    Keys that the row does not have, because they were added later, are not compared.
    """
    variant, method = row.get("variant"), row["method"]
    name = variant or row["graph"]
    if variant:
        ours = asdict(load_recipe(name))
    elif method in SYSTEMS and (method != "graphcl" or name in recipe_names()):
        ours = settings_of(SYSTEMS[method].method(name))
    else:
        return False
    plain = {key: list(one) if isinstance(one, tuple) else one for key, one in ours.items()}
    return all(plain.get(key) == value for key, value in _settings(row).items())


def normalised(row: Row) -> Row | None:
    """Returns a row with the columns that Table 2 needs, or None if it does not belong there.

    Rows of `benchmarks.ppi` contain ``what`` was measured and the recipe. For a control, that is
    the recipe of the trained encoder that it is compared with.
    """
    if "method" in row:
        return row
    if "what" not in row:  # of `benchmarks.accuracy`
        variant = row.get("variant") or ""
        return row | {"method": f"GraphCL, recipe {variant}" if variant else "graphcl"}
    method, named = WHAT.get(row["what"]), row["recipe_name"]
    if method is None or (method == "random-encoder" and named != row["graph"]):
        return None  # this recipe is not the paper's
    if method != "graphcl":
        seedless = {"seed": 0, "runs_identical": True} if row["seed"] is None else {}
        return row | {"method": method, "settings": {}} | seedless
    if named == row["graph"]:
        return row | {"method": method}
    return row | {"method": f"GraphCL, recipe {named}", "variant": named}


def study_rows(study: Study, results: Path = RESULTS) -> list[Row]:
    """Returns the rows of a study, the last one of each run."""
    found = result_rows.read(results / f"studies/{study.name}.jsonl")
    return list(result_rows.latest(found, lambda row: tuple(map(row.get, study.columns))).values())


def page(results: Path = RESULTS) -> str:
    """Returns the whole page."""
    cells = assemble(score_rows(results), datasets=list(CATALOGUE), absent=["reddit"])
    explanations = tomllib.loads(EXPLANATIONS.read_text())
    parts = [
        "# The paper's tables",
        "<!-- Made by `python -m benchmarks.reproduction` from rows; not written by hand. -->",
        "The paper's tables with ours beside them, then its other claims as studies. Every number "
        "is made from rows in `benchmarks/results` by `python -m benchmarks.reproduction`; "
        "`graphcl reproduce` runs it all anew, on your machine.",
        "## Table 1: datasets",
        paper.table_1_report(_table_1(results)).markdown.rstrip(),
        "The paper counts links as the raw files list them; we count each undirected edge once.",
        "## Table 2: every system",
        _picture("table2", "Every system, ours and the paper's", results, measured=_any(cells)),
        replace(paper.table_2_report(cells, []), draw=None).markdown.rstrip(),
        _devices(cells, results),
        "### What reproduces, and what does not",
        _verdicts(cells, explanations),
        _standing(cells),
        "## Studies",
        "Test scores of recipes that were chosen on validation; nothing was chosen by what "
        "follows. Means over 3 to 5 seeds. `graphcl reproduce studies` writes every point as a "
        "table, too.",
        *(_section(study, results, explanations) for study in STUDIES.values()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table_1(results: Path) -> list[Row]:
    """Counts the bundled datasets; the figures of the others come from a file of rows."""
    noted = {row["dataset"]: row for row in result_rows.read(results / "table1.jsonl")}
    bundled = [name for name, card in CATALOGUE.items() if card.source == "bundled"]
    counted = {row["dataset"]: row for row in paper.table_1(bundled)}
    return [counted.get(name) or noted.get(name) or _absent(name) for name in CATALOGUE]


def _absent(name: str) -> Row:
    card = CATALOGUE[name]
    paper = {key: getattr(card, key) for key in ("nodes", "edges", "features", "classes", "split")}
    return {"dataset": name, "title": card.title, "task": card.task, "paper": paper, "ours": None}


def _any(cells: list[Cell]) -> bool:
    return any(cell.mean is not None for cell in cells)


def _picture(name: str, title: str, results: Path, *, measured: bool) -> str:
    if not measured or results != RESULTS:
        return ""
    return f"![{title}](images/reproduction/{name}.png)"


def _devices(cells: list[Cell], results: Path) -> str:
    if not _any(cells):
        return "Not measured yet: `graphcl reproduce table2`."
    shown = {cell.dataset for cell in cells if cell.mean is not None}
    rows = [row for row in score_rows(results) if row.get("graph") in shown and "device" in row]
    devices = ", ".join(sorted({row["device"] for row in rows}))
    return f"Measured on: {devices}. The rows have the number of runs of each cell."


def _verdicts(cells: list[Cell], explanations: dict[str, Any]) -> str:
    judged = [cell for cell in cells if cell.difference is not None]
    if not judged:
        return "Not measured yet."
    within = [cell for cell in judged if cell.within]
    near = [c for c in judged if not c.within and abs(c.difference or 0) <= TOLERANCE[c.dataset]]
    far = [cell for cell in judged if cell not in within and cell not in near]
    parts = [
        f"Of the paper's numbers, {len(within)} are within two standard errors, {len(near)} more "
        f"within 1.5 points (0.015 of F1), and {len(far)} further away: {_names(far)}."
    ]
    gaps: dict[tuple[str, str], list[str]] = {}
    for cell in [*far, *(cell for cell in near if cell.method == "graphcl")]:
        gap = paper.signed(cell.difference or 0.0, decimals(cell.dataset))
        found = explanations.get(cell.method, {})
        why = found.get(cell.dataset) or found.get("all") or "No explanation yet."
        where = f"{CATALOGUE[cell.dataset].title} ({gap})"
        gaps.setdefault((cell.title, " ".join(why.split())), []).append(where)
    explained = [
        f"- {title} on {', '.join(places)}: {why}" for (title, why), places in gaps.items()
    ]
    missing = sum(cell.paper is not None and cell.mean is None for cell in cells)
    if missing:
        parts[0] += f" {missing} are absent or not measured."
    if explained:
        parts += ["", "Our best explanations:", "", *explained]
    return "\n".join(parts)


def _names(cells: list[Cell]) -> str:
    by: dict[str, list[str]] = {}
    for cell in cells:
        places = decimals(cell.dataset)
        gap = paper.signed(cell.difference or 0.0, places)
        by.setdefault(cell.title, []).append(f"{CATALOGUE[cell.dataset].title} {gap}")
    return "; ".join(f"{title} ({', '.join(found)})" for title, found in by.items()) or "none"


def _standing(cells: list[Cell]) -> str:
    places = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        found = rank_of("graphcl", cells, dataset)
        rivals = [
            cell
            for cell in cells
            if cell.dataset == dataset and cell.group == UNSUPERVISED and cell.mean is not None
        ]
        if found is None or len(rivals) < 2:
            continue
        place, tied = found
        with_ = f", tied with {', '.join(tied)}" if tied else ""
        first = max(rivals, key=lambda cell: cell.mean or 0.0)
        behind = f" behind {first.title}" if place > 1 else ""
        places.append(f"{CATALOGUE[dataset].title} {place} of {len(rivals)}{behind}{with_}")
    if not places:
        return "Not measured yet."
    return (
        "The paper claims the first place among its systems without labels on all graphs. Ours: "
        f"{'; '.join(places)}. Tied would be means within two standard errors."
    )


def rank_of(method: str, cells: Sequence[Cell], dataset: str) -> tuple[int, list[str]] | None:
    """Returns a system's place among the paper's unsupervised ones, and those it is tied with.

    Two systems are tied if their means differ by at most two standard errors of the difference.
    Returns None if the system was not measured.
    """
    rivals = [
        cell
        for cell in cells
        if cell.dataset == dataset and cell.group == UNSUPERVISED and cell.mean is not None
    ]
    mine = next((cell for cell in rivals if cell.method == method), None)
    if mine is None or mine.mean is None:
        return None
    better = [cell for cell in rivals if cell.mean is not None and cell.mean > mine.mean]
    tied = [cell.title for cell in rivals if cell is not mine and _tied(mine, cell)]
    return len(better) + 1, tied


def _tied(one: Cell, other: Cell) -> bool:
    if one.mean is None or other.mean is None:
        return False
    error = math.sqrt(sum((cell.std or 0.0) ** 2 / cell.runs for cell in (one, other)))
    return abs(one.mean - other.mean) <= 2 * error


def _section(study: Study, results: Path, explanations: dict[str, Any]) -> str:
    rows = study_rows(study, results)
    scored = [row for row in rows if "failed" not in row]
    parts = [f"### {study.title}", study.claim]
    if not scored:
        parts.append(f"Not measured yet: `graphcl reproduce {study.name}`.")
        return "\n\n".join(parts)
    parts.append(_picture(study.name, study.title, results, measured=True))
    parts.append(FINDINGS[study.name](study.summary(rows)))
    parts.append(" ".join(_around(study, scored)))
    comment = explanations.get("study", {}).get(study.name, "")
    parts.append(" ".join(comment.split()))
    return "\n\n".join(part for part in parts if part)


def _around(study: Study, rows: list[Row]) -> list[str]:
    """Returns a sentence for each dataset whose shipped recipe has changed since a study's runs."""
    sentences = []
    for name in sorted({row["graph"] for row in rows} & set(recipe_names())):
        recipe = vars(load_recipe(name))
        ran = [r["settings"] for r in rows if (r["graph"], r["method"]) == (name, "graphcl")]
        varied = [key for key in study.variables if key in recipe]
        # Some settings vary with the study's variable; compare where it has the recipe's value.
        own = [settings for settings in ran if all(settings[k] == recipe[k] for k in varied)]
        ran = own or ran
        earlier = [
            f"{key} {ran[0].get(key)} (now {recipe[key]})"
            for key in recipe
            if key not in (*varied, "mode")  # a study may set this one itself
            and key in ran[0]  # a key that was added later is not compared
            and len({settings.get(key) for settings in ran}) == 1
            and ran[0][key] != recipe[key]
        ]
        if earlier:
            title = CATALOGUE[name].title
            sentences.append(f"Around an earlier recipe of {title}: {', '.join(earlier)}.")
    return sentences


def draw() -> None:
    """Draws a picture for every table and study that has rows."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    cells = assemble(score_rows(), datasets=list(CATALOGUE), absent=["reddit"])
    if _any(cells):
        output.save(paper.draw(cells), IMAGES / "table2.png")
    for study in STUDIES.values():
        scored = [row for row in study_rows(study) if "failed" not in row]
        if scored:
            output.save(study.draw(scored), IMAGES / f"{study.name}.png")


def note_statistics() -> None:
    """Appends the figures of Table 1 for present datasets that are not part of the package."""
    here, _ = paper.present([n for n, c in CATALOGUE.items() if c.source != "bundled"])
    for row in paper.table_1(here):
        result_rows.append(RESULTS / "table1.jsonl", row)
        print(json.dumps(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--check", action="store_true", help="compare; write nothing")
    which.add_argument("--statistics", action="store_true", help="append to table1.jsonl")
    options = parser.parse_args()
    if options.statistics:
        note_statistics()
        return
    text = page()
    if options.check:
        same = PAGE.exists() and PAGE.read_text() == text
        sys.exit(0 if same else f"{PAGE.relative_to(ROOT)}: does not match the rows")
    draw()
    write_whole(PAGE, text)


if __name__ == "__main__":
    main()
