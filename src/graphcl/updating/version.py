"""What an update writes into the folder of a new version; what did not change is shared.

Embeddings are old rows, and those that a change reaches. Where the layers below the last are needed
on many nodes around the change, they are computed on all of them, once, and kept in the version as
tables of their own. Later updates go on from these.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphcl.arrays import Floats, Integers
from graphcl.encoders import LayeredEncoder
from graphcl.errors import RunError, counted
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.inference import embed_fitted, embed_layer, hidden_widths, join_layers
from graphcl.evaluation.drift import Drift
from graphcl.files import patched
from graphcl.files.arrays import create_npy, write_npy
from graphcl.files.atomic import write_whole
from graphcl.graphs import graph as graphs
from graphcl.graphs.changing import Changed, affected_rows, rows_differ
from graphcl.graphs.collection import fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import entries_of
from graphcl.graphs.nodes import Nodes
from graphcl.reporting.page import drift_page
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.runs.files import GraphFacts, read_result
from graphcl.runs.nodes import (
    RELATIONS,
    relation_folder,
    type_folder,
)
from graphcl.store.writer import StoreWriter
from graphcl.tabular.preparation import ARRAYS, FILE, write_preparation
from graphcl.tabular.times import age_of
from graphcl.updating.matching import Grown

MOST = 0.75  # of the nodes; where more are affected, all are embedded, which is faster
AROUND = 0.25  # of the nodes; where layers below are needed on more, they are kept
SMALL_BYTES = 1 << 25  # layers of this size are computed again each time
_BLOCK = 1 << 16  # rows that are copied at a time
DRIFT, PAGE = "drift.json", "drift.html"
UNSCORED = "the graph has changed since the training: graphcl evaluate scores it"
_MODEL = (runs.MODEL, runs.SCALING, runs.METRICS, runs.ALIGNMENT)
_SHARED = (runs.SCHEMA, FILE, ARRAYS)
_EMBEDDINGS = Path(runs.EMBEDDINGS).stem

Levels = dict[str, Integers]  # rows by type


@dataclass(frozen=True, eq=False)
class Old:
    """What a new version takes its rows from.

    Attributes:
        base: the folder of the version.
        fitted: its model.
        z: its embeddings by type; None if it keeps none.
        graph: its graph.
    """

    base: Path
    fitted: Fitted
    z: dict[str, Any] | None
    graph: Graph

    def hidden(self) -> list[Any] | None:
        """Returns the layers below the last that the version keeps; None if it keeps none."""
        widths = (hidden_widths(self.fitted) if self.graph.is_plain else None) or []
        names = [_name(number) for number in range(1, len(widths) + 1)]
        if not names or not all(patched.has_table(self.base, name) for name in names):
            return None
        found = [patched.map_table(self.base, name, RunError) for name in names]
        kinds = [(one.shape, one.dtype) for one in found]
        known = [((self.graph.num_nodes, width), np.dtype(np.float32)) for width in widths]
        return found if kinds == known else None


def _name(number: int) -> str:
    return f"hidden-{number}"


def reached_rows(old: Old, changed: Changed) -> list[Levels]:
    """Returns for each layer the rows by type that a change reaches; all, if that is not known."""
    encoder = old.fitted.encoder
    layers = len(encoder.levels()) if isinstance(encoder, LayeredEncoder) else 1
    if old.z is None or not isinstance(encoder, LayeredEncoder):
        return [every_row(changed.graph)] * layers
    return affected_rows(changed._replace(moved=_moved(old, changed)), layers)


def every_row(graph: Graph) -> Levels:
    """Returns all rows by type."""
    return {name: np.arange(one.num_nodes) for name, one in graph.nodes.items()}


def _moved(old: Old, changed: Changed) -> Levels:
    """Returns the rows whose features differ, also those that are made of neighbours' features."""
    moved = dict(changed.moved)
    filled = [one.name for one in old.fitted.schema.types if one.filled != "given"]
    if not filled:
        return moved
    before, after = (old.fitted.prepare(one).graph for one in (old.graph, changed.graph))
    for name in filled:
        if name in moved:
            kept, new = changed.kept[name], after.nodes[name].num_nodes
            first: Any = before.nodes[name].x
            second: Any = after.nodes[name].x
            differs = np.flatnonzero(rows_differ(first[kept], second[: len(kept)]))
            moved[name] = np.union1d(differs, np.arange(len(kept), new))
    return moved


def write_changed(
    folder: Path,
    old: Old,
    changed: Changed,
    levels: list[Levels],
    *,
    device: torch.device,
    scratch: Path,
) -> tuple[dict[str, Any], Levels]:
    """Embeds the rows that a change reaches, and writes all embeddings into a new version.

    Returns:
        The embeddings of all nodes by type, and which rows of them were computed.
    """
    graph, rows = changed.graph, levels[-1]
    if sum(map(len, rows.values())) > MOST * graph.num_nodes:
        rows = every_row(graph)
    options: dict[str, Any] = {"device": device, "scratch": scratch}
    if graph.is_plain:
        (name,) = rows
        below = _below(folder, old, changed, [one[name] for one in levels], rows[name], options)
        if below is not None and len(rows[name]):
            fresh = {name: _from_layers(old, graph, below, rows[name], options)}
            return write_tables(folder, old, changed, rows, fresh), rows
    every = sum(map(len, rows.values())) == graph.num_nodes
    fresh = embed_fitted(old.fitted, graph, None if every else dict(rows), **options)
    return write_tables(folder, old, changed, rows, fresh), rows


def _from_layers(
    old: Old, graph: Graph, below: list[Any], rows: Integers, options: dict[str, Any]
) -> Floats:
    """Returns the embeddings of rows of a plain graph from the layers below the last."""
    nodes = None if len(rows) == graph.num_nodes else rows
    last = embed_layer(old.fitted, graph, len(below), below[-1], nodes, **options)
    return join_layers(old.fitted, graph, below, last, nodes, device=options["device"])


def write_tables(
    folder: Path, old: Old, changed: Changed, rows: Levels, fresh: Mapping[str, Floats]
) -> dict[str, Any]:
    """Writes the embeddings of all types: old rows that stay, and those that were computed."""
    found = {}
    for name, some in fresh.items():
        before = None if old.z is None else old.z[name]
        own = own_folder(folder, old.base, name)
        found[name] = write_rows(own, _EMBEDDINGS, before, changed.kept[name], rows[name], some)
    return found


def own_folder(folder: Path, base: Path, name: str) -> Path:
    """Returns where a new version keeps what is of a type: as the version `base` does."""
    own = folder / type_folder(base, name).relative_to(base)
    own.mkdir(parents=True, exist_ok=True)
    return own


def _below(
    folder: Path,
    old: Old,
    changed: Changed,
    levels: list[Integers],
    rows: Integers,
    options: dict[str, Any],
) -> list[Any] | None:
    """Returns the layers below the last on all nodes, and writes them; None if few are needed."""
    graph, widths = changed.graph, hidden_widths(old.fitted)
    nodes = None if len(rows) == graph.num_nodes else rows
    (of_type,) = changed.kept.values()
    if not widths or old.z is None:
        return None
    kept, below = old.hidden(), list[Any]()
    if kept is None:
        small = graph.num_nodes * 4 * max(widths) <= SMALL_BYTES
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
        below.append(write_rows(folder, _name(number + 1), table, of_type, rows, fresh))
    return below


def _many(graph: Graph, nodes: Integers | None) -> bool:
    """Returns whether the nodes and those around them are a large part of the graph."""
    if nodes is None:
        return True
    indices = np.asarray(graph.indices)
    reached = np.zeros(graph.num_nodes, bool)
    reached[nodes] = True
    for start in range(0, len(nodes), _BLOCK):
        some = nodes[start : start + _BLOCK]
        reached[indices[entries_of(graph.indptr, some)]] = True
    return int(reached.sum()) > AROUND * graph.num_nodes


def write_rows(
    folder: Path, name: str, old: Any, kept: Integers, rows: Integers, fresh: Floats
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
        write_npy(folder / f"{name}.npy", fresh)
        return np.load(folder / f"{name}.npy", mmap_mode="r")
    if len(kept) == len(old):
        table = patched.overlay(old, rows, fresh)
        patched.write_table(folder, name, table, versions.share_file)
        return table
    new = int(np.searchsorted(rows, len(kept)))  # in `fresh`, new nodes come last
    shape = (len(kept) + len(rows) - new, old.shape[1])
    file = folder / f"{name}.npy"
    z = create_npy(file, shape, np.float32)
    for start in range(0, len(kept), _BLOCK):
        z[start : start + _BLOCK][: len(kept) - start] = old[kept[start : start + _BLOCK]]
    z[rows] = fresh
    z.flush()
    return np.load(file, mmap_mode="r")


def write_graph(folder: Path, grown: Grown, base: Path, before: Path | None) -> None:
    """Writes the graph of a version as a store.

    How tables became features is shared with the version `base`, which it was made from. What
    changed since its store `before` is written alone.
    """
    graph = grown.changed.graph
    share: Any = {"share": versions.share_file, "before": before}
    with StoreWriter(folder / versions.GRAPH, name=graph.name, **share) as store:
        graphs.write_graph(graph, store, None)
    for name in graph.nodes:
        where = own_folder(folder, base, name)
        if where != folder:
            versions.share_files(base / where.relative_to(folder), where, (FILE, ARRAYS))
    for there in sorted((base / RELATIONS).glob("*")):
        here = folder / RELATIONS / there.name
        here.mkdir(parents=True)
        versions.share_files(there, here, (FILE, ARRAYS))
    for place, relation in enumerate(graph.relations.values()):
        if age_of(relation) is not None:  # it says until when ages are counted
            write_preparation(relation_folder(folder, place, relation.name), relation.preparation)


def write_model(
    folder: Path,
    base: Path,
    config: runs.RunConfig,
    fitted: Fitted,
    *,
    retrained: bool,
) -> None:
    """Writes the model into a version that has its graph; an old one shares its files."""
    origin = runs.Origin(
        graph=versions.GRAPH,
        fingerprint=fingerprint((Graph.open(folder / versions.GRAPH),)),
        tables=config.origin.tables,
    )
    if retrained:
        fitted.write(folder, origin)
    else:
        runs.write_config(folder, replace(config, origin=origin))
        versions.share_files(base, folder, _MODEL)
    versions.share_files(base, folder, _SHARED)


def write_drift(
    folder: Path, graph: Graph | Nodes, drift: Drift | None, about: dict[str, Any]
) -> dict[str, Any] | None:
    """Writes the drift as JSON and as a page; returns it as JSON has it."""
    if drift is None:
        return None
    ids: Any = graph.node_ids

    def name(row: int) -> Any:
        value = row if ids is None else ids[row]
        return value.item() if isinstance(value, np.generic) else value

    found = drift.to_json(name)
    runs.write_object(folder / DRIFT, found)
    write_whole(folder / PAGE, drift_page(about, found).encode("utf-8", "replace"))
    return found


def write_result(
    folder: Path,
    base: Path,
    fitted: Fitted,
    graph: Graph,
    *,
    retrained: bool,
) -> None:
    """Writes `result.json`: that of the version before, with the new graph and without scores."""
    result = read_result(base)
    if not result:
        return
    facts = asdict(GraphFacts.of(graph, versions.GRAPH))
    result["graph"] = {key: value for key, value in facts.items() if value != {}}
    if "probe" in result:
        result |= {"probe": None, "probe_skipped": UNSCORED}
    if graph.is_plain and graph.class_names:
        result["class_names"] = list(graph.class_names)
    if retrained:
        last, health = fitted.history[-1], fitted.health
        result |= {"epochs": last.epoch, "loss": last.loss, "mi_bound": last.mi_bound}
        result["train_seconds"] = fitted.seconds
        if health is not None:
            result |= {"effective_rank": health.effective_rank, "mean_cosine": health.mean_cosine}
            result["warnings"] = [asdict(sign) for sign in health.warnings]
    runs.write_object(folder / runs.RESULT, result)


def update_lines(
    run: Path, about: dict[str, Any], drift: Drift | None, path: Path | None, removed: list[int]
) -> list[str]:
    """Returns what a terminal shows."""
    counts = about["changes"]
    parts = [
        f"{counts['new_nodes']:,} new",
        f"{counts['removed_nodes']:,} removed",
        f"{counts['changed_nodes']:,} changed",
    ]
    edges = f"{counts['edges_before']:,} → {counts['edges_after']:,} edges"
    lines = [
        f"{run}: version {about['version']}: {counted(about['nodes'], 'node')} "
        f"({', '.join(parts)}), {edges}",
        f"embedded again: {about['embedded']:,} of {about['nodes']:,} nodes in "
        f"{about['seconds']['embedding']:.2f} s",
    ]
    if "until" in about:
        lines[0] += f", as of {about['until']}"
    if "retrained" in about:
        again = about["retrained"]
        aligned = "aligned to the old space" if again["aligned"] else "not aligned"
        lines.append(f"trained on: {counted(again['epochs'], 'epoch')}, {aligned}")
    lines += drift.lines() if drift is not None else []
    if path is not None:
        lines.append(f"drift page: {path / PAGE}")
    if removed:
        lines.append(f"removed: {', '.join(f'version {one}' for one in removed)}")
    return lines
