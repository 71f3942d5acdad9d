"""`graphcl neighbors`: lists the nodes most similar to a node, or to several.

With an index in the run it answers in about a second: nothing here imports torch or a graph.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcl.cli.answers import (
    AnswerOption,
    EmbeddingsOption,
    OverwriteOption,
    RunArgument,
    TypeOption,
    check_out,
    open_run,
    plain,
    say,
)
from graphcl.cli.options import JsonOption, RunGraphOption, print_result
from graphcl.cli.table_options import takes_tables
from graphcl.files.records import write_records
from graphcl.runs.nodes import has_all
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:
    from graphcl.answers.similar import Neighbours
    from graphcl.graphs.nodes import Nodes


@takes_tables
def neighbors(
    run: RunArgument,
    node: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids of nodes, as in the input.")
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of nodes to list.")] = 10,
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
    check_out(out, overwrite=overwrite)
    dashed = any(one.startswith("-") for one in node)
    again = ("neighbors", *(["--"] if dashed else []), *node)
    asked = open_run(run, again, graph, tables, embeddings=embeddings)
    kind = asked.type_of(asked.type_folder(node_type, partial(has_all, wanted=node)))
    found = asked.neighbors(node, k, node_type=kind, on_note=say("neighbors"))
    nodes, rows = asked.nodes(kind), found.rows
    listed = [_listed(found, nodes, place) for place in range(len(found))]
    about: dict[str, Any] = {"run": str(asked.folder), "k": k}
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


def _listed(found: "Neighbours", nodes: "Nodes", place: int) -> list[dict[str, Any]]:
    pairs = zip(found.nearest[place].tolist(), found.cosines[place].tolist(), strict=True)
    return [
        {"id": plain(nodes.ids[key]), "cosine": cosine, **_label(nodes, key)}
        for key, cosine in pairs
    ]


def _label(nodes: "Nodes", row: int) -> dict[str, Any]:
    y = nodes.classes
    if y is None or y[row] < 0:
        return {}
    number = int(y[row])
    return {"label": nodes.class_name(number) if nodes.class_names else number}


def _class(entry: dict[str, Any]) -> str:
    if "label" not in entry:
        return ""
    return f"\t{entry['label']}" if isinstance(entry["label"], str) else f"\tclass {entry['label']}"
