"""Opens whatever names a graph: a dataset, a store, an `.npz`, or a list of edges."""

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

from graphcl.datasets import CATALOGUE, data_folders, gallery_files, load_dataset
from graphcl.errors import DatasetError, demand, suggestion
from graphcl.files import RUN_CONFIG
from graphcl.files.arrays import refuse_gzipped
from graphcl.files.remote import local
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.graphs.npz import read_graph
from graphcl.store.header import is_store
from graphcl.tabular.build import open_prepared, read_tables
from graphcl.tabular.sources import EDGE_FILES, looks_like_tables

AnyGraph = Graph | GraphCollection


def _warn(note: str) -> None:
    warnings.warn(note, UserWarning, stacklevel=4)


def open_graph(path: str | Path, *, on_note: Callable[[str], None] = _warn) -> AnyGraph:
    """Opens a graph by the name or the path that a command takes.

    Args:
        path: an `.npz` (`graphcl.graphs.npz` lists its arrays), a store, the
            name of a dataset, or a list of edges, which `read_tables` reads with more options; also
            ``s3://…`` and the like (`graphcl.files.remote`). Of a store in parts, it is the graph
            that was divided, in its own order. The structure of a store is scanned, because
            compiled loops rely on it.
        on_note: gets a line on arrays of an `.npz` that are not used; the default is a warning.

    Returns:
        A `Graph`; of PPI a `GraphCollection`.

    Raises:
        DatasetError: nothing is known by this name.
        StoreError: a store is damaged.
    """
    path = local(path)
    name, path = str(path), Path(path)
    gallery = gallery_files(data_folders())
    if name.lower() in {*CATALOGUE, *gallery}:
        return load_dataset(name)
    if is_store(path):
        return open_prepared(path)
    if path.suffix == ".npz":
        # A gallery's own files may hold arrays of any name; elsewhere one may be a misspelling.
        # It is said, not refused.
        listed = path.exists() and path.resolve() in {one.resolve() for one in gallery.values()}
        typed = path.is_file() and is_typed_file(path)  # a pipe would wait for a writer
        return read_graph(path, plain=not typed, extras=listed or typed, on_note=on_note)
    require_known(name)  # now it must be a list of edges
    return read_tables(name)  # type: ignore[no-any-return]


def require_known(name: str) -> None:
    """Refuses what no command takes for a graph; nothing is read, and torch is not imported.

    Raises:
        DatasetError: nothing is known by this name.
    """
    path, names = Path(name), (*CATALOGUE, *gallery_files(data_folders()))
    if name.lower() in names or is_store(path) or path.suffix == ".npz" or looks_like_tables(name):
        return
    known, near = ", ".join(CATALOGUE), suggestion(name.lower(), names)
    if path.exists():
        if path.is_file():
            refuse_gzipped(path, DatasetError)
        is_run = (path / RUN_CONFIG).is_file()
        demand(not is_run, f"{name}: is a run; what is asked for is a graph", DatasetError)
        raise DatasetError(
            f"{name}: a graph file must be an .npz, a store or a list of edges "
            f"({', '.join(EDGE_FILES)}); or name a dataset: {known}"
        )
    raise DatasetError(
        f"unknown dataset {name!r}; known: {known}, or a path to a store, an .npz or a list of "
        f"edges{near}"
    )


def is_typed_file(path: Path) -> bool:
    """Returns whether an `.npz` has types of nodes or of edges."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False  # the reader says what is wrong with it
    return bool(names & {"node_type.npy", "edge_type.npy"})
