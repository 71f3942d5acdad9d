"""What a run keeps of its nodes: their ids as they came in, labels, split and degrees.

One small `nodes.npz` beside the embeddings, nothing pickled, so that a neighbour can be named and a
report drawn after the graph itself is gone. Text ids lie as one run of UTF-8 bytes with offsets:
NumPy's own text arrays would give every id the room of the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import RunError
from graphcl.files.arrays import read_npz
from graphcl.files.atomic import whole_file
from graphcl.store.columns import Names

if TYPE_CHECKING:  # reading the file needs no graph, and so none of the imports of one
    from graphcl.graphs.collection import GraphCollection
    from graphcl.graphs.graph import Graph

NODES = "nodes.npz"
SPLITS = ("", "train", "validation", "test")

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class RunNodes:
    """The nodes of a run, in the order of its embeddings.

    Attributes:
        ids: numbers, or texts; ids of any other kind are kept as their text. Texts of a large graph
            may be `graphcl.store.columns.Names`.
        degree: neighbours per node.
        y: class numbers (−1: unlabelled), or None.
        split: per node 0 none, 1 train, 2 validation, 3 test; or None without a split.
        class_names: names of the classes, or of the labels, by number; empty if they have none.
        labels: 0/1 ``[nodes, labels]`` where a node has several; else None.
    """

    ids: Any
    degree: Array
    y: Array | None = None
    split: Array | None = None
    class_names: tuple[str, ...] = ()
    labels: Array | None = None

    def __len__(self) -> int:
        return len(self.degree)

    def class_name(self, number: int) -> str:
        """Returns the name of a class; without names, ``class 3``."""
        return name_of_class(number, self.class_names)


def name_of_class(number: int, names: Sequence[str]) -> str:
    """Returns the name of a class; without names, ``class 3``."""
    return names[number] if 0 <= number < len(names) else f"class {number}"


def describe_nodes(
    graph: "Graph | GraphCollection", node_type: str | None = None, *, own_ids: bool = True
) -> RunNodes:
    """Returns what a run keeps of the nodes of a graph, or of several one below the other.

    Args:
        graph: one graph, or several.
        node_type: of which type; None is the only one.
        own_ids: keep the ids of the nodes; else their numbers.
    """
    from graphcl.graphs.collection import GraphCollection

    nodes: Any
    split: Array | None = None
    if isinstance(graph, GraphCollection):
        nodes, names = graph, graph.train[0].class_names
        degree = np.concatenate([one.degrees() for one in graph.graphs])
        split = np.repeat(np.arange(1, 4), graph.split_nodes)
    else:
        nodes = graph.only_type if node_type is None else graph.type(node_type)
        degree = graph.degrees(nodes.name)
        names = nodes.class_names
        if nodes.has_split or nodes.split_gap:  # half a split is no reason to draw another
            split = np.zeros(nodes.num_nodes, np.uint8)
            for code, mask in enumerate((nodes.train_mask, nodes.val_mask, nodes.test_mask), 1):
                if mask is not None:
                    split[np.asarray(mask)] = code
    known = own_ids and nodes.node_ids is not None
    ids = nodes.node_ids[:] if known else np.arange(nodes.num_nodes)
    y = nodes.y
    single, several = (y, None) if y is None or y.ndim == 1 else (None, y)
    return RunNodes(ids, degree, single, split, names, several)


def write_nodes(folder: Path, nodes: RunNodes) -> None:
    """Writes `nodes.npz` into a run."""
    arrays: dict[str, Array] = {"degree": nodes.degree.astype(np.int32), **_pack(nodes.ids)}
    if nodes.labels is not None:
        arrays["labels"] = nodes.labels.astype(np.int8)
    if nodes.class_names:
        arrays |= _pack(np.array(nodes.class_names, dtype=object), "class")
    if nodes.y is not None:
        arrays["y"] = nodes.y.astype(np.int64)
    if nodes.split is not None:
        arrays["split"] = nodes.split.astype(np.uint8)
    if nodes.class_names:
        packed = _pack(np.array(nodes.class_names, dtype=object))
        arrays |= {"class_bytes": packed["id_bytes"], "class_ends": packed["id_ends"]}
    with whole_file(folder / NODES) as staging:
        np.savez(staging, allow_pickle=False, **arrays)


def read_nodes(run: Path) -> RunNodes | None:
    """Returns the nodes of a run, or None where it keeps none, as `GraphCL.save` writes it.

    Raises:
        RunError: the file is damaged, or its arrays do not fit each other.
    """
    path = run / NODES
    if not path.exists():
        return None
    arrays = read_npz(path, None, RunError)
    try:
        names = _unpack(arrays, "class") if "class_ends" in arrays else ()
        ids = arrays["ids"] if "ids" in arrays else _unpack(arrays)
        nodes = RunNodes(
            ids,
            arrays["degree"],
            y=arrays.get("y"),
            split=arrays.get("split"),
            labels=arrays.get("labels"),
            class_names=tuple(names),
        )
    except (ValueError, KeyError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    given = (nodes.ids, nodes.y, nodes.split)
    if any(array is not None and array.shape != nodes.degree.shape for array in given):
        raise RunError(f"{path}: its arrays differ in length")
    if nodes.labels is not None and (nodes.labels.ndim != 2 or len(nodes.labels) != len(nodes)):
        raise RunError(f"{path}: its arrays differ in length")
    return nodes


def _pack(ids: Any, name: str = "id") -> dict[str, Array]:
    if isinstance(ids, Names):  # they lie like this already
        start, text = int(ids.offsets[0]), np.asarray(ids.text)
        ends = np.asarray(ids.offsets[1:]) - start
        return {f"{name}_bytes": text[start : start + int(ends[-1])], f"{name}_ends": ends}
    if ids.dtype.kind in "iufb":
        return {"ids": ids}
    texts = [str(name).encode("utf-8", "surrogatepass") for name in ids.tolist()]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return {f"{name}_bytes": np.frombuffer(b"".join(texts), np.uint8), f"{name}_ends": ends}


def _unpack(arrays: dict[str, Array], name: str = "id") -> Array:
    blob, ends = arrays[f"{name}_bytes"].tobytes(), arrays[f"{name}_ends"].tolist()
    starts = [0, *ends[:-1]]
    names = [blob[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, ends, strict=True)]
    unpacked = np.empty(len(names), dtype=object)  # in memory alone: no room for the longest
    unpacked[:] = names
    return unpacked
