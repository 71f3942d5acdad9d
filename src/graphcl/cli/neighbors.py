"""`graphcl neighbors`: lists the nodes most similar to a node."""

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from graphcl.answers.index import stored_index
from graphcl.cli._shared.graphs import load_run_graph
from graphcl.cli._shared.options import JsonOption, RunGraphOption, print_result
from graphcl.cli._shared.tables import takes_tables
from graphcl.errors import RunError, require, suggestion
from graphcl.runs import files as runs
from graphcl.runs.nodes import RunNodes, describe_nodes, read_nodes
from graphcl.tabular.options import TableOptions

MOST_COMPARED = 100_000  # ids that are searched for a suggestion


@takes_tables
def neighbors(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    node: Annotated[str, typer.Argument(metavar="ID", help="A node's id, as in the input.")],
    k: Annotated[int, typer.Option("-k", help="Number of nodes to list.")] = 10,
    graph: RunGraphOption = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    as_json: JsonOption = False,
) -> None:
    """List the nodes whose embeddings are most similar to a node's, by cosine.

    The first call builds an index in the run (neighbors.usearch); it is rebuilt if the embeddings
    have changed. Write -- before an id that begins with a dash. The graph is needed only for a run
    without nodes.npz.

    Examples:

        graphcl neighbors runs/cora 1024

        graphcl neighbors runs/mine "Ada Lovelace" -k 5 --json
    """
    require(k >= 1, "neighbors", "-k", "at least 1", k)
    runs.read_config(run)
    z = runs.read_embeddings(run)
    again = ("neighbors", str(run), *(["--"] if node.startswith("-") else []), node)
    nodes = None if graph is not None else read_nodes(run)
    if nodes is None:
        nodes = describe_nodes(load_run_graph(run, graph, tables, again=again))
    if len(nodes) != len(z):
        raise RunError(f"{run}: {len(z)} embeddings for {len(nodes)} nodes")
    row = _row(nodes, node, run)
    index, built = stored_index(run, z)
    if built:
        print(f"neighbors: built an index of {len(z):,} nodes ({built})", file=sys.stderr)
    found = index.search(z[row], min(k + 1, len(z)))
    near = [
        (int(key), 1 - float(distance))
        for key, distance in zip(found.keys, found.distances, strict=True)
        if int(key) != row
    ][:k]
    listed = [
        {"id": _plain(nodes.ids[key]), "cosine": cosine, **_label(nodes, key)}
        for key, cosine in near
    ]
    about = {"run": str(run), "id": _plain(nodes.ids[row]), "k": k, "neighbors": listed}
    lines = [f"{one['cosine']:.4f}\t{one['id']}{_class(one)}" for one in listed]
    print_result(about, "\n".join(lines), as_json=as_json)


def _row(nodes: RunNodes, node: str, run: Path) -> int:
    """Returns the row of the node whose id, as text, is `node`."""
    texts = [str(name) for name in nodes.ids.tolist()]
    try:
        return texts.index(node)
    except ValueError:
        near = suggestion(node, texts[:MOST_COMPARED])
        hint = near or f"; ids look like {texts[0]!r}"
        raise RunError(f"{run}: no node has the id {node!r}{hint}") from None


def _label(nodes: RunNodes, row: int) -> dict[str, int]:
    return {"label": int(nodes.y[row])} if nodes.y is not None and nodes.y[row] >= 0 else {}


def _class(entry: dict[str, Any]) -> str:
    return f"\tclass {entry['label']}" if "label" in entry else ""


def _plain(name: Any) -> Any:
    return name.item() if isinstance(name, np.generic) else name
