"""The paper's five datasets and the gallery, and which of them are on this machine.

The gallery is a folder of graphs as `.npz` files, ``graphs/`` in a data folder. A file holds the
arrays of `graphcl.graphs.npz`; masks may have a column per split. Other arrays
are left alone.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, overload

from graphcl.datasets import ppi, reddit
from graphcl.errors import DatasetError, suggestion
from graphcl.files.user import user_cache
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.graphs.npz import read_graph


@dataclass(frozen=True)
class DatasetCard:
    """One row of the paper's Table 1, with the numbers as printed there.

    `source` is ``bundled``, or the path within a data folder that is looked for first. `also` are
    paths that serve instead.
    """

    name: str
    title: str
    task: str
    nodes: int
    edges: int
    features: int
    classes: int
    split: tuple[int, int, int]
    source: str
    also: tuple[str, ...] = ()

    @property
    def present(self) -> bool:
        """Whether `load_dataset` would find it on this machine."""
        return self.source == "bundled" or any(
            (folder / file).exists() for folder in data_folders() for file in self.files
        )

    @property
    def files(self) -> tuple[str, ...]:
        """Paths within a data folder; the dataset is present if any of them exists."""
        return () if self.source == "bundled" else (self.source, *self.also)


FIGURES = ("nodes", "edges", "features", "classes")


def figures(data: Graph | GraphCollection) -> dict[str, Any]:
    """Returns the counts by which a graph is described, as in Table 1.

    ``split`` has the numbers of train, validation and test nodes.
    """
    if isinstance(data, GraphCollection):
        split = [*data.split_nodes]
    else:
        masks = (data.train_mask, data.val_mask, data.test_mask)
        split = [int(mask.sum()) for mask in masks if mask is not None]
    return {name: getattr(data, f"num_{name}") for name in FIGURES} | {"split": split}


CATALOGUE = {
    card.name: card
    for card in (
        DatasetCard(
            "cora", "Cora", "transductive", 2708, 5429, 1433, 7, (140, 500, 1000), "bundled"
        ),
        DatasetCard(
            "citeseer", "Citeseer", "transductive", 3327, 4732, 3707, 6, (120, 500, 1000), "bundled"
        ),
        DatasetCard(
            "pubmed", "Pubmed", "transductive", 19717, 44338, 500, 3, (60, 500, 1000), "bundled"
        ),
        DatasetCard(
            "reddit", "Reddit", "inductive", 231443, 11606919, 602, 41,
            (151708, 23699, 55334), "reddit/reddit_data.npz",
        ),
        DatasetCard(
            "ppi", "PPI", "inductive", 56944, 818716, 50, 121,
            (44906, 6154, 5524), ppi.PREPARED, (ppi.PROCESSED,),
        ),
    )
}  # fmt: skip


def _load_bundled(name: str) -> Graph:
    """Returns a graph that is part of the package; `scripts/build_planetoid.py` made the files.

    The graphs are those of Sen et al. (2008) with the public split of Yang et al. (2016).
    """
    with resources.as_file(resources.files("graphcl.datasets") / f"bundled/{name}.npz") as path:
        return read_graph(path, plain=True)


_LOADERS: dict[str, Callable[[], Graph | GraphCollection]] = {
    **{name: partial(_load_bundled, name) for name in ("cora", "citeseer", "pubmed")},
    "reddit": lambda: reddit.load_reddit(reddit.find_reddit(data_folders())),
    "ppi": lambda: ppi.load_ppi(data_folders()),
}


def data_folders() -> list[Path]:
    """Returns the folders that are searched for data: ``GRAPHCL_DATA``, then the user's cache."""
    cache = user_cache()
    named = os.environ.get("GRAPHCL_DATA")
    return [Path(named), cache] if named else [cache]


@overload
def load_dataset(name: Literal["cora", "citeseer", "pubmed", "reddit"]) -> Graph: ...
@overload
def load_dataset(name: Literal["ppi"]) -> GraphCollection: ...
@overload
def load_dataset(name: str) -> Graph | GraphCollection: ...
def load_dataset(name: str) -> Graph | GraphCollection:
    """Loads a dataset by name: one graph, or for PPI a collection of 24 graphs.

    The names are those of the paper's datasets, and of the files ``graphs/NAME.npz`` in a data
    folder. Cora, Citeseer and Pubmed are part of the package and need no network. PPI is read from
    ``ppi/ppi.npz`` in a data folder, else from its official files, which are downloaded if needed.

    Raises:
        DatasetError: the name is unknown (the message lists the known ones), or the data is not
            on this machine and cannot be downloaded.
    """
    key = str(name).lower()
    if key in CATALOGUE:
        return _LOADERS[key]()
    gallery = gallery_files(data_folders())
    if key in gallery:
        return read_gallery_graph(gallery[key])
    known, near = ", ".join(CATALOGUE), suggestion(key, (*CATALOGUE, *gallery))
    raise DatasetError(f"unknown dataset {name!r}; known: {known}{near}")


GALLERY = "graphs"  # a folder in a data folder


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
        for path in sorted((folder / GALLERY).glob("*.npz")):
            found.setdefault(path.stem, path)
    return found


def read_gallery_graph(path: Path) -> Graph:
    """Reads one file; arrays that `Graph` has no use for are tolerated."""
    return read_graph(path, plain=True, extras=True)
