"""`graphcl links`: scores of pairs, likely missing links, and how far to trust them."""

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcl.cli.answers import (
    AnswerOption,
    OverwriteOption,
    RunArgument,
    check_out,
    give_answer,
    plain,
    run_nodes,
)
from graphcl.cli.options import DeviceOption, JsonOption, RunGraphOption, print_result
from graphcl.cli.table_options import takes_tables
from graphcl.errors import GraphError, RunError, require
from graphcl.files.records import aligned, read_pairs
from graphcl.runs.nodes import run_types, type_folder
from graphcl.runs.results import keep_answer, read_answers
from graphcl.settings import LINKS_BY
from graphcl.store.columns import rows_of
from graphcl.tabular.options import TableOptions, counted

if TYPE_CHECKING:
    from graphcl.answers.linking import LinkEvaluation, Links
    from graphcl.graphs.graph import Graph
    from graphcl.graphs.relation import Relation

_EVALUATION = "How far to trust them"  # a group of options
SHOWN, KEPT = 20, 20  # links that are printed, and kept for the report
NAMES = {
    "embeddings": "embeddings (cosine)",
    "common_neighbours": "common neighbours",
    "adamic_adar": "Adamic–Adar",
    "features": "features (cosine)",
    "popularity": "edges of the target",
}


@takes_tables
def links(
    run: RunArgument,
    node: Annotated[
        list[str], typer.Option("--node", metavar="ID", help="Only links of this node; repeatable.")
    ] = [],  # noqa: B006 (typer copies it)
    pairs: Annotated[
        Path | None,
        typer.Option(help="Score these pairs: .csv, .tsv or .parquet with two columns of ids."),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Number of links, of each node or in all.")] = 20,
    by: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"What ranks: {', '.join(LINKS_BY)}; --evaluate says which is best here.",
        ),
    ] = LINKS_BY[0],
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate",
            help="Train again without a tenth of the linked pairs, and rank.",
            rich_help_panel=_EVALUATION,
        ),
    ] = False,
    share: Annotated[
        float,
        typer.Option(
            help="Of the linked pairs that --evaluate removes.", rich_help_panel=_EVALUATION
        ),
    ] = 0.1,
    negatives: Annotated[
        int,
        typer.Option(
            help="Pairs that are not linked, per pair that --evaluate removes.",
            rich_help_panel=_EVALUATION,
        ),
    ] = 100,
    relation: Annotated[
        str | None,
        typer.Option(help="Of a typed graph: the relation, NAME or SOURCE:NAME:TARGET."),
    ] = None,
    out: AnswerOption = None,
    overwrite: OverwriteOption = False,
    graph: RunGraphOption = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    seed: Annotated[
        int,
        typer.Option(help="Decides which pairs --evaluate removes.", rich_help_panel=_EVALUATION),
    ] = 0,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """List likely links that the graph lacks, or score given pairs of nodes.

    The score of a pair is the cosine of its embeddings, or --by its common neighbours: their
    number, or Adamic–Adar, which counts rare ones more. Above 20,000 nodes, links by embeddings are
    searched through the index of neighbors, among the 50 nodes nearest to each.

    --evaluate says what these scores are worth on this graph: a tenth of the linked pairs is
    removed with all that joins them, a model with the run's settings is trained on the rest, and
    each removed pair is ranked among 100 that are not linked, beside common neighbours, Adamic–Adar
    and the cosine of the features.

    Of a typed graph, links are those of one --relation. A source is compared with the sources that
    a target has, and a target with the targets that the source has; --node names sources.

    Examples:

        graphcl links runs/mine -k 100 --out suggested.csv

        graphcl links runs/mine --node "Ada Lovelace" -k 5

        graphcl links runs/mine --pairs pairs.csv --out scored.parquet

        graphcl links runs/mine --evaluate

        graphcl links runs/mine --by adamic_adar -k 100

        graphcl links runs/shop --relation buys --node "Ada Lovelace" -k 5
    """
    require(k >= 1, "links", "-k", "at least 1", k)
    asked = [bool(node), pairs is not None, evaluate]
    require(sum(asked) <= 1, "links", "--node, --pairs and --evaluate", "one of them", asked)
    require(not (evaluate and out), "links", "--out", "left out with --evaluate", str(out))
    check_out(out, overwrite=overwrite)
    typed = bool(run_types(run)) if run.is_dir() else False
    require(typed or relation is None, "links", "--relation", "left out", relation)
    require(by in LINKS_BY, "links", "--by", f"one of {', '.join(LINKS_BY)}", by)
    require(not typed or by == LINKS_BY[0], "links", "--by", f"{LINKS_BY[0]} for a typed graph", by)
    from graphcl.answers.linking import RelationScores, evaluate_links, relation_links
    from graphcl.training_run import keep_embeddings

    if evaluate:
        from graphcl.devices import resolve_device
        from graphcl.estimator import GraphCL

        loaded, judged_relation = _graph(run, graph, tables, relation)
        model = GraphCL.load(run, device=str(resolve_device(device)))
        model.verbose = True
        name = ":".join(judged_relation.key) if typed else None
        how: dict[str, Any] = {"share": share, "negatives": negatives, "seed": seed}
        judged = evaluate_links(model, loaded, relation=name, **how)
        _keep_evaluation(run, judged, judged_relation if typed else None, as_json=as_json)
        return
    again = ("links", str(run))
    if typed:
        loaded, found_relation = _graph(run, graph, tables, relation)
        keep_embeddings(run, loaded)
        kinds = (found_relation.source, found_relation.target)
        folders = [type_folder(run, kind) for kind in kinds]
        read = [run_nodes(run, None, TableOptions(), again=again, folder=one) for one in folders]
        z = {kind: one[0] for kind, one in zip(kinds, read, strict=True)}
        scores = RelationScores.of(z, found_relation, loaded)
        ids, folder = (read[0][1].ids, read[1][1].ids), folders[0]
        kind, about = kinds[0], f": {' '.join(found_relation.key)}"
        find = partial(relation_links, scores, ids)
    else:
        rows_z, own = run_nodes(run, graph, tables, again=again)
        ids, folder, kind, about = (own.ids, own.ids), run, "", ""
        find = partial(_plain_links, run, graph, tables, rows_z, own.ids, by)
    if pairs is not None:
        wanted = read_pairs(pairs, ("source", "target"), RunError)
        try:
            found = find(pairs=wanted)
        except GraphError as error:
            raise RunError(f"{pairs}: {error}") from None
        what = f"{counted(len(found), 'pair')} scored"
    else:
        where = f"{run}: {kind}" if kind else str(run)
        found = find(rows=rows_of(node, ids[0], where, RunError) if node else None, k=k)
        of = "" if kind else " of the graph"
        if node:
            of = f" of {counted(len(node), kind, kind) if kind else counted(len(node), 'node')}"
        several = f"the {len(found):,} most likely missing links"
        what = several if len(found) > 1 else "the most likely missing link"
        what = f"{what if len(found) else 'no pair lacks a link'}{of}"
    _give(run, found, f"{what}{about}", node, pairs is not None, out, folder, as_json=as_json)


def _plain_links(
    run: Path,
    graph: str | None,
    tables: TableOptions,
    z: Any,
    ids: Any,
    by: str,
    *,
    pairs: Any = None,
    rows: Any = None,
    k: int = 0,
) -> "Links":
    """Returns links of a plain graph, as `relation_links` does; read only where it is needed."""
    from graphcl.answers.linking import missing_links, score_pairs
    from graphcl.answers.similar import stored_index
    from graphcl.evaluation.nearest import EXACT_ROWS

    if pairs is not None:
        loaded = None if by == LINKS_BY[0] else _graph(run, graph, tables)[0]
        return score_pairs(z, ids, pairs, loaded, by=by)
    loaded = _graph(run, graph, tables)[0]
    index = None
    if len(z) > EXACT_ROWS and by == LINKS_BY[0]:
        index, built = stored_index(run, z)
        if built:
            print(f"links: built an index of {counted(len(z), 'node')} ({built})", file=sys.stderr)
    return missing_links(z, ids, loaded, rows=rows, k=k, index=index, by=by)


def _give(
    run: Path,
    found: "Links",
    what: str,
    node: list[str],
    given: bool,
    out: Path | None,
    folder: Path,
    *,
    as_json: bool,
) -> None:
    """Writes or prints links; their summary is kept in `folder`, unless the pairs were given."""
    summary: dict[str, Any] = {
        "links": len(found),
        "of": node or None,
        "given": given,
        "best": [],
    }
    if not given:
        summary["best"] = _best(found)
        known = read_answers(folder).get("links", {})
        summary |= {"evaluation": known["evaluation"]} if "evaluation" in known else {}
    lines = ["score\tsource\ttarget"] if len(found) else []
    lines += [
        f"{score:.4f}\t{first}\t{second}"
        for first, second, score in zip(
            found.source[:SHOWN], found.target[:SHOWN], found.scores, strict=False
        )
    ]
    more = len(found) - SHOWN
    give_answer(
        run,
        "links",
        summary,
        found.columns(),
        text=what,
        shown=[*lines, f"… and {more:,} more; --out writes all"] if more > 0 else lines,
        out=out,
        as_json=as_json,
        keep=not given,
        folder=folder,
    )


def _best(found: "Links") -> list[dict[str, Any]]:
    parts = zip(found.source[:KEPT], found.target[:KEPT], found.scores[:KEPT], strict=True)
    return [
        {"source": plain(first), "target": plain(second), "score": round(float(score), 4)}
        for first, second, score in parts
    ]


def _graph(
    run: Path, given: str | None, tables: TableOptions, relation: str | None = None
) -> "tuple[Graph, Relation]":
    """Returns the graph of a run, and the relation that is meant.

    Raises:
        RunError: there are several graphs, or several relations and none is named.
    """
    from graphcl.cli.graphs import load_run_graph
    from graphcl.graphs.graph import Graph

    graph = load_run_graph(run, given, tables, again=("links", str(run)))
    if not isinstance(graph, Graph):
        raise RunError(f"{run}: has {len(graph.graphs)} graphs; links are of one")
    if relation is not None:
        return graph, graph.relation(relation)
    if len(graph.relations) != 1:
        names = ", ".join(":".join(key) for key in graph.relations)
        first = next(iter(graph.relations))[1]
        raise RunError(
            f"{run}: its graph has several relations ({names}); name one: --relation {first}"
        )
    return graph, graph.only_relation


def _keep_evaluation(
    run: Path, found: "LinkEvaluation", relation: "Relation | None", *, as_json: bool
) -> None:
    folder = type_folder(run, None if relation is None else relation.source)
    about = ({} if relation is None else {"relation": ":".join(relation.key)}) | asdict(found)
    kept = {**read_answers(folder).get("links", {}), "evaluation": about}
    why = keep_answer(folder, "links", kept)
    if why:
        print(f"links: {why}", file=sys.stderr)
    print_result({"run": str(run), **about}, _table(found), as_json=as_json)


def _table(found: "LinkEvaluation") -> str:
    ranks = next(iter(found.scores.values())).hits
    head = ["", "ROC-AUC", "AP", "MRR", *(f"Hits@{k}" for k in ranks)]
    rows = [
        [
            NAMES[name],
            *(f"{value:.3f}" for value in (one.roc_auc, one.average_precision, one.mrr)),
            *(f"{one.hits[k]:.3f}" for k in ranks),
        ]
        for name, one in found.scores.items()
    ]
    about = (
        f"{counted(found.held_out, 'linked pair')} ({found.share:.0%}) removed before training, "
        f"each ranked among {found.negatives} pairs that are not linked; seed {found.seed}"
    )
    return "\n".join([*aligned([head, *rows]), about])
