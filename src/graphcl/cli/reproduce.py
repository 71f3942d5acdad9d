"""`graphcl reproduce`: the paper's tables and claims, with our results beside the paper's."""

from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli.options import DeviceOption, JsonOption, parse_settings, print_result
from graphcl.cli.processes import continues
from graphcl.cli.progress import ProbeStepsOption, run_progress
from graphcl.errors import ParameterError, check_known
from graphcl.settings import PROBE_STEPS

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
        typer.Option("--runs", min=1, help=f"Number of seeds. (default: {RUNS}, or the study's)"),
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
    probe_steps: ProbeStepsOption = PROBE_STEPS,
    out: Annotated[Path, typer.Option(help="The folder for results.")] = Path("reproduction"),
    as_json: JsonOption = False,
) -> None:
    """Reproduce the paper's tables and claims: ours, the paper's, and the difference.

    Rows are appended to OUT/TARGET.jsonl as runs finish, and the table is written to the same
    folder as Markdown, CSV, LaTeX and a PNG. The same command continues where an earlier one
    stopped; finished runs are not repeated. A dataset that is not on this machine is shown as
    absent.

    Studies report test scores of the shipped recipes. These scores are not used to choose anything.

    Examples:

        graphcl reproduce table1

        graphcl reproduce table2 --datasets cora --runs 3

        graphcl reproduce table2 --methods graphcl,dgi --device cuda --jobs 8

        graphcl reproduce perturbation temperature --datasets cora,citeseer
    """
    names = _targets(targets)
    from graphcl import research
    from graphcl.devices import resolve_device

    plan = research.Plan(
        datasets=tuple(research.check_datasets(_listed(datasets))),
        seeds=(seed,),
        device=resolve_device(device),
        settings={**parse_settings(settings)},
        methods=tuple(research.check_methods(_listed(methods))) or None,
        probe_steps=probe_steps,
    )
    reports = {}
    for name in names:
        path = out / f"{name}.jsonl"
        with continues("reproduce", "rows", path), run_progress(name) as show:
            report = research.reproduce(
                name, plan, path, runs=repeats, workers=jobs, on_progress=show
            )
        reports[name], text = report.show(out)
        if not as_json:
            print(text)
    print_result(reports, "", as_json=as_json)


def _targets(names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        known = (*TARGETS, "studies")
        check_known(name, known, what="reproduce: unknown target", error=ParameterError)
        found += STUDY_NAMES if name == "studies" else [name]
    return list(dict.fromkeys(found))


def _listed(values: list[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]
