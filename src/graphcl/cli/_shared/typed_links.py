"""`graphcl links` for runs of typed graphs: links of one relation."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphcl.answers.linking import LinkEvaluation, Links, evaluate_links
from graphcl.answers.typed_links import RelationScores, relation_links
from graphcl.cli._shared.graphs import load_run_any
from graphcl.cli._shared.kept import keep_embeddings
from graphcl.devices import resolve_device
from graphcl.errors import RunError
from graphcl.estimator import GraphCL
from graphcl.files.records import read_pairs
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Relation
from graphcl.runs import files as runs
from graphcl.runs.nodes import read_nodes
from graphcl.runs.typed import type_folder
from graphcl.store.ids import rows_of
from graphcl.tabular.options import TableOptions, counted


class FoundLinks(NamedTuple):
    """Links, what is said of them, and where in the run the summary is kept."""

    links: Links
    text: str
    folder: Path


def find_links(
    run: Path,
    given: str | None,
    tables: TableOptions,
    relation: str | None,
    *,
    nodes: list[str],
    pairs: Path | None,
    k: int,
) -> FoundLinks:
    """Returns likely links of a relation, of some sources, or scores of given pairs."""
    graph, found = _relation(run, given, tables, relation)
    keep_embeddings(run, graph)
    kinds = (found.source, found.target)
    folders = [type_folder(run, kind) for kind in kinds]
    read = [read_nodes(folder) for folder in folders]
    z = dict(zip(kinds, map(runs.read_embeddings, folders), strict=True))
    for kind, one in zip(kinds, read, strict=True):
        if one is None or len(one) != len(z[kind]) or len(one) != graph.nodes[kind].num_nodes:
            raise RunError(f"{run}: the embeddings of {kind} do not fit its graph")
    ids = (read[0].ids, read[1].ids)  # type: ignore[union-attr]
    scores = RelationScores.of(z, found)
    name = f"{found.source} {found.name} {found.target}"
    if pairs is not None:
        wanted = read_pairs(pairs, ("source", "target"), RunError)
        ends = [
            rows_of([pair[place] for pair in wanted], ids[place], f"{pairs}: {kind}", RunError)
            for place, kind in enumerate(kinds)
        ]
        listed = np.stack(ends, axis=1)
        linked = scores.linked(listed)
        links = Links(listed, ids[0][ends[0]], ids[1][ends[1]], scores.pairs(listed), linked)
        return FoundLinks(links, f"{counted(len(links), 'pair')} scored: {name}", folders[0])
    rows = rows_of(nodes, ids[0], f"{run}: {found.source}", RunError) if nodes else None
    links = relation_links(scores, ids, rows=rows, k=k)
    of = f" of {counted(len(nodes), found.source, found.source)}" if nodes else ""
    if not len(links):
        return FoundLinks(links, f"no pair lacks a link{of}: {name}", folders[0])
    several = f"the {len(links):,} most likely missing links"
    what = several if len(links) > 1 else "the most likely missing link"
    return FoundLinks(links, f"{what}{of}: {name}", folders[0])


def evaluate_types(
    run: Path,
    given: str | None,
    tables: TableOptions,
    relation: str | None,
    *,
    share: float,
    negatives: int,
    seed: int,
    device: str,
) -> tuple[LinkEvaluation, dict[str, Any], Path]:
    """Returns what the scores of a relation are worth, as a table and as JSON."""
    graph, found = _relation(run, given, tables, relation)
    model = GraphCL.load(run, device=str(resolve_device(device)))
    model.verbose = True
    name = ":".join(found.key)
    judged = evaluate_links(
        model, graph, relation=name, share=share, negatives=negatives, seed=seed
    )
    return judged, {"relation": name, **asdict(judged)}, type_folder(run, found.source)


def _relation(
    run: Path, given: str | None, tables: TableOptions, relation: str | None
) -> tuple[Graph, Relation]:
    graph = load_run_any(run, given, tables, again=("links", str(run)))
    assert isinstance(graph, Graph)
    if relation is None:
        if len(graph.relations) != 1:
            names = ", ".join(":".join(key) for key in graph.relations)
            first = next(iter(graph.relations))[1]
            raise RunError(
                f"{run}: its graph has several relations ({names}); name one: --relation {first}"
            )
        return graph, next(iter(graph.relations.values()))
    return graph, graph.relation(relation)
