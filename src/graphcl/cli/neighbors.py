"""`graphcl neighbors`: lists the nodes most similar to a node, or to several.

With an index in the run it answers in about a second: nothing here imports torch or a graph.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcl.cli.answers import (
    AnswerOption,
    EmbeddingsOption,
    OverwriteOption,
    RunArgument,
    TypeOption,
    check_out,
    first_rows,
    open_run,
    plain,
    say,
)
from graphcl.cli.options import JsonOption, RunGraphOption, print_result
from graphcl.cli.table_options import takes_tables
from graphcl.files.records import records, write_records
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:
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
    kind = asked.type_of(asked.type_folder(node_type, wanted=node))
    found = asked.neighbors(node, k, node_type=kind, on_note=say("neighbors"))
    nodes, columns, width = asked.nodes(kind), found.columns(), found.nearest.shape[1]
    if nodes.classes is not None:
        columns["label"] = [_label(nodes, row) for row in found.nearest.ravel().tolist()]
    ours = {"id": columns["neighbor"], "cosine": columns["cosine"]}
    near = records(ours | ({"label": columns["label"]} if "label" in columns else {}))
    each = [
        {"id": plain(nodes.ids[row]), "neighbors": near[place * width : (place + 1) * width]}
        for place, row in enumerate(found.rows)
    ]
    about = {"run": str(asked.folder), "k": k} | (each[0] if len(each) == 1 else {"nodes": each})
    names = ["id"] * (len(each) > 1) + ["cosine", "neighbor", "label"]
    text = "\n".join(first_rows(columns, names, len(near)))
    if out is not None:
        write_records(out, columns)
        about["out"], text = str(out), f"{out}: {len(near):,} rows"
    print_result(about, text, as_json=as_json)


def _label(nodes: "Nodes", row: int) -> str | int | None:
    y: Any = nodes.classes
    known = nodes.class_name(int(y[row])) if nodes.class_names else int(y[row])
    return known if y[row] >= 0 else None
