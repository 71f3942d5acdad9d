"""The embeddings of a new version: old rows, and those that a change reaches.

Where the layers below the last are needed on many nodes around the change, they are computed on all
of them, once, and kept in the version as tables of their own. Later updates go on from these.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphcl.encoders import LayeredEncoder
from graphcl.errors import RunError
from graphcl.estimator.changed import embed_layer, hidden_widths, join_layers
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.inference import embed_fitted
from graphcl.files import patched
from graphcl.graphs.changing import Changed, affected_rows
from graphcl.graphs.graph import Graph
from graphcl.runs import files as runs
from graphcl.runs import versions

MOST = 0.75  # of the nodes; where more are affected, all are embedded, which is faster
AROUND = 0.25  # of the nodes; where layers below are needed on more, they are kept
_BLOCK = 1 << 16  # rows that are copied at a time

IntArray = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Old:
    """What a new version takes its rows from.

    Attributes:
        base: the folder of the version.
        fitted: its model.
        z: its embeddings; None if it keeps none.
        nodes: how many nodes its graph has.
    """

    base: Path
    fitted: Fitted
    z: Any
    nodes: int

    def hidden(self) -> list[Any] | None:
        """Returns the layers below the last that the version keeps; None if it keeps none."""
        widths = hidden_widths(self.fitted)
        if not widths or not patched.has_table(self.base, _name(1)):
            return None
        found = []
        for number, width in enumerate(widths, 1):
            try:
                table = patched.map_table(self.base, _name(number), RunError)
            except FileNotFoundError:
                return None
            if table.shape != (self.nodes, width) or table.dtype != np.float32:
                return None
            found.append(table)
        return found


def _name(number: int) -> str:
    return f"hidden-{number}"


def reached_rows(old: Old, changed: Changed) -> list[IntArray]:
    """Returns for each layer the rows that a change reaches; all, if that is not known."""
    encoder = old.fitted.encoder
    if old.z is None or not isinstance(encoder, LayeredEncoder):
        layers = len(encoder.statement()) if isinstance(encoder, LayeredEncoder) else 1
        return [np.arange(changed.graph.num_nodes)] * layers
    return affected_rows(changed, len(encoder.statement()))


def write_changed(
    folder: Path,
    old: Old,
    changed: Changed,
    levels: list[IntArray],
    *,
    device: torch.device,
    scratch: Path,
) -> tuple[Any, IntArray]:
    """Embeds the rows that a change reaches, and writes all embeddings into a new version.

    Returns:
        The embeddings of all nodes, and which rows of them were computed.
    """
    graph, rows = changed.graph, levels[-1]
    if len(rows) > MOST * graph.num_nodes:
        rows = np.arange(graph.num_nodes)
    nodes = None if len(rows) == graph.num_nodes else rows
    options: dict[str, Any] = {"device": device, "scratch": scratch}
    below = _below(folder, old, changed, levels, nodes, options)
    if not len(rows):
        fresh = np.zeros((0, old.z.shape[1]), np.float32)
    elif below is None:
        fresh = embed_fitted(old.fitted, graph, nodes, **options)
    else:
        last = embed_layer(old.fitted, graph, len(below), below[-1], nodes, **options)
        fresh = join_layers(old.fitted, graph, below, last, nodes, device=device)
    return write_rows(folder, _EMBEDDINGS, old.z, changed.kept, rows, fresh), rows


_EMBEDDINGS = Path(runs.EMBEDDINGS).stem


def _below(
    folder: Path,
    old: Old,
    changed: Changed,
    levels: list[IntArray],
    nodes: IntArray | None,
    options: dict[str, Any],
) -> list[Any] | None:
    """Returns the layers below the last on all nodes, and writes them; None if few are needed."""
    graph, widths = changed.graph, hidden_widths(old.fitted)
    if not widths or old.z is None:
        return None
    kept, below = old.hidden(), list[Any]()
    if kept is None:
        small = graph.num_nodes * 4 * max(widths) <= patched.SMALL_BYTES
        if small or not _many(graph, nodes):
            return None
        for number in range(len(widths)):
            file = folder / f"{_name(number + 1)}.npy"
            table = embed_layer(
                old.fitted, graph, number, below[-1] if below else None, out=file, **options
            )
            below.append(table)
        return below
    for number, (table, rows) in enumerate(zip(kept, levels, strict=False)):
        under = below[-1] if below else None
        some = None if len(rows) == graph.num_nodes else rows
        fresh = np.zeros((0, widths[number]), np.float32)
        if len(rows):
            fresh = embed_layer(old.fitted, graph, number, under, some, **options)
        below.append(write_rows(folder, _name(number + 1), table, changed.kept, rows, fresh))
    return below


def _many(graph: Graph, nodes: IntArray | None) -> bool:
    """Returns whether the nodes and those around them are a large part of the graph."""
    if nodes is None:
        return True
    indptr, indices = np.asarray(graph.indptr), np.asarray(graph.indices)
    reached = np.zeros(graph.num_nodes, bool)
    reached[nodes] = True
    for start in range(0, len(nodes), _BLOCK):
        some = nodes[start : start + _BLOCK]
        counts = indptr[some + 1] - indptr[some]
        places = np.repeat(indptr[some] - (counts.cumsum() - counts), counts)
        reached[indices[places + np.arange(len(places))]] = True
    return int(reached.sum()) > AROUND * graph.num_nodes


def write_rows(
    folder: Path, name: str, old: Any, kept: IntArray, rows: IntArray, fresh: Rows
) -> Any:
    """Writes a table of all nodes: the old rows that stay, and those that were computed.

    Args:
        folder: of the new version.
        name: of the table.
        old: the table of the version before; None if all rows were computed.
        kept: its rows that stay; they come first.
        rows: the rows that were computed, ascending; all new ones are among them.
        fresh: their values.

    Returns:
        The table.
    """
    if old is None or len(rows) == len(kept) + int((rows >= len(kept)).sum()):  # all of them
        np.save(folder / f"{name}.npy", fresh)
        return np.load(folder / f"{name}.npy", mmap_mode="r")
    if len(kept) == len(old):
        table = patched.overlay(old, rows, fresh)
        patched.write_table(folder, name, table, versions.share_file)
        return table
    new = int(np.searchsorted(rows, len(kept)))  # in `fresh`, new nodes come last
    shape = (len(kept) + len(rows) - new, old.shape[1])
    file = folder / f"{name}.npy"
    with file.open("wb") as out:
        about = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, about)
        for start in range(0, len(kept), _BLOCK):
            np.asarray(old[kept[start : start + _BLOCK]]).tofile(out)
        fresh[new:].tofile(out)
    if new:
        z = np.load(file, mmap_mode="r+")
        z[rows[:new]] = fresh[:new]
        z.flush()
    return np.load(file, mmap_mode="r")
