"""Graphs on the command line: loads them by name, or as the graph that a run was trained on.

A run's `config.toml` names its graph, and a run may come from anybody. A list of edges is read by
DuckDB, which executes queries and opens whatever file they name. So tables that a run names are
read only if this user's key has sealed the run. A dataset is fixed. An `.npz` or a store is read by
readers that trust nothing, and is used only if it has the fingerprint that the run gives.
"""

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from graphcl.cli._shared.tables import as_arguments, print_notes
from graphcl.datasets import CATALOGUE, data_folders, load_dataset
from graphcl.datasets.gallery import gallery_files
from graphcl.errors import DatasetError, GraphCLError, RunError, StoreError, require, suggestion
from graphcl.graphs.collection import GraphCollection, fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.interchange import read_arrays
from graphcl.runs import files as runs
from graphcl.store.parts import is_parts
from graphcl.store.reader import is_store
from graphcl.tabular.build import load_tables
from graphcl.tabular.duck import is_query
from graphcl.tabular.options import FILES, TableOptions
from graphcl.tabular.preparation import read_preparation
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
        graph = replace(Graph.open(path), preparation=read_preparation(path))
        graph.check()
        return graph
    if is_parts(path):
        raise StoreError(
            f"{name}: a store in parts, which embed and check take; this needs the whole store"
        )
    if path.suffix == ".npz":
        # A gallery's own files may hold arrays of any name; elsewhere one may be a misspelling.
        # It is said, not refused.
        listed = path.exists() and path.resolve() in {one.resolve() for one in gallery.values()}
        arrays = read_arrays(path, extras=listed, on_note=partial(print, file=sys.stderr))
        return Graph.from_edge_index(name=path.stem, **arrays)
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
    return _source(run, runs.read_config(run, baselines=True))


def _source(run: Path, config: runs.RunConfig) -> str:
    if not config.origin.graph:
        raise RunError(f"{run}: does not say which graph it was trained on; name one")
    return config.origin.graph


def load_run_graph(
    run: Path,
    given: str | None = None,
    tables: TableOptions | None = None,
    *,
    again: tuple[str, ...],
) -> AnyGraph:
    """Returns the graph that a run was trained on.

    Args:
        run: the run.
        given: the graph as the command line names it; None means the one that the run names.
        tables: options for reading `given`.
        again: the command under way, to which a refusal adds the run's graph.

    Raises:
        UntrustedRunError: the run names a graph that is not read on its word.
        RunError: the graph cannot be read, or it has changed.
    """
    config, options = runs.read_config(run, baselines=True), tables or TableOptions()
    source, trained = _source(run, config) if given is None else given, _tables(run, config)
    if given is None:
        name = "GRAPH" if again[0] == "embed" else "--graph"
        require(not options.given(), again[0], name, "given with table options", None)
        options = trained or options
        if not config.is_sealed:
            _require_harmless(run, config.origin, options, again)
        source, options = _moved(run, source, options)
    elif trained is not None and names_tables(given, options):
        options = options.after(trained)
    try:
        graph = load_graph(source, options)
    except GraphCLError as error:
        raise RunError(f"{error} (the graph that {run} was trained on)") from None
    expected = config.origin.fingerprint
    if expected and graph_fingerprint(graph) != expected:
        raise RunError(f"{run}: {source} is not the graph that the run was trained on")
    return graph


def _moved(run: Path, source: str, options: TableOptions) -> tuple[str, TableOptions]:
    """Returns the files that a run names as they are called from here.

    The run names them as they were called where it was trained. If there is no such file here, it
    is looked for beside the run and in the folders above; the fingerprint says if it is the one.
    """
    if _is_here(source, Path()) or is_query(source) or source.lower() in CATALOGUE:
        return source, options
    for folder in run.absolute().parents:
        if _is_here(source, folder):
            files = {name: getattr(options, name) for name in FILES}
            found: dict[str, Any] = {
                name: str(folder / one) if isinstance(one, str) and _is_here(one, folder) else one
                for name, one in files.items()
            }
            return str(folder / source), replace(options, **found)
    return source, options


def _is_here(text: str, folder: Path) -> bool:
    """Returns whether a file, ``FILE:TABLE``, a store or a folder of tables is in a folder."""
    path, before = folder / text, text.rpartition(":")[0]
    try:
        if path.is_file() or (before and (folder / before).is_file()):
            return True
        return is_store(path) or (path.is_dir() and looks_like_tables(str(path)))
    except OSError:  # a query may be too long for a name
        return False


class UntrustedRunError(RunError):
    """A run that this user did not write names a graph that is not read on its word."""


def _require_harmless(
    run: Path, origin: runs.Origin, options: TableOptions, again: tuple[str, ...]
) -> None:
    """Refuses tables, and files without a fingerprint, that an unsealed run names."""
    tables = names_tables(origin.graph, options)
    if origin.graph.lower() in CATALOGUE or (origin.fingerprint and not tables):
        return
    added = as_arguments(options) if tables else []
    positional = again[0] == "embed"
    words = ["graphcl", *again]
    words[3:3] = [*([] if positional else ["--graph"]), origin.graph, *added]
    command = shlex.join(words)
    nodes = f" with nodes {_shown(options.nodes)}" if options.nodes else ""
    how = "name the graph on the command line"
    # What a terminal would not show, or a paste would change, is not offered for pasting.
    if command.isprintable() and command == " ".join(command.split()) and len(command) < 2000:
        how = f"give it yourself: {command}"
    raise UntrustedRunError(
        f"{run}: names the graph {_shown(origin.graph)}{nodes}, which is not read on the word of "
        "a run that this user's key has not sealed (another user wrote it, an earlier version, or "
        f"it was changed); if you trust it, {how}"
    )


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 300 else f"{text[:300]!r}…"


def graph_fingerprint(graph: AnyGraph) -> str:
    """Returns a short hash by which a run recognises the graph that it was trained on."""
    return fingerprint(graph.graphs if isinstance(graph, GraphCollection) else (graph,))


def run_tables(run: Path) -> TableOptions | None:
    """Returns the table options that a run was trained with, or None if it used no tables.

    A run that was trained on a store has the preparation that the store was built with.
    """
    return _tables(run, runs.read_config(run, baselines=True))


def _tables(run: Path, config: runs.RunConfig) -> TableOptions | None:
    if not config.origin.tables:
        prepared = read_preparation(run)
        return None if prepared is None else TableOptions(preparation=prepared)
    try:
        return TableOptions.from_record(config.origin.tables, read_preparation(run))
    except ValueError:
        raise RunError(f"{run / runs.CONFIG}: [run] tables is damaged") from None


def note(graph: AnyGraph) -> str:
    """Returns the note that every score on `graph` needs, mostly none."""
    return graph.note if isinstance(graph, GraphCollection) else ""
