"""`graphcl reproduce`: the paper's tables and claims, with our results beside the paper's."""

import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcl.cli.options import DeviceOption, JsonOption, parse_settings, print_result
from graphcl.cli.processes import continues
from graphcl.cli.progress import ProbeStepsOption, run_progress
from graphcl.errors import ParameterError, RunError, require, suggestion
from graphcl.settings import PROBE_STEPS

if TYPE_CHECKING:
    import torch

    from graphcl.research.rows import Row
    from graphcl.research.studies.study import Study

# The names of `graphcl.research.studies.STUDIES`, which takes seconds to import.
STUDY_NAMES = (
    "perturbation",
    "corruption",
    "temperature",
    "epochs",
    "batch",
    "bound",
    "complexity",
)
TARGETS = ("table1", "table2", *STUDY_NAMES)
RUNS = 5  # default number of seeds of Table 2


def reproduce(
    targets: Annotated[
        list[str], typer.Argument(help=f"{', '.join(TARGETS)}; or studies, for every study.")
    ],
    datasets: Annotated[
        list[str], typer.Option(help="Datasets, comma-separated. (default: all)")
    ] = [],  # noqa: B006 (typer copies it)
    methods: Annotated[
        list[str], typer.Option(help="Systems of table2, comma-separated. (default: all)")
    ] = [],  # noqa: B006
    repeats: Annotated[
        int | None,
        typer.Option("--runs", help=f"Number of seeds. (default: {RUNS}, or the study's)"),
    ] = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    device: DeviceOption = "auto",
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes that probe while the next training runs.")
    ] = 1,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting of every system that has it."
        ),
    ] = [],  # noqa: B006
    rows: Annotated[
        list[Path], typer.Option(help="Only show the rows of this file; repeatable.")
    ] = [],  # noqa: B006
    probe_steps: ProbeStepsOption = PROBE_STEPS,
    out: Annotated[Path, typer.Option(help="The folder for results.")] = Path("reproduction"),
    as_json: JsonOption = False,
) -> None:
    """Reproduce the paper's tables and claims: ours, the paper's, and the difference.

    Rows are appended to OUT/TARGET.jsonl as runs finish, and the table is written to the same
    folder as Markdown, CSV and a PNG. The same command continues where an earlier one stopped;
    finished runs are not repeated. A dataset that is not on this machine is shown as absent.

    Studies report test scores of the shipped recipes. These scores are not used to choose anything.

    Examples:

        graphcl reproduce table1

        graphcl reproduce table2 --datasets cora --runs 3

        graphcl reproduce table2 --methods graphcl,dgi --device cuda --jobs 8

        graphcl reproduce perturbation temperature --datasets cora,citeseer

        graphcl reproduce table2 --rows benchmarks/results/accuracy.jsonl
    """
    names = _targets(targets)
    from graphcl.devices import resolve_device
    from graphcl.research import reproduce as tables
    from graphcl.research import rows as result_rows
    from graphcl.research.output import Artefacts
    from graphcl.research.studies import STUDIES

    require(repeats is None or repeats >= 1, "reproduce", "--runs", "at least 1", repeats)
    for path in rows:
        if not path.is_file():
            raise RunError(f"{path}: no such file")
    given = _Given(
        datasets=tables.check_datasets(_listed(datasets)),
        methods=tables.check_methods(_listed(methods)) or None,
        runs=repeats,
        seed=seed,
        device=resolve_device(device),
        workers=jobs,
        settings=parse_settings(settings),
        rows=[row for path in rows for row in result_rows.read(path)] if rows else None,
        probe_steps=probe_steps,
        out=out,
        width=shutil.get_terminal_size().columns if sys.stdout.isatty() else None,
    )
    tables_1_and_2 = {"table1": _table_1, "table2": _table_2}
    reports = {}
    for name in names:
        with continues("reproduce", "rows", Artefacts(out, name).rows):
            task = tables_1_and_2.get(name) or partial(_study, STUDIES[name])
            reports[name], text = task(given)
        if not as_json:
            print(text)
    print_result(reports, "", as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class _Given:
    """The options of the command, checked."""

    datasets: list[str]
    methods: list[str] | None
    runs: int | None
    seed: int
    device: "torch.device"
    workers: int
    settings: dict[str, str]
    rows: "list[Row] | None"
    probe_steps: int
    out: Path
    width: int | None

    def seeds(self, default: int) -> tuple[int, ...]:
        return tuple(range(self.seed, self.seed + (self.runs or default)))


def _table_1(given: _Given) -> tuple[dict[str, object], str]:
    from graphcl.datasets import CATALOGUE
    from graphcl.research import reproduce as tables
    from graphcl.research.output import Artefacts

    found = tables.table_1(given.datasets or list(CATALOGUE))
    files = Artefacts(given.out, "table1").write(
        markdown=tables.table_1_markdown(found), csv=tables.table_1_csv(found)
    )
    text = tables.table_1_terminal(found, width=given.width)
    return {"datasets": found, "files": files}, f"{text}\n{_files(files)}"


def _table_2(given: _Given) -> tuple[dict[str, object], str]:
    from graphcl.datasets import CATALOGUE
    from graphcl.research import reproduce as tables
    from graphcl.research import table2
    from graphcl.research.output import Artefacts, csv_text

    chosen = given.datasets or list(CATALOGUE)
    here, absent = tables.present(chosen)
    tables.check_settings(given.settings, here, given.methods)
    artefacts = Artefacts(given.out, "table2")
    if given.rows is not None:
        cells = table2.assemble(given.rows, datasets=chosen, methods=given.methods, absent=absent)
    else:
        with run_progress("table2") as show:
            cells = tables.table_2(
                artefacts.rows,
                datasets=chosen,
                methods=given.methods,
                seeds=given.seeds(RUNS),
                device=given.device,
                workers=given.workers,
                settings=given.settings,
                probe_steps=given.probe_steps,
                on_progress=show,
            )
    measured = any(cell.mean is not None for cell in cells)
    listed = [cell.as_row() for cell in cells]
    files = artefacts.write(
        markdown=table2.markdown(cells),
        csv=csv_text(listed),
        draw=(lambda: table2.draw(cells)) if measured else None,
    )
    text = table2.terminal(cells, width=given.width)
    return {"cells": listed, "absent": absent, "files": files}, f"{text}\n{_files(files)}"


def _study(study: "Study", given: _Given) -> tuple[dict[str, object], str]:
    from graphcl.datasets import CATALOGUE
    from graphcl.research import reproduce as tables
    from graphcl.research import rows as result_rows
    from graphcl.research.output import Artefacts, csv_text
    from graphcl.research.studies.corruption import RIVALS
    from graphcl.research.studies.study import Plan, study_markdown, study_terminal

    chosen = given.datasets or list(study.datasets) if study.datasets else []
    here, absent = tables.present(chosen)
    artefacts = Artefacts(given.out, study.name)
    if given.rows is not None:
        mine = [row for row in given.rows if row.get("study") == study.name]
        wanted = [row for row in mine if not given.datasets or row["graph"] in given.datasets]
        found = list(
            result_rows.latest(wanted, lambda r: tuple(map(r.get, study.columns))).values()
        )
    else:
        rivals = RIVALS if study.name == "corruption" else ("graphcl",)
        tables.check_settings(given.settings, here or ["cora"], rivals)
        plan = Plan(
            datasets=tuple(here),
            seeds=given.seeds(study.runs),
            device=given.device,
            settings=dict(given.settings),
        )
        with run_progress(study.name) as show:
            found = result_rows.execute(
                study.jobs(plan),
                artefacts.rows,
                columns=study.columns,
                device=plan.device,
                workers=given.workers,
                on_progress=show,
            )
    scored = [row for row in found if "failed" not in row]
    files = artefacts.write(
        markdown=study_markdown(study, found, picture=f"{study.name}.png" if scored else ""),
        csv=csv_text(study.summary(found)),
        draw=(lambda: study.draw(scored)) if scored else None,
    )
    text = study_terminal(study, found, width=given.width)
    missing = "".join(f"\n{CATALOGUE[name].title}: absent" for name in absent)
    report = {"summary": study.summary(found), "absent": absent, "files": files}
    return report, f"{text}{missing}\n{_files(files)}"


def _files(files: dict[str, str]) -> str:
    return "\n".join(f"{kind}: {path}" for kind, path in files.items())


def _targets(names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        if name == "studies":
            found += STUDY_NAMES
        elif name in TARGETS:
            found.append(name)
        else:
            known, near = ", ".join((*TARGETS, "studies")), suggestion(name, TARGETS)
            raise ParameterError(f"reproduce: unknown target {name!r}; known: {known}{near}")
    return list(dict.fromkeys(found))


def _listed(values: list[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]
