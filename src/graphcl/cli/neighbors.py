"""`graphcl neighbors`: lists the nodes most similar to a node, or to several.

With an index in the run it answers in about a second: nothing here imports torch or a graph.
"""

import sys
from functools import partial
from typing import Annotated, Any

import typer

from graphcl.answers.similar import Neighbours, find_neighbours, stored_index
from graphcl.cli.answers import (
    AnswerOption,
    EmbeddingsOption,
    OverwriteOption,
    RunArgument,
    TypeOption,
    check_out,
    nodes_folder,
    plain,
    run_nodes,
)
from graphcl.cli.options import JsonOption, RunGraphOption, print_result
from graphcl.cli.table_options import takes_tables
from graphcl.errors import RunError, require
from graphcl.files.records import write_records
from graphcl.graphs.nodes import Nodes
from graphcl.store.columns import rows_of
from graphcl.tabular.options import TableOptions, counted


@takes_tables
def neighbors(
    run: RunArgument,
    node: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids of nodes, as in the input.")
    ],
    k: Annotated[int, typer.Option("-k", help="Number of nodes to list.")] = 10,
    out: AnswerOption = None,
    overwrite: OverwriteOption = False,
    node_type: TypeOption = None,
    embeddings: EmbeddingsOption = None,
    graph: RunGraphOption = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    as_json: JsonOption = False,
) -> None:
    """List the nodes whose embeddings are most similar to a node's, by cosine.

    The first call builds an index in the run (neighbors.usearch); it is rebuilt if the embeddings
    have changed. Write -- before an id that begins with a dash. The graph is needed only for a run
    without nodes.npz. Of a typed graph, nodes are compared within their type: that of --type, or
    the only one with these ids. Embeddings in shards are compared block by block, without an
    index: the answer is exact, and little is held in memory.

    Examples:

        graphcl neighbors runs/cora 1024

        graphcl neighbors runs/mine "Ada Lovelace" -k 5 --json

        graphcl neighbors runs/mine "Ada Lovelace" "Alan Turing" --out similar.csv

        graphcl neighbors runs/papers "Ada Lovelace" --type author

        graphcl neighbors runs/big "Ada Lovelace" --embeddings shards.parquet
    """
    require(k >= 1, "neighbors", "-k", "at least 1", k)
    check_out(out, overwrite=overwrite)
    dashed = any(one.startswith("-") for one in node)
    again = ("neighbors", str(run), *(["--"] if dashed else []), *node)
    folder = nodes_folder(run, node_type, partial(_has_all, wanted=node))
    z, nodes = run_nodes(run, graph, tables, again=again, folder=folder, embeddings=embeddings)
    rows = rows_of(node, nodes.ids, str(embeddings or run), RunError)
    index, built = (None, "") if embeddings is not None else stored_index(folder, z)
    if built:
        print(f"neighbors: built an index of {counted(len(z), 'node')} ({built})", file=sys.stderr)
    found = find_neighbours(z, nodes.ids, rows, k, index)
    listed = [_listed(found, nodes, place) for place in range(len(found))]
    about: dict[str, Any] = {"run": str(run), "k": k}
    if len(rows) == 1:
        about |= {"id": plain(nodes.ids[rows[0]]), "neighbors": listed[0]}
    else:
        ids = [plain(nodes.ids[row]) for row in rows]
        each = zip(ids, listed, strict=True)
        about["nodes"] = [{"id": one, "neighbors": near} for one, near in each]
    if out is not None:
        columns = found.columns()
        if any("label" in one for near in listed for one in near):
            columns["label"] = [one.get("label") for near in listed for one in near]
        write_records(out, columns)
        about["out"] = str(out)
        print_result(about, f"{out}: {len(columns['id']):,} rows", as_json=as_json)
        return
    named = any("label" in one for near in listed for one in near)
    head = ["id"] * (len(rows) > 1) + ["cosine", "neighbor"] + ["label"] * named
    lines = ["\t".join(head)]
    for row, near in zip(rows, listed, strict=True):
        own = f"{nodes.ids[row]}\t" if len(rows) > 1 else ""
        lines += [f"{own}{one['cosine']:.4f}\t{one['id']}{_class(one)}" for one in near]
    print_result(about, "\n".join(lines), as_json=as_json)


def _has_all(nodes: Nodes, wanted: list[str]) -> bool:
    return set(wanted) <= set(map(str, nodes.ids.tolist()))


def _listed(found: Neighbours, nodes: Nodes, place: int) -> list[dict[str, Any]]:
    pairs = zip(found.nearest[place].tolist(), found.cosines[place].tolist(), strict=True)
    return [
        {"id": plain(nodes.ids[key]), "cosine": cosine, **_label(nodes, key)}
        for key, cosine in pairs
    ]


def _label(nodes: Nodes, row: int) -> dict[str, Any]:
    y = nodes.classes
    if y is None or y[row] < 0:
        return {}
    number = int(y[row])
    return {"label": nodes.class_name(number) if nodes.class_names else number}


def _class(entry: dict[str, Any]) -> str:
    if "label" not in entry:
        return ""
    return f"\t{entry['label']}" if isinstance(entry["label"], str) else f"\tclass {entry['label']}"
