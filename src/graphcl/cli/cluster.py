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
    say,
)
from graphcl.cli.options import JsonOption, RunGraphOption
from graphcl.cli.table_options import takes_tables
from graphcl.tabular.options import TableOptions, counted

if TYPE_CHECKING:
    from graphcl.answers.grouping import Groups

NOTHING = "  nothing sets it apart beyond chance"


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
    nodes between groups out, as group 0. Groups are numbered by size.

    Of each group, the nodes nearest to its centre are named, and what sets it apart from all other
    nodes: numbers, categories, words, features, labels, with counts and the size of the effect,
    beyond chance. For that, the node table or the graph is read; without it, labels and degrees
    are compared. Nodes are then grouped again, five times, to see whether the groups stay.

    Embeddings in shards stay on disk, and features of a store in parts are not compared.

    Examples:

        graphcl cluster runs/mine --out groups.parquet

        graphcl cluster runs/mine --count 8

        graphcl cluster runs/papers --type author

        graphcl cluster runs/mine --method hdbscan --least 20 --json
    """
    check_out(out, overwrite=overwrite)
    asked = open_run(run, ("cluster",), graph, tables, embeddings=embeddings)
    folder = asked.type_folder(node_type)
    how: dict[str, Any] = {
        "method": method,
        "least": least,
        "seed": seed,
        "on_note": say("cluster"),
    }
    found = asked.cluster(count, node_type=asked.type_of(folder), **how)
    give_answer(
        asked,
        "cluster",
        found.summary(),
        found.columns(),
        text=found.said(),
        shown=_lines(found),
        out=out,
        as_json=as_json,
        folder=folder,
    )


def _lines(found: "Groups") -> list[str]:
    lines, again = [], None if found.stability is None else found.stability.groups
    for number, (size, some) in enumerate(zip(found.sizes, found.typical, strict=True), 1):
        names = ", ".join(map(str, found.ids[some].tolist()))
        share = 100 * size / np.size(found.assigned)
        stays = "" if again is None else f"; found again by {100 * again[number - 1]:.0f} %"
        lines.append(f"group {number}: {counted(size, 'node')} ({share:.0f} %){stays}")
        lines.append(f"  nearest its centre: {names}")
        lines += [f"  {one}" for one in found.profiles[number - 1]] or [NOTHING]
    return lines
