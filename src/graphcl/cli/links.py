"""`graphcl links`: scores of pairs, likely missing links, and how far to trust them."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcl.cli.answers import (
    AnswerOption,
    OverwriteOption,
    RunArgument,
    check_out,
    first_rows,
    give_answer,
    has_node,
    open_run,
    say,
)
from graphcl.cli.options import DeviceOption, JsonOption, RunGraphOption, print_result
from graphcl.cli.table_options import takes_tables
from graphcl.errors import GraphError, RunError, require
from graphcl.files.records import aligned, read_pairs, records
from graphcl.run import Run
from graphcl.runs.files import keep_answer, read_answers
from graphcl.settings import LINKS_BY
from graphcl.tabular.options import TableOptions, counted

if TYPE_CHECKING:
    from graphcl.answers.linking import LinkEvaluation, Links
    from graphcl.graphs.relation import Relation

_EVALUATION = "How far to trust them"  # a group of options
SHOWN, KEPT = 20, 20  # links that are printed, and kept for the report
NAMES = {
    "model": "model",
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
    after: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="--evaluate by pairs that were linked after this day, as of which it trains.",
            rich_help_panel=_EVALUATION,
        ),
    ] = None,
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

    A small model is learned from the graph itself. It weighs embeddings, common neighbours, degrees
    and paths between two nodes, and says what speaks for a link. Its score is between 0 and 1. --by
    ranks by one thing alone: the cosine of embeddings, the number of common neighbours, or
    Adamic–Adar, which counts rare ones more. Above 20,000 nodes, nodes with similar embeddings are
    searched through the index of neighbors, among the 50 nearest to each.

    --evaluate says what all this is worth on this graph: a tenth of the linked pairs is removed
    with all that joins them, an encoder with the run's settings is trained on the rest, and each
    removed pair is ranked among 100 that are not linked, by the model and by each thing alone.

    Of a typed graph, links are those of one --relation. A source is compared with the sources that
    a target has, and a target with the targets that the source has; --node names sources.

    Examples:

        graphcl links runs/mine -k 100 --out suggested.csv

        graphcl links runs/mine --node "Ada Lovelace" -k 5

        graphcl links runs/mine --pairs pairs.csv --out scored.parquet

        graphcl links runs/mine --evaluate

        graphcl links runs/mine --evaluate --after 2026-03-31

        graphcl links runs/mine --by adamic_adar -k 100

        graphcl links runs/shop --relation buys --node "Ada Lovelace" -k 5
    """
    require(k >= 1, "links", "-k", "at least 1", k)
    asked = [bool(node), pairs is not None, evaluate]
    require(sum(asked) <= 1, "links", "--node, --pairs and --evaluate", "one of them", asked)
    require(not (evaluate and out), "links", "--out", "left out with --evaluate", str(out))
    require(evaluate or after is None, "links", "--after", "given with --evaluate", after)
    check_out(out, overwrite=overwrite)
    asked_of = open_run(run, ("links",), graph, tables, device=device)
    if evaluate:
        how: dict[str, Any] = {"share": share, "negatives": negatives, "seed": seed}
        how["after"] = after
        judged = asked_of.evaluate_links(relation=relation, verbose=True, **how)
        _keep_evaluation(asked_of, judged, asked_of.relation(relation), as_json=as_json)
        return
    wanted: list[tuple[str, str]] | None = None
    if pairs is not None:
        wanted = read_pairs(pairs, ("source", "target"), RunError, has_node(asked_of))
    try:
        find: dict[str, Any] = {"relation": relation, "by": by, "k": k, "on_note": say("links")}
        found = asked_of.links(node or None, pairs=wanted, **find)
    except GraphError as error:
        if pairs is None:
            raise
        raise RunError(f"{pairs}: {error}") from None
    kind, about, meant = "", "", asked_of.relation(relation)
    if meant is not None:
        kind, about = meant.source, f": {' '.join(meant.key)}"
    what = f"{counted(len(found), 'pair')} scored"
    if pairs is None:
        of_what = "" if kind else " of the graph"
        if node:
            of_what = f" of {counted(len(node), kind or 'node', kind or None)}"
        several = f"the {len(found):,} most likely missing links"
        what = (several if len(found) > 1 else "the most likely missing link") + of_what
        if not len(found):
            near = by in LINKS_BY[2:]  # which rank pairs with common neighbours alone
            what = f"no missing link{of_what} has common neighbours"
            what = what if near else f"every pair{of_what} is already linked"
    folder = asked_of.type_folder(kind or None)
    _give(asked_of, found, f"{what}{about}", node, pairs is not None, out, folder, as_json=as_json)


def _give(
    run: Run,
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
        "by": found.by,
        "best": [],
    }
    if not given:
        rows = records(found.columns(), slice(0, KEPT))
        summary["best"] = [row | {"score": round(row["score"], 4)} for row in rows]
        known = read_answers(folder).get("links", {})
        summary |= {"evaluation": known["evaluation"]} if "evaluation" in known else {}
    give_answer(
        run,
        "links",
        summary,
        found.columns(),
        text=what,
        shown=first_rows(found.columns(), ("score", "source", "target", "why"), SHOWN),
        out=out,
        as_json=as_json,
        keep=not given,
        folder=folder,
    )


def _keep_evaluation(
    run: Run, found: "LinkEvaluation", relation: "Relation | None", *, as_json: bool
) -> None:
    folder = run.type_folder(None if relation is None else relation.source)
    about = ({} if relation is None else {"relation": ":".join(relation.key)}) | asdict(found)
    kept = {**read_answers(folder).get("links", {}), "evaluation": about}
    why = keep_answer(folder, "links", kept)
    if why:
        say("links")(why)
    print_result({"run": str(run.folder), **about}, _table(found), as_json=as_json)


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
    how = f"linked after {found.after}" if found.after else "removed before training"
    about = (
        f"{counted(found.held_out, 'linked pair')} ({found.share:.0%}) {how}, "
        f"each ranked among {found.negatives} pairs that are not linked; seed {found.seed}"
    )
    return "\n".join([*aligned([head, *rows]), about])
