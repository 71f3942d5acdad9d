"""`graphcl update`: a run whose graph has changed; its versions, and the way back."""

import sys
from typing import Annotated, Any

import typer

from graphcl.cli.answers import RunArgument, open_run
from graphcl.cli.options import (
    DeviceOption,
    JsonOption,
    RunGraphOption,
    is_verbose,
    print_result,
)
from graphcl.cli.table_options import takes_tables
from graphcl.errors import require
from graphcl.runs import versions as run_versions
from graphcl.runs.nodes import plain_names
from graphcl.tabular.options import TableOptions
from graphcl.tabular.report import Usual

_CHANGES, _VERSIONS = "What changes", "Versions"  # groups of options


@takes_tables
def update(
    run: RunArgument,
    version: Annotated[
        int | None, typer.Argument(help="With --rollback: the version. (default: the one before)")
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            help="A table of new nodes, and of known ones whose features change; TYPE=TABLE.",
            rich_help_panel=_CHANGES,
        ),
    ] = None,
    edges: Annotated[
        list[str] | None,
        typer.Option(help="A list of new edges; RELATION=LIST.", rich_help_panel=_CHANGES),
    ] = None,
    remove_nodes: Annotated[
        list[str] | None,
        typer.Option(
            help="A table with the ids of nodes to remove; TYPE=TABLE.", rich_help_panel=_CHANGES
        ),
    ] = None,
    remove_edges: Annotated[
        list[str] | None,
        typer.Option(help="A list of edges to remove; RELATION=LIST.", rich_help_panel=_CHANGES),
    ] = None,
    retrain: Annotated[
        bool,
        typer.Option(
            "--retrain", help="Go on training, embed all nodes, and align them to the old ones."
        ),
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(help="Of --retrain. (default: a tenth of the training's)")
    ] = None,
    back: Annotated[
        bool,
        typer.Option("--rollback", help="Use an earlier version again.", rich_help_panel=_VERSIONS),
    ] = False,
    versions: Annotated[
        bool, typer.Option("--versions", help="List the versions.", rich_help_panel=_VERSIONS)
    ] = False,
    keep: Annotated[
        int,
        typer.Option(help="Versions that are kept beside the training.", rich_help_panel=_VERSIONS),
    ] = run_versions.KEEP,
    graph: RunGraphOption = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Bring a run up to date with a graph that has changed, or go back to an earlier version.

    Nodes are named by their ids. Those whose surroundings changed, as far as the encoder looks, are
    embedded again; all others keep their embeddings. Features are prepared and scaled as in
    training. Of nodes that the graph has, columns that the table lacks keep their values. Edges are
    removed before new ones are added.

    Each update makes a version in the run, with its own graph and a page that shows how far
    embeddings moved. All commands use the newest one; --rollback goes back. A version keeps what
    changed: rows of embeddings and features, and all edges if one changed; other files are shared.
    One process at a time updates a run; a second one is refused.

    Of a graph with types, tables are named by type or relation.

    Examples:

        graphcl update runs/mine --nodes new_nodes.csv --edges new_edges.csv

        graphcl update runs/shop --nodes product=new.csv --edges buys=sales.csv

        graphcl update runs/mine --remove-nodes gone.csv --remove-edges cut.csv

        graphcl update runs/mine --edges new_edges.csv --retrain --epochs 10

        graphcl update runs/mine --versions

        graphcl update runs/mine --rollback

        graphcl update runs/mine --rollback 3
    """
    asked = open_run(run, ("update",), graph, device=device)
    root = asked.path
    changes = any(one is not None for one in (nodes, edges, remove_nodes, remove_edges, graph))
    changes = changes or retrain or bool(tables.given())
    require(back or version is None, "update", "VERSION", "given with --rollback", version)
    alone = not (changes and (back or versions))
    require(alone, "update", "--rollback and --versions", "given alone", "tables")
    if back:
        number = asked.rollback(version)
        about = {"run": str(root), "version": number}
        print_result(about, f"{root}: version {number} is in use", as_json=as_json)
        return
    if versions:
        found = asked.versions
        text = "\n".join(run_versions.describe(found))
        listed = [one.to_json() for one in found]
        print_result({"run": str(root), "versions": listed}, text, as_json=as_json)
        return
    require(changes, "update", "tables", "given: --nodes, --edges, …, or --retrain", None)
    of_nodes, of_edges = (None, None) if asked.types else plain_names(asked.folder)
    options = {**tables.given(), "nodes": _tables("--nodes", nodes, of_nodes)}
    done = asked.update(
        edges=_tables("--edges", edges, of_edges),
        remove_nodes=_tables("--remove-nodes", remove_nodes, of_nodes),
        remove_edges=_tables("--remove-edges", remove_edges, of_edges),
        retrain=retrain,
        epochs=epochs,
        keep=keep,
        verbose=True,
        on_note=_note,
        **options,
    )
    print_result({"run": str(root), **done.to_json()}, "\n".join(done.lines), as_json=as_json)


def _note(line: str) -> None:
    if is_verbose() or not isinstance(line, Usual):
        print(line, file=sys.stderr)


def _tables(option: str, given: list[str] | None, plain: str | None) -> Any:
    """Returns the table of an option, or several by type or relation.

    Of a plain graph, `plain` is what its tables call the nodes or the edges.
    """
    if not given:
        return None
    if plain is None and "=" in given[0]:
        pairs = [one.partition("=")[::2] for one in given]
        twice = len({name for name, _ in pairs}) < len(pairs) or not all(map(all, pairs))
        require(not twice, "update", option, "NAME=TABLE, each name once", " ".join(given))
        return dict(pairs)
    require(len(given) == 1, "update", option, "given once", " ".join(given))
    return given[0] if plain is None else given[0].removeprefix(f"{plain}=")
