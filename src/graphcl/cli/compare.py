"""`graphcl compare`: systems side by side on many graphs, or finished runs side by side."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcl.cli.options import DeviceOption, JsonOption, print_result
from graphcl.cli.processes import continues
from graphcl.cli.progress import run_progress
from graphcl.errors import DatasetError, require
from graphcl.files.records import aligned
from graphcl.runs import files as runs
from graphcl.runs.files import read_result
from graphcl.runs.versions import current_run
from graphcl.store.header import is_store

if TYPE_CHECKING:
    from graphcl.graphs.graph import Graph

METHODS = "graphcl,raw,propagation,dgi,grace,cca-ssg"


def compare(
    graphs: Annotated[
        list[str],
        typer.Argument(help="Folders of .npz graphs, datasets, stores, graph files; or runs."),
    ],
    methods: Annotated[
        list[str],
        typer.Option(help="Systems, comma-separated: NAME, or NAME:key=value,key=value."),
    ] = [METHODS],  # noqa: B006 (typer copies it)
    repeats: Annotated[int, typer.Option("--runs", min=1, help="Number of seeds.")] = 3,
    labels: Annotated[
        str, typer.Option(help="Also with so few labels a class; numbers, comma-separated.")
    ] = "",
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option(help="The folder for results.")] = Path("comparison"),
    as_json: JsonOption = False,
) -> None:
    """Train systems on many graphs and score all alike: rows, a table and a picture.

    Every system runs with its defaults, or with the settings given after its name. Embeddings are
    scored by logistic regression over all splits of a graph, or three random ones if it has none:
    accuracy, ROC-AUC for two classes, mean AUC of the labels if a node has several. With --labels,
    the same embeddings are also scored with few labels of each class, in three draws.

    Given runs instead of graphs, it trains nothing: it lists in which settings they differ, and
    their scores, as each run has them.

    Rows are appended to OUT/compare.jsonl as trainings finish; the table is written to the same
    folder as Markdown, CSV, LaTeX and a PNG. The same command continues where an earlier one
    stopped. A failure is kept as a row and named below the table; the same command tries it again.

    Examples:

        graphcl compare my-graphs --methods graphcl,grace,cca-ssg --runs 3

        graphcl compare cora citeseer --methods raw,graphcl:encoder=residual --device cuda

        graphcl compare my-graphs --labels 20,5

        graphcl compare runs/first runs/second --json
    """
    runs = [is_run(Path(name)) for name in graphs]
    if any(runs):
        require(all(runs), "compare", "arguments", "all runs, or all graphs", graphs)
        found = compare_runs([Path(name) for name in graphs])
        print_result(found, comparison_table(found), as_json=as_json)
        return
    from graphcl import research
    from graphcl.devices import resolve_device

    systems = research.read_systems(methods)
    require(len(systems) >= 1, "compare", "--methods", "one system or more", methods)
    few = read_labels(labels)
    chosen = find_graphs(graphs)
    path, seeds, where = out / "compare.jsonl", range(seed, seed + repeats), resolve_device(device)
    with continues("compare", "rows", path), run_progress("compare") as show:
        rows = research.compare(
            chosen, systems, path, seeds=seeds, device=where, labels=few, on_progress=show
        )
    summaries = research.regimes(rows, [system.label for system in systems])
    report, text = research.report_of(*summaries).show(out)
    print_result(report, text, as_json=as_json)


def read_labels(listed: str) -> list[int]:
    """Reads numbers of labels of a class, separated by commas."""
    found = [one.strip() for one in listed.split(",") if one.strip()]
    whole = all(one.isdigit() and int(one) > 0 for one in found)
    require(whole, "compare", "--labels", "whole numbers of 1 or more", listed)
    return [int(one) for one in dict.fromkeys(found)]


def find_graphs(names: list[str]) -> "dict[str, Callable[[], Graph]]":
    """Returns a function that loads each graph, by name.

    Raises:
        DatasetError: two graphs have one name.
    """
    from graphcl.datasets import graph_files, read_gallery_graph

    found: dict[str, Callable[[], Graph]] = {}
    for name in names:
        path = Path(name)
        new: dict[str, Callable[[], Graph]]
        if path.is_dir() and not is_store(path):
            files = graph_files(path)
            new = {stem: partial(read_gallery_graph, file) for stem, file in files.items()}
        else:
            graph = _one_graph(name)  # now: a wrong name is said before any training
            new = {graph.name: partial(_the_graph, graph)}
        for one, load in new.items():
            if one in found:
                raise DatasetError(f"compare: two graphs are named {one!r}")
            found[one] = load
    return found


def _the_graph(graph: "Graph") -> "Graph":
    return graph


def _one_graph(name: str) -> "Graph":
    from graphcl.cli.graphs import FLATTENED, load_graph
    from graphcl.graphs.graph import Graph

    graph = load_graph(name)
    if not isinstance(graph, Graph):
        raise DatasetError(f"compare: takes single graphs; {name} has {len(graph.graphs)}")
    if not graph.is_plain:
        print(f"{name}: every system but graphcl {FLATTENED}", file=sys.stderr)
    return graph


# What is compared of `result.json`, and how it is shown: name, digits, factor.
_SCORES = {
    "accuracy": ("accuracy, %", 1, 100),
    "micro_f1": ("micro-F1", 4, 1),
    "macro_f1": ("macro-F1", 3, 1),
    "roc_auc": ("ROC-AUC", 3, 1),
    "majority": ("majority, %", 1, 100),
}
_FACTS = {
    "loss": ("loss", 4, 1),
    "effective_rank": ("effective rank", 1, 1),
    "mean_cosine": ("mean cosine", 3, 1),
    "train_seconds": ("training, s", 1, 1),
    "peak_memory_bytes": ("peak memory, MiB", 0, 2**-20),
}


def comparison_table(found: Mapping[str, Any]) -> str:
    """Returns what `compare_runs` found as text, a column per run."""
    runs = found["runs"]
    settings = runs[0]["settings"]
    rows = [["", *(one["run"] for one in runs)]]
    rows += [[key, *(_text(one["settings"][key]) for one in runs)] for key in settings]
    for name in runs[0]["scores"]:
        label, digits, factor = (_SCORES | _FACTS)[name]
        values = [one["scores"][name] for one in runs]
        shown = ["–" if one is None else f"{factor * one:,.{digits}f}" for one in values]
        rows.append([label, *shown])
    alike = [] if settings else ["no setting differs"]
    return "\n".join([*aligned(rows), *alike, *(f"note: {one}" for one in found["notes"])])


def _text(value: Any) -> str:
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def is_run(path: Path) -> bool:
    """Returns whether a folder looks like a run."""
    return (path / runs.CONFIG).is_file()


def compare_runs(paths: Sequence[Path]) -> dict[str, Any]:
    """Reads runs, of GraphCL or of baselines, and compares them.

    Returns:
        ``runs``, each with the settings in which they differ and its scores and facts, None where
        it has none; the settings in which all agree, ``same``; and ``notes`` in words on what makes
        scores incomparable.

    Raises:
        RunError: one is missing or damaged.
    """
    current = [current_run(path) for path in paths]
    configs = [runs.read_config(path, baselines=True) for path in current]
    results = [read_result(path) for path in current]
    known = [_settings(config) for config in configs]
    first, keys = known[0], list(dict.fromkeys(key for one in known for key in one))
    differ = [key for key in keys if any(one.get(key) != first.get(key) for one in known)]
    scores = {name: [_score(one, name) for one in results] for name in (*_SCORES, *_FACTS)}
    if scores["accuracy"] == scores["micro_f1"]:
        del scores["micro_f1"]  # with one class per node they are one
    listed = [name for name, row in scores.items() if any(one is not None for one in row)]
    each = [
        {
            "run": str(path),
            "settings": {key: known[place].get(key) for key in differ},
            "scores": {name: scores[name][place] for name in listed},
        }
        for place, path in enumerate(paths)
    ]
    same = {key: first[key] for key in keys if key not in differ}
    return {"runs": each, "same": same, "notes": _notes(configs, results)}


def _settings(config: runs.RunConfig) -> dict[str, Any]:
    named = {"graph": config.origin.graph or None, "method": config.method or "graphcl"}
    return {**named, "seed": config.seed, **config.recipe, **config.settings}


def _score(result: Mapping[str, Any], name: str) -> float | None:
    within = result if name in _FACTS else result.get("probe") or result.get("scores") or {}
    value = within.get(name)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and value is not None else None


def _notes(configs: Sequence[runs.RunConfig], results: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = []
    if len({config.origin.fingerprint for config in configs}) > 1:
        notes.append("the runs were trained on different graphs: scores cannot be compared")
    splits = {
        str((result.get("probe") or result.get("scores") or {}).get("nodes")) for result in results
    }
    if len(splits - {"None"}) > 1:
        notes.append("the probes used different splits: scores cannot be compared")
    lacking = [place for place, result in enumerate(results, 1) if not result]
    said = "has no result.json: it was saved from Python"
    return [*notes, *(f"run {place} {said}" for place in lacking)]
