"""PPI: interacting proteins in 24 human tissues (Zitnik & Leskovec 2017; Hamilton et al. 2017).

20 graphs are for training, 2 for validation and 2 for test. Features are z-scored with the mean and
the deviation of the training rows. The prepared file is a reconstruction: see `PREPARED_NOTE`.
"""

import hashlib
import io
import os
import urllib.request
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import DatasetError, GraphError, MissingExtraError
from graphcl.files.arrays import check_members, read_npz
from graphcl.files.atomic import write_whole
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph

PREPARED = "ppi/ppi.npz"
PROCESSED = "ppi/processed/train.pt"  # written by PyG's class
PREPARED_NOTE = (
    "these PPI labels are a near-exact reconstruction (about 1 % of the positives differ from the "
    "original): scores are close to published ones, but not the same thing"
)
SPLITS = {"train": range(1, 21), "val": range(21, 23), "test": range(23, 25)}
NUM_FEATURES, NUM_LABELS = 50, 121
URL = "https://data.dgl.ai/dataset/ppi.zip"  # PyG's class downloads the same file, unchecked
SHA256 = "1f5b2b09ac0f897fa6aa1338c64ab75a5473674cbba89380120bede8cddb2a6a"
RAW = tuple(
    f"{split}_{file}"
    for split in ("train", "valid", "test")
    for file in ("feats.npy", "graph_id.npy", "graph.json", "labels.npy")
)
RAW_BYTES = 1 << 29
TIMEOUT_SECONDS = 60

_ARRAYS = {"features": 2, "labels": 2, "edges": 2, "graph_id": 1}  # name: dimensions


def load_ppi(folders: Sequence[Path]) -> GraphCollection:
    """Loads PPI from the first of `folders` that contains the prepared file, else through PyG.

    The last folder is the user's cache, in which PyG's class expects the official files.

    Raises:
        DatasetError: the file is damaged, or the data is in none of the folders and cannot be
            downloaded.
    """
    for folder in folders:
        if (folder / PREPARED).exists():
            return read_prepared(folder / PREPARED)
    return _official(folders)


def read_prepared(path: Path) -> GraphCollection:
    """Reads the prepared `.npz`: all nodes in one table, with the graph of each in ``graph_id``.

    Node ids are the row numbers of the file, which are those of the original GraphSAGE files.
    """
    arrays = _read(path)
    graph_id, edges = arrays["graph_id"], arrays["edges"].astype(np.int64)
    x = z_score(arrays["features"], graph_id <= SPLITS["train"][-1])
    if edges.size and (edges.min() < 0 or edges.max() >= len(graph_id)):
        raise DatasetError(f"{path}: edges name nodes beyond the {len(graph_id)} rows")
    if (graph_id[edges[0]] != graph_id[edges[1]]).any():
        raise DatasetError(f"{path}: an edge joins two graphs")
    position = np.empty(len(graph_id), dtype=np.int64)

    def graph(number: int) -> Graph:
        rows = np.flatnonzero(graph_id == number)
        position[rows] = np.arange(len(rows))
        return Graph.from_edge_index(
            position[edges[:, (graph_id[edges[0]] == number)]],
            x[rows],
            arrays["labels"][rows],
            node_ids=rows,
            name=f"ppi {number}",
        )

    try:
        return _collection({split: map(graph, ids) for split, ids in SPLITS.items()}, PREPARED_NOTE)
    except GraphError as error:
        raise DatasetError(f"{path}: {error}") from None


def z_score(features: Array, train: Array) -> Array:
    """Subtracts the mean of the rows in `train` and divides by their population deviation.

    A column that is constant in these rows is not divided.
    """
    known = features[train].astype(np.float64)
    spread = known.std(axis=0)
    scaled: Array = (features - known.mean(axis=0)) / np.where(spread, spread, 1)
    return scaled


def _read(path: Path) -> dict[str, Array]:
    arrays = read_npz(path, _ARRAYS, DatasetError)
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing:
        raise DatasetError(f"{path}: has no array {missing[0]!r}")
    rows = len(arrays["graph_id"])
    for name, dimensions in _ARRAYS.items():
        array = arrays[name]
        fits = len(array) == 2 if name == "edges" else len(array) == rows
        if array.ndim != dimensions or not fits or array.dtype.kind not in "iu":
            raise DatasetError(f"{path}: {name} has shape {array.shape} of {array.dtype}")
    return arrays


def _official(folders: Sequence[Path]) -> GraphCollection:
    from unittest.mock import patch

    from torch_geometric.datasets import PPI

    root = folders[-1] / "ppi"
    try:
        if not all((root / "raw" / name).exists() for name in RAW):
            fetch_zip(URL, root / "raw", sha256=SHA256, names=RAW, limit=RAW_BYTES)
        # PyG falls back to plain pickle, which would run a file's content: forbid it.
        with patch.dict(os.environ, TORCH_FORCE_WEIGHTS_ONLY_LOAD="1"):
            parts = {split: list(PPI(str(root), split=split)) for split in SPLITS}
    except ImportError as error:  # PyG reads the official files with networkx
        raise MissingExtraError("PPI from its official files", "networkx") from error
    except Exception as error:  # a download, an archive or a file in it can fail in any way
        looked = " and ".join(str(folder / PREPARED) for folder in folders)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DatasetError(
            f"ppi: not in {looked}, and the official files could not be loaded in {root} "
            f"({reason}); set GRAPHCL_DATA to a folder that contains {PREPARED}, or try again with "
            "network access"
        ) from None
    return _collection(
        {
            split: (
                Graph.from_pyg(data, name=f"ppi {number}")
                for number, data in enumerate(datas, SPLITS[split].start)
            )
            for split, datas in parts.items()
        }
    )


def fetch_zip(url: str, folder: Path, *, sha256: str, names: Collection[str], limit: int) -> None:
    """Downloads a zip archive and writes the members `names` to `folder`; keeps other files there.

    An archive with another digest than `sha256` is discarded unopened. Neither the archive nor its
    members together may have more than `limit` bytes.

    Raises:
        DatasetError: the archive is too large, or is not the expected one.
        OSError: the download or the writing failed.
    """
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
        packed = answer.read(limit + 1)
    if len(packed) > limit:
        raise DatasetError(f"{url}: more than {limit} bytes; not the expected file")
    digest = hashlib.sha256(packed).hexdigest()
    if digest != sha256:
        raise DatasetError(f"{url}: has the SHA-256 {digest}; expected {sha256}; not unpacked")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            members = check_members(archive, url, DatasetError, suffix="")
            missing = [name for name in names if name not in members]
            if missing:
                raise DatasetError(f"{url}: does not contain {missing[0]}")
            if sum(members[name].file_size for name in names) > limit:
                raise DatasetError(f"{url}: unpacks to more than {limit} bytes")
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                write_whole(folder / name, archive.read(members[name]))
    except zipfile.BadZipFile as error:
        raise DatasetError(f"{url}: not a zip ({error})") from None


def _collection(parts: dict[str, Any], note: str = "") -> GraphCollection:
    splits = {split: tuple(graphs) for split, graphs in parts.items()}
    found = tuple(len(graphs) for graphs in splits.values())
    wanted = tuple(len(ids) for ids in SPLITS.values())
    if found != wanted:
        raise DatasetError(f"ppi: {found} train, validation and test graphs; expected {wanted}")
    collection = GraphCollection(**splits, name="ppi", note=note)
    shape = (collection.num_features, collection.num_classes)
    if shape != (NUM_FEATURES, NUM_LABELS):
        wrong = f"{shape[0]} features and {shape[1]} labels"
        raise DatasetError(f"ppi: {wrong}; expected {NUM_FEATURES} and {NUM_LABELS}")
    return collection
