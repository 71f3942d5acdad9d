"""What an update writes into the folder of a new version; what did not change is shared."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import counted
from graphcl.estimator.fitted import Fitted
from graphcl.evaluation.drift import Drift
from graphcl.files.atomic import write_whole
from graphcl.graphs.collection import fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.reporting.page import drift_page
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.runs.nodes import RELATIONS, describe_nodes, write_nodes
from graphcl.runs.results import GraphFacts, read_result
from graphcl.store.columns import ScaledFeatures
from graphcl.store.header import MASKS, read_store
from graphcl.store.reader import EDGE_DTYPES, SPARSE, read_part
from graphcl.store.writer import (
    ArrayWriter,
    StoreWriter,
    write_edges,
    write_features,
    write_names,
)
from graphcl.tabular.preparation import ARRAYS, FILE
from graphcl.updating.embedding import own_folder
from graphcl.updating.matching import Grown

DRIFT, PAGE = "drift.json", "drift.html"
UNSCORED = "the graph has changed since the training: graphcl evaluate scores it"
_MODEL = (runs.MODEL, runs.SCALING, runs.METRICS, runs.ALIGNMENT)
_SHARED = (runs.CHOICE, runs.SCHEMA, FILE, ARRAYS)

IntArray = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


def write_graph(folder: Path, grown: Grown, base: Path) -> None:
    """Writes the graph of a version as a store, and what the version keeps of its nodes.

    How tables became features is shared with the version `base`, which it was made from.
    """
    graph = grown.changed.graph
    _write_store(folder / versions.GRAPH, grown, versions.own_graph(base))
    for name in graph.nodes:
        where = own_folder(folder, base, name)
        write_nodes(where, describe_nodes(graph, name))
        if where != folder:
            versions.share_files(base / where.relative_to(folder), where, (FILE, ARRAYS))
    for there in sorted((base / RELATIONS).glob("*")):
        here = folder / RELATIONS / there.name
        here.mkdir(parents=True)
        versions.share_files(there, here, (FILE, ARRAYS))


def _write_store(path: Path, grown: Grown, before: Path | None) -> None:
    """Writes the graph.

    Arrays that did not change share their files with the store `before`, of the last version. Of
    features that are mapped from any store, rows that changed are written, if they are few.
    """
    changed, counts, listed = grown.changed, grown.counts, dict[str, Any]()
    graph, header = changed.graph, None if before is None else read_store(before)
    if header is not None and not counts["new_nodes"] and not counts["removed_nodes"]:
        listed = read_part(header, 0)

    def share(writer: ArrayWriter, folder: Path | None, same: set[str]) -> None:
        known = {} if folder is None else listed.get(folder.name, {})
        for name in same & known.keys():
            assert folder is not None
            writer.adopt(name, folder, known[name], versions.share_file)

    with StoreWriter(path, name=graph.name) as store:
        for kind, one in graph.nodes.items():
            (nodes,) = store.add_type(kind, [0, one.num_nodes], one.class_names)
            same = {"node_ids", "node_id_offsets"}
            if not len(changed.moved[kind]):
                same |= {"x", "x_scale", "x_row_scale", *SPARSE}
            known = header is not None and kind in header.types
            share(nodes, header.nodes_folder(0, kind) if header and known else None, same)
            _write_nodes(nodes, one)
        for key, relation in graph.relations.items():
            loops = relation.self_loops_removed
            (edges,) = store.add_relation(
                key, undirected=relation.undirected, self_loops_removed=loops
            )
            ends = {key[0], key[2]}
            known = header is not None and key in header.relations
            if known and header and not any(len(changed.rewired[end]) for end in ends):
                share(edges, header.edges_folder(0, key), set(EDGE_DTYPES))
            if not edges.shape("indices"):
                narrow = graph.is_plain and graph.num_nodes < 1 << 31
                write_edges(edges, vars(relation), narrow=narrow)


def _write_nodes(writer: ArrayWriter, nodes: Nodes) -> None:
    """Writes what a type does not share with the last version."""
    x = nodes.x
    if writer.shape("x") or writer.shape("x_data"):
        writer.num_features = nodes.num_features
    elif isinstance(x, ScaledFeatures):
        writer.patch("x", x.values, versions.share_file)
        writer.write("x_scale", x.scale)
        if x.row_scale is not None:
            writer.write("x_row_scale", x.row_scale)
    elif isinstance(x, np.ndarray):
        writer.patch("x", x, versions.share_file)
    elif x is not None:
        write_features(writer, x)
    if not writer.shape("node_ids") and nodes.node_ids is not None:
        write_names(writer, nodes.node_ids)
    for name in ("y", *MASKS):
        if getattr(nodes, name) is not None:
            writer.write(name, getattr(nodes, name))


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
    write_whole(folder / DRIFT, json.dumps(found, indent=2, allow_nan=False) + "\n")
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
            result["warnings"] = [sign.to_json() for sign in health.warnings]
    write_whole(folder / runs.RESULT, json.dumps(result, indent=2, allow_nan=False) + "\n")


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
