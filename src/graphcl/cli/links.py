"""`graphcl links`: scores of pairs, likely missing links, and how far to trust them."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.answers.index import stored_index
from graphcl.answers.linking import (
    BY,
    LinkEvaluation,
    Links,
    evaluate_links,
    missing_links,
    score_pairs,
)
from graphcl.cli._shared.answers import (
    AnswerOption,
    OverwriteOption,
    RunArgument,
    check_out,
    give_answer,
    plain,
    run_nodes,
)
from graphcl.cli._shared.graphs import load_run_graph
from graphcl.cli._shared.options import DeviceOption, JsonOption, RunGraphOption, print_result
from graphcl.cli._shared.tables import takes_tables
from graphcl.cli._shared.typed_links import evaluate_types, find_links
from graphcl.devices import resolve_device
from graphcl.errors import GraphError, RunError, require
from graphcl.estimator import GraphCL
from graphcl.evaluation.nearest import EXACT_ROWS
from graphcl.files.records import aligned, read_pairs
from graphcl.graphs.graph import Graph
from graphcl.runs.answers import keep_answer, read_answers
from graphcl.runs.typed import run_types
from graphcl.store.ids import rows_of
from graphcl.tabular.options import TableOptions, counted

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
            help=f"What ranks: {', '.join(BY)}; --evaluate says which is best here.",
        ),
    ] = BY[0],
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
    require(by in BY, "links", "--by", f"one of {', '.join(BY)}", by)
    require(not typed or by == BY[0], "links", "--by", f"{BY[0]} for a typed graph", by)
    if evaluate:
        if typed:
            judged, about, folder = evaluate_types(
                run,
                graph,
                tables,
                relation,
                share=share,
                negatives=negatives,
                seed=seed,
                device=device,
            )
            _keep_evaluation(run, folder, judged, about, as_json=as_json)
            return
        _evaluate(run, graph, tables, share, negatives, seed, device, as_json=as_json)
        return
    again = ("links", str(run))
    if typed:
        found, what, folder = find_links(run, graph, tables, relation, nodes=node, pairs=pairs, k=k)
        _give(run, found, what, node, pairs is not None, out, folder, as_json=as_json)
        return
    z, nodes = run_nodes(run, graph, tables, again=again)
    if pairs is not None:
        wanted = read_pairs(pairs, ("source", "target"), RunError)
        try:
            loaded = None if by == BY[0] else _one_graph(run, graph, tables)
            found = score_pairs(z, nodes.ids, wanted, loaded, by=by)
        except GraphError as error:
            raise RunError(f"{pairs}: {error}") from None
        what = f"{counted(len(found), 'pair')} scored"
    else:
        rows = rows_of(node, nodes.ids, str(run), RunError) if node else None
        loaded = _one_graph(run, graph, tables)
        index = _index(run, z) if len(z) > EXACT_ROWS and by == BY[0] else None
        found = missing_links(z, nodes.ids, loaded, rows=rows, k=k, index=index, by=by)
        of = f"of {len(node)} node{'s' if len(node) > 1 else ''}" if node else "of the graph"
        several = f"the {len(found):,} most likely missing links"
        what = f"{several if len(found) != 1 else 'the most likely missing link'} {of}"
        if not len(found):
            what = f"no pair of nodes lacks a link {of}" if not node else f"no link is missing {of}"
    _give(run, found, what, node, pairs is not None, out, run, as_json=as_json)


def _give(
    run: Path,
    found: Links,
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


def _best(found: Links) -> list[dict[str, Any]]:
    parts = zip(found.source[:KEPT], found.target[:KEPT], found.scores[:KEPT], strict=True)
    return [
        {"source": plain(first), "target": plain(second), "score": round(float(score), 4)}
        for first, second, score in parts
    ]


def _one_graph(run: Path, given: str | None, tables: TableOptions) -> Graph:
    graph = load_run_graph(run, given, tables, again=("links", str(run)))
    if not isinstance(graph, Graph):
        raise RunError(f"{run}: has {len(graph.graphs)} graphs; links are of one")
    return graph


def _index(run: Path, z: Any) -> Any:
    index, built = stored_index(run, z)
    if built:
        print(f"links: built an index of {counted(len(z), 'node')} ({built})", file=sys.stderr)
    return index


def _evaluate(
    run: Path,
    given: str | None,
    tables: TableOptions,
    share: float,
    negatives: int,
    seed: int,
    device: str,
    *,
    as_json: bool,
) -> None:
    graph = _one_graph(run, given, tables)
    model = GraphCL.load(run, device=str(resolve_device(device)))
    model.verbose = True
    found = evaluate_links(model, graph, share=share, negatives=negatives, seed=seed)
    _keep_evaluation(run, run, found, asdict(found), as_json=as_json)


def _keep_evaluation(
    run: Path, folder: Path, found: LinkEvaluation, about: dict[str, Any], *, as_json: bool
) -> None:
    kept = {**read_answers(folder).get("links", {}), "evaluation": about}
    why = keep_answer(folder, "links", kept)
    if why:
        print(f"links: {why}", file=sys.stderr)
    print_result({"run": str(run), **about}, _table(found), as_json=as_json)


def _table(found: LinkEvaluation) -> str:
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
