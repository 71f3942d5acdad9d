"""`graphcl serve`: a run as an HTTP service."""

import gc
import os
import resource
import socket
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli.answers import RunArgument, TypeOption, open_run
from graphcl.cli.options import DeviceOption, JsonOption, RunGraphOption, print_result
from graphcl.cli.processes import Ending, handled
from graphcl.cli.table_options import takes_tables
from graphcl.errors import RunError, import_extra, require
from graphcl.files.text import read_text
from graphcl.runs.nodes import is_labelled
from graphcl.serving.requests import Bounds
from graphcl.tabular.options import TableOptions, counted

TOKEN = "GRAPHCL_TOKEN"  # the environment's variable
LEAST_TOKEN = 16  # characters
GRACE = 8  # seconds that requests under way are given to end; containers give ten
TURN = 0.0002  # seconds until a thread that computes lets another have its turn
_BOUNDS = "What a request may ask"  # a group of options


@takes_tables
def serve(
    run: RunArgument,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on; another than this machine's own needs a token."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes any that is free.")
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"A file with the token that requests must bring. (default: {TOKEN})"),
    ] = None,
    layout: Annotated[
        str, typer.Option("--map", help="How the live page draws its map: pca, umap, or none.")
    ] = "pca",
    graph: RunGraphOption = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    device: DeviceOption = "cpu",
    rate: Annotated[
        float,
        typer.Option(
            min=0, help="Requests per second of one address; 0: any.", rich_help_panel=_BOUNDS
        ),
    ] = Bounds.per_second,
    most_nodes: Annotated[
        int, typer.Option(min=1, help="Nodes of one request.", rich_help_panel=_BOUNDS)
    ] = Bounds.nodes,
    most_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of one request.", rich_help_panel=_BOUNDS)
    ] = Bounds.bytes,
    seconds: Annotated[
        float, typer.Option(help="Until a request is answered.", rich_help_panel=_BOUNDS)
    ] = Bounds.seconds,
    node_type: TypeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a run over HTTP: embeddings, also of new nodes, similar nodes, labels, links.

    The service also has a live page: the map of the report, with a form that embeds a new node.
    What it answers is described at /docs, and for machines at /openapi.json. On another address
    than this machine's own, every request must bring a token (Authorization: Bearer TOKEN), which
    is read from a file or from the environment, never from the command line. Ctrl-C and SIGTERM let
    requests under way finish.

    Of a graph with types, it answers about the nodes of --type, or of the only type with labels. A
    new node then names its neighbours as RELATION/ID.

    Examples:

        graphcl serve runs/cora

        graphcl serve runs/shop --type product

        graphcl serve runs/cora --host 0.0.0.0 --token-file token.txt --port 80

        curl localhost:8000/embed -H 'content-type: application/json' -d '{"ids": ["5"]}'
    """
    require(layout in ("pca", "umap", "none"), "serve", "--map", "pca, umap or none", layout)
    require(seconds > 0, "serve", "--seconds", "more than 0", seconds)
    token = _token(token_file)
    from graphcl.serving.middleware import CONNECTIONS, HEAD_BYTES, HEAD_SECONDS, Connection, is_own

    own = is_own(host)
    if not own and token is None:
        raise RunError(
            f"serve: {host} can be reached by others; give a token: --token-file, or {TOKEN}"
        )
    uvicorn = import_extra("uvicorn", feature="graphcl serve", extra="serve")
    from graphcl.serving.app import build_app
    from graphcl.serving.pages import PageMaker
    from graphcl.serving.run import ServedRun

    # Labels may be learned, a map drawn and answers computed when the service stops. Threads of
    # theirs do not survive the interpreter's shutdown.
    Ending.at_once = True
    with closing(_listen(host, port)) as listening, suppress(KeyboardInterrupt):
        asked = open_run(run, ("serve",), graph, tables, device=device)
        loaded = asked.graph
        asked.keep_embeddings()
        kind = asked.type_of(asked.type_folder(node_type, is_labelled))
        served = ServedRun(asked.folder, loaded, device=device, node_type=kind)
        bounds = Bounds(
            nodes=most_nodes,
            bytes=most_bytes,
            in_flight=max(Bounds.in_flight, 2 * most_bytes),
            seconds=seconds,
            per_second=rate,
        )
        page = None if layout == "none" else PageMaker(served, layout=layout)
        app = build_app(served, bounds=bounds, token=token, any_host=not own, page=page)
        config = uvicorn.Config(
            app,
            log_level="critical",  # strangers decide what else would be in the log
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anybody can write an address into a header
            loop="asyncio",
            backlog=2 * CONNECTIONS,
            timeout_keep_alive=HEAD_SECONDS,
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=HEAD_BYTES,
            http=Connection,
            ws="none",
            lifespan="off",
        )
        name = f"[{host}]" if ":" in host else host
        where = f"http://{name}:{listening.getsockname()[1]}"
        text = f"serve: {counted(len(served.z), 'node')} of {run} on {where} (Ctrl-C stops)"
        server = uvicorn.Server(config)
        with handled(server.handle_exit):
            listening.listen(2 * CONNECTIONS)  # who reads the next line may ask at once
            print(text, file=sys.stderr, flush=True)
            if as_json:
                nodes = len(served.z)
                about = {"run": str(run), "address": where, "nodes": nodes, "dim": served.dim}
                print_result(about, text, as_json=True)
                sys.stdout.flush()  # whoever reads it does not wait for the service to end
            gc.collect()
            gc.freeze()  # what is loaded stays: no request waits while it is searched for garbage
            gc.set_threshold(100_000)  # nor while what another has sent is
            sys.setswitchinterval(TURN)
            _allow_files(8 * CONNECTIONS)  # some are open for a moment until others are closed
            server.run(sockets=[listening])
    print("serve: stopped", file=sys.stderr, flush=True)


def _token(file: Path | None) -> str | None:
    """Returns the token, or None where there is none.

    Raises:
        RunError: it is too short to keep anybody out, or no text of one line.
    """
    where = str(file) if file is not None else TOKEN
    try:
        text = read_text(file, RunError) if file is not None else os.environ.get(TOKEN, "")
    except FileNotFoundError:
        raise RunError(f"{file}: no such file") from None
    token = text.strip()
    if not token and file is None:
        return None
    plain = token.isascii() and token.isprintable() and " " not in token
    if len(token) < LEAST_TOKEN or not plain:
        raise RunError(
            f"{where}: a token must have at least {LEAST_TOKEN} characters, and no spaces"
        )
    return token


def _allow_files(number: int) -> None:
    """Lets the process open so many files and connections, or as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(number, hard)), hard))


def _listen(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound: a port that is taken is known before anything else."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise RunError(
            f"serve: cannot listen on {host}:{port}: {error.strerror or error}"
        ) from None
    return listening
