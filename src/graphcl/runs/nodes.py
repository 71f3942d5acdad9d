"""What a run keeps of its nodes: their ids as they came in, labels, split and degrees.

One small `nodes.npz` beside the embeddings, nothing pickled, so that a neighbour can be named and a
report drawn after the graph itself is gone. Text ids lie as one run of UTF-8 bytes with offsets:
NumPy's own text arrays would give every id the room of the longest.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import RunError
from graphcl.files.arrays import read_npz
from graphcl.files.atomic import whole_file
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import NODE
from graphcl.store.columns import Names
from graphcl.store.header import MASKS

if TYPE_CHECKING:  # reading the file needs no graph, and so none of the imports of one
    from graphcl.graphs.collection import GraphCollection
    from graphcl.graphs.graph import Graph

NODES = "nodes.npz"
SPLITS = ("", "train", "validation", "test")

Array = npt.NDArray[Any]


def describe_nodes(graph: "Graph | GraphCollection", node_type: str | None = None) -> Nodes:
    """Returns what a run keeps of the nodes of a graph, or of several one below the other.

    Args:
        graph: one graph, or several.
        node_type: of which type; None is the only one.
    """
    from graphcl.graphs.collection import GraphCollection

    if not isinstance(graph, GraphCollection):
        nodes = graph.only_type if node_type is None else graph.type(node_type)
        degree = graph.degrees(nodes.name)
        return replace(nodes, x=None, splits=None, preparation=None, degree=degree)
    return Nodes(
        NODE,
        graph.num_nodes,
        y=graph.y,
        **_masks(np.repeat(np.arange(1, 4), graph.split_nodes)),
        node_ids=graph.node_ids,
        class_names=graph.train[0].class_names,
        degree=np.concatenate([one.degrees() for one in graph.graphs]),
    )


def _masks(codes: Array | None) -> dict[str, Any]:
    if codes is None:
        return {}
    return {mask: codes == code for code, mask in enumerate(MASKS, 1)}


def write_nodes(folder: Path, nodes: Nodes) -> None:
    """Writes `nodes.npz` into a run."""
    degree = np.zeros(nodes.num_nodes) if nodes.degree is None else nodes.degree
    arrays: dict[str, Array] = {"degree": degree.astype(np.int32), **_pack(nodes.ids)}
    if nodes.y is not None:
        single = nodes.y.ndim == 1
        arrays["y" if single else "labels"] = nodes.y.astype(np.int64 if single else np.int8)
    codes = nodes.split_codes
    if codes is not None:
        arrays["split"] = codes
    if nodes.class_names:
        arrays |= _pack(np.array(nodes.class_names, dtype=object), "class")
    with whole_file(folder / NODES) as staging:
        np.savez(staging, allow_pickle=False, **arrays)


def read_nodes(run: Path) -> Nodes | None:
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
        degree, y, split = arrays["degree"], arrays.get("y"), arrays.get("split")
    except (ValueError, KeyError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    if any(one is not None and one.shape != degree.shape for one in (ids, y, split)):
        raise RunError(f"{path}: its arrays differ in length")
    several = arrays.get("labels")
    if several is not None and (several.ndim != 2 or len(several) != len(degree)):
        raise RunError(f"{path}: its arrays differ in length")
    return Nodes(
        NODE,
        len(degree),
        y=several if y is None else y,
        **_masks(split),
        node_ids=ids,
        class_names=tuple(names),
        degree=degree,
    )


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
