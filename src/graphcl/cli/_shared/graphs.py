"""Graphs on the command line: loads them by name, or as the graph that a run was trained on."""

import json
from pathlib import Path

from graphcl.cli._shared.tables import print_notes
from graphcl.datasets import CATALOGUE, data_folders, load_dataset
from graphcl.datasets.gallery import gallery_files
from graphcl.errors import DatasetError, GraphCLError, RunError, suggestion
from graphcl.graphs.collection import GraphCollection, fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.interchange import read_arrays
from graphcl.runs import files as runs
from graphcl.store.reader import is_store
from graphcl.tabular.build import load_tables
from graphcl.tabular.options import TableOptions
from graphcl.tabular.sources import EDGE_FILES, looks_like_tables

AnyGraph = Graph | GraphCollection


def load_graph(name: str, tables: TableOptions | None = None) -> AnyGraph:
    """Returns the graph that `name` refers to on a command line.

    The structure of a store is scanned, because the loops that follow rely on it.

    Args:
        name: a dataset, a store, an `.npz`, or a list of edges (a file or an SQL query).
        tables: options for reading tables.
    """
    options = tables or TableOptions()
    if names_tables(name, options):
        graph, report = load_tables(name, options)
        print_notes(report)
        return graph
    path, given = Path(name), options.given()
    if given:
        option = "--" + next(iter(given)).replace("_", "-")
        raise DatasetError(f"{option} applies only to tables; {name!r} is not a table")
    gallery = gallery_files(data_folders())
    if name.lower() in {*CATALOGUE, *gallery}:
        return load_dataset(name)
    if is_store(path):
        graph = Graph.open(path)
        graph.check()
        return graph
    if path.suffix == ".npz":
        # A gallery's own files may hold arrays of any name; elsewhere one may be a misspelling.
        listed = path.exists() and path.resolve() in {one.resolve() for one in gallery.values()}
        return Graph.from_edge_index(name=path.stem, **read_arrays(path, extras=listed))
    known, near = ", ".join(CATALOGUE), suggestion(name.lower(), (*CATALOGUE, *gallery))
    if path.exists():
        raise DatasetError(
            f"{name}: a graph file must be an .npz, a store or a list of edges "
            f"({', '.join(EDGE_FILES)}); or name a dataset: {known}"
        )
    raise DatasetError(
        f"unknown dataset {name!r}; known: {known}, or a path to a store, an .npz or a list of "
        f"edges{near}"
    )


def names_tables(name: str, tables: TableOptions) -> bool:
    """Returns whether `name` is a list of edges; an `.npz` is one if table options are given."""
    return looks_like_tables(name) or (Path(name).suffix == ".npz" and bool(tables.given()))


def run_graph(run: Path) -> str:
    """Returns the graph argument that the run was trained with."""
    source = runs.read_config(run, baselines=True).origin.graph
    if not source:
        raise RunError(f"{run}: does not say which graph it was trained on; name one")
    return source


def load_run_graph(run: Path) -> AnyGraph:
    """Returns the graph that a run was trained on.

    Raises:
        RunError: the graph cannot be read, or it has changed.
    """
    source = run_graph(run)
    try:
        graph = load_graph(source, run_tables(run))
    except GraphCLError as error:
        raise RunError(f"{error} (the graph that {run} was trained on)") from None
    expected = runs.read_config(run, baselines=True).origin.fingerprint
    if expected and graph_fingerprint(graph) != expected:
        raise RunError(f"{run}: {source} is not the graph that the run was trained on")
    return graph


def graph_fingerprint(graph: AnyGraph) -> str:
    """Returns a short hash by which a run recognises the graph that it was trained on."""
    return fingerprint(graph.graphs if isinstance(graph, GraphCollection) else (graph,))


def run_tables(run: Path) -> TableOptions | None:
    """Returns the table options that a run was trained with, or None if it used no tables."""
    text = runs.read_config(run, baselines=True).origin.tables
    if not text:
        return None
    try:
        given = json.loads(text)
        lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
        return TableOptions(**given | lists)
    except (TypeError, ValueError, AttributeError):
        raise RunError(f"{run / runs.CONFIG}: [run] tables is damaged") from None


def note(graph: AnyGraph) -> str:
    """Returns the note that every score on `graph` needs, mostly none."""
    return graph.note if isinstance(graph, GraphCollection) else ""
