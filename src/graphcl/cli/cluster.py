"""`graphcl cluster`: groups of similar nodes."""

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from graphcl.cli.answers import (
    AnswerOption,
    EmbeddingsOption,
    OverwriteOption,
    RunArgument,
    TypeOption,
    check_out,
    give_answer,
    open_run,
    plain,
)
from graphcl.cli.options import JsonOption, RunGraphOption
from graphcl.cli.table_options import takes_tables
from graphcl.tabular.options import TableOptions, counted

if TYPE_CHECKING:
    from graphcl.answers.grouping import Groups

KEPT = 24  # groups that are kept for the report


@takes_tables
def cluster(
    run: RunArgument,
    count: Annotated[
        int | None, typer.Option("--count", "-k", help="Number of groups. (default: chosen)")
    ] = None,
    method: Annotated[str, typer.Option(help="kmeans or hdbscan.")] = "kmeans",
    least: Annotated[
        int | None,
        typer.Option(help="The smallest group of hdbscan. (default: a hundredth of the nodes)"),
    ] = None,
    out: AnswerOption = None,
    overwrite: OverwriteOption = False,
    node_type: TypeOption = None,
    embeddings: EmbeddingsOption = None,
    graph: RunGraphOption = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    seed: Annotated[int, typer.Option(help="Decides samples and first centres.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Group similar nodes: k-means with the number of groups chosen, or HDBSCAN.

    Without --count, k-means is fitted with 2 to 20 groups on a sample of at most 5,000 nodes, and
    the number with the highest silhouette is taken. hdbscan finds the number itself and leaves
    nodes between groups out, as group 0. Groups are numbered by size; for each, the nodes nearest
    to its centre are named. The graph is needed only for a run without nodes.npz. Embeddings in
    shards are read whole.

    Examples:

        graphcl cluster runs/mine --out groups.parquet

        graphcl cluster runs/mine --count 8

        graphcl cluster runs/papers --type author

        graphcl cluster runs/mine --method hdbscan --least 20 --json
    """
    check_out(out, overwrite=overwrite)
    asked = open_run(run, ("cluster",), graph, tables, embeddings=embeddings)
    folder = asked.type_folder(node_type)
    how: dict[str, Any] = {"method": method, "least": least, "seed": seed}
    found = asked.cluster(count, node_type=asked.type_of(folder), **how)
    chosen = count is None and method == "kmeans"
    give_answer(
        asked,
        "cluster",
        _summary(found, chosen),
        found.columns(),
        text=_text(found, chosen),
        shown=_lines(found),
        out=out,
        as_json=as_json,
        folder=folder,
    )


def _summary(found: "Groups", chosen: bool) -> dict[str, Any]:
    return {
        "method": found.method,
        "groups": len(found),
        "chosen_by": "silhouette" if chosen else None,
        "silhouette": found.silhouette,
        "tried": {str(count): score for count, score in found.tried.items()},
        "sizes": list(found.sizes[:KEPT]),
        "outside": int((found.assigned < 0).sum()),
        "typical": [[plain(one) for one in found.ids[some]] for some in found.typical[:KEPT]],
    }


def _text(found: "Groups", chosen: bool) -> str:
    how = f"; the number with the highest silhouette of {len(found.tried)} tried" if chosen else ""
    score = "" if found.silhouette is None else f", silhouette {found.silhouette:.3f}"
    outside = int((found.assigned < 0).sum())
    left = f"; {counted(outside, 'node')} in none" if outside else ""
    return f"{counted(len(found), 'group')} by {found.method}{score}{how}{left}"


def _lines(found: "Groups") -> list[str]:
    lines = ["group\tnodes\tnearest its centre"]
    for number, (size, some) in enumerate(zip(found.sizes, found.typical, strict=True), 1):
        names = ", ".join(map(str, found.ids[some].tolist()))
        share = 100 * size / np.size(found.assigned)
        lines.append(f"{number}\t{size:,} ({share:.0f} %)\t{names}")
    return lines
