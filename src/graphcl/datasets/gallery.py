"""The gallery: a folder of graphs as `.npz` files, ``graphs/`` in a data folder.

A file holds the arrays of `graphcl.graphs.interchange.read_arrays`; masks may have a column per
split. Other arrays are left alone.
"""

from collections.abc import Iterable
from pathlib import Path

from graphcl.errors import DatasetError
from graphcl.graphs.graph import Graph
from graphcl.graphs.interchange import read_arrays

FOLDER = "graphs"


def graph_files(folder: Path) -> dict[str, Path]:
    """Returns the graphs of a folder by name, in alphabetical order.

    Raises:
        DatasetError: the folder has none.
    """
    found = {path.stem: path for path in sorted(folder.glob("*.npz"))}
    if not found:
        raise DatasetError(
            f"{folder}: holds no graph; a graph is an .npz file with edge_index and x"
        )
    return found


def gallery_files(folders: Iterable[Path]) -> dict[str, Path]:
    """Returns the graphs in the gallery of each data folder; the first folder's win."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((folder / FOLDER).glob("*.npz")):
            found.setdefault(path.stem, path)
    return found


def read_gallery_graph(path: Path) -> Graph:
    """Reads one file; arrays that `Graph` has no use for are tolerated."""
    return Graph.from_edge_index(name=path.stem, **read_arrays(path, extras=True))
