"""`graphcl serve`: a run as an HTTP service."""

import asyncio.constants
import gc
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.answers import RunArgument, TypeOption, open_run
from graphcl.cli.options import DeviceOption, JsonOption, RunGraphOption, print_result
from graphcl.cli.processes import Ending, check_several, handled
from graphcl.cli.table_options import takes_tables
from graphcl.errors import RunError, import_extra, require
from graphcl.files.text import read_text
from graphcl.runs.nodes import is_labelled
from graphcl.runs.versions import current_run, kept_place, mark_of, own_graph
from graphcl.serving.requests import Bounds
from graphcl.tabular.options import TableOptions, counted

TOKEN = "GRAPHCL_TOKEN"  # the environment's variable
LEAST_TOKEN = 16  # characters
GRACE = 8  # seconds that requests under way are given to end; containers give ten
WORKERS_GRACE = 9.5  # seconds until a worker that does not end is killed
TICK = 0.05  # seconds between two looks at workers
SHAKE = 10.0  # seconds until a connection must be encrypted
READY = "ready"  # a file that the first worker makes
TURN = 0.0002  # seconds until a thread that computes lets another have its turn
_BOUNDS, _OPERATION = "What a request may ask", "Processes, log, encryption"  # groups of options


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
    log: Annotated[
        str,
        typer.Option(
            help="A line for each request on stderr: lines, json, or none.",
            rich_help_panel=_OPERATION,
        ),
    ] = "lines",
    workers: Annotated[
        int,
        typer.Option(min=1, max=256, help="Processes that answer.", rich_help_panel=_OPERATION),
    ] = 1,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--ssl-certfile", help="Encrypts: the certificate, as PEM.", rich_help_panel=_OPERATION
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--ssl-keyfile",
            help="Its key. (default: in the certificate)",
            rich_help_panel=_OPERATION,
        ),
    ] = None,
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

        curl localhost:8000/v1/embed -H 'content-type: application/json' -d '{"ids": ["5"]}'
    """
    require(layout in ("pca", "umap", "none"), "serve", "--map", "pca, umap or none", layout)
    require(log in ("lines", "json", "none"), "serve", "--log", "lines, json or none", log)
    require(seconds > 0, "serve", "--seconds", "more than 0", seconds)
    check_several("--workers", workers)
    token = _token(token_file)
    _check_certificate(certificate, key)
    tls = certificate is not None
    from graphcl.serving import middleware

    own = middleware.is_own(host)
    if not own and token is None:
        raise RunError(
            f"serve: {host} can be reached by others; give a token: --token-file, or {TOKEN}"
        )
    # All is imported, and nothing is read, when the process divides: no thread runs by then.
    uvicorn = import_extra("uvicorn", feature="graphcl serve", extra="serve")
    from graphcl.serving.app import build_app
    from graphcl.serving.pages import PATHS, PageMaker
    from graphcl.serving.run import Current, ServedRun

    def load(before: ServedRun | None) -> ServedRun:
        # A version that came later keeps its graph; the one that was given is of the training.
        later = before is not None and own_graph(current_run(run)) is not None
        given = (None, None) if later else (graph, tables)
        asked = open_run(run, ("serve",), *given, device=device)
        check, wanted = kept_place(asked.folder), before.node_type if before else node_type
        kind = asked.type_of(asked.type_folder(wanted, is_labelled))
        asked.keep_embeddings()
        how: Any = {"device": device, "node_type": kind, "before": before}
        served = ServedRun(asked.folder, asked.graph, **how)
        check()
        return served

    # Labels may be learned, a map drawn and answers computed when the service stops. Threads of
    # theirs do not survive the interpreter's shutdown.
    Ending.at_once = True
    bounds = Bounds(
        nodes=most_nodes,
        bytes=most_bytes,
        in_flight=max(Bounds.in_flight // workers, 2 * most_bytes),
        seconds=seconds,
        per_second=rate,
    )
    with closing(_listen(host, port)) as listening, suppress(KeyboardInterrupt):
        config = uvicorn.Config(
            None,
            log_level="critical",  # strangers decide what else would be in the log
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anybody can write an address into a header
            loop="asyncio",
            backlog=2 * middleware.CONNECTIONS,
            timeout_keep_alive=middleware.HEAD_SECONDS,
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=middleware.HEAD_BYTES,
            http=middleware.Connection,
            ws="none",
            lifespan="off",
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        parent, number, figures = os.getpid(), 0, None
        if workers > 1:
            figures = Path(tempfile.mkdtemp(prefix="graphcl-serve-"))
            number = _divide(workers, figures)
        current = Current(load, lambda: mark_of(run))
        current.served.learn()
        counts = middleware.Counts(PATHS, figures)
        config.app = build_app(
            current,
            bounds=bounds,
            token=token,
            any_host=not own,
            page=None if layout == "none" else PageMaker(layout),
            counts=counts,
            log=log,
            workers=workers,
        )
        server = uvicorn.Server(config)

        def look() -> None:
            counts.look(current.served.version)
            if workers > 1 and os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)  # whoever watched over this worker is gone

        with handled(server.handle_exit):
            listening.listen(2 * middleware.CONNECTIONS)  # who reads the next line may ask at once
            if not number:
                name, scheme = f"[{host}]" if ":" in host else host, "https" if tls else "http"
                where = f"{scheme}://{name}:{listening.getsockname()[1]}"
                nodes, dim = len(current.served.z), current.served.dim
                text = f"serve: {counted(nodes, 'node')} of {run} on {where} (Ctrl-C stops)"
                print(text, file=sys.stderr, flush=True)
                if as_json:
                    about = {"run": str(run), "address": where, "nodes": nodes, "dim": dim}
                    print_result(about, text, as_json=True)
                    sys.stdout.flush()  # whoever reads it does not wait for the service to end
            if figures is not None:
                (figures / READY).touch()
            gc.collect()
            gc.freeze()  # what is loaded stays: no request waits while it is searched for garbage
            gc.set_threshold(100_000)  # nor while what another has sent is
            sys.setswitchinterval(TURN)
            _allow_files(8 * middleware.CONNECTIONS)  # some are open until others are closed
            current.watch(look)
            try:
                server.run(sockets=[listening])
            finally:
                current.close()
    if workers == 1:
        print("serve: stopped", file=sys.stderr, flush=True)


def _divide(workers: int, figures: Path) -> int:
    """Divides the process into workers and watches over them; one that dies is replaced.

    The first loads alone: what is wrong is said once, and what the run keeps is made once. Returns
    the number of the worker, in each worker.

    Args:
        workers: how many.
        figures: the folder where they count.

    Raises:
        typer.Exit: all have ended; in the process that watches.
    """
    from prometheus_client.multiprocess import mark_process_dead

    alive, made, code, stopping, until = set[int](), 0, 0, False, 0.0

    def stop(*_: Any) -> None:
        nonlocal stopping
        stopping = True

    with handled(stop):
        while alive or not made:
            ready = (figures / READY).exists()
            if not stopping and len(alive) < (workers if ready else 1):
                pid = os.fork()
                if not pid:
                    return made
                alive.add(pid)
                made += 1
                continue
            if stopping and not until < time.monotonic() < until + WORKERS_GRACE:
                for one in alive:
                    os.kill(one, signal.SIGKILL if until else signal.SIGTERM)
                until = until or time.monotonic()
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                time.sleep(TICK)
                continue
            alive.discard(ended)
            mark_process_dead(ended, str(figures))
            if stopping:
                continue
            if not ready:  # it has said why
                code, stopping = max(1, os.waitstatus_to_exitcode(status)), True
                continue
            print("serve: a worker died; another takes its place", file=sys.stderr, flush=True)
            time.sleep(1)
    shutil.rmtree(figures, ignore_errors=True)
    if not code:
        print("serve: stopped", file=sys.stderr, flush=True)
    raise typer.Exit(code)


def _check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Refuses files that make no TLS; a key with a password too, for nobody is there to give it.

    Raises:
        RunError: they do not.
    """
    if certificate is None:
        require(key is None, "serve", "--ssl-keyfile", "given with --ssl-certfile", str(key))
        return
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except OSError as error:
        raise RunError(
            f"{certificate}: no certificate with its key: {error.strerror or error}"
        ) from None
    # Until then a connection is in nobody's count.
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = SHAKE


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
    with suppress(ImportError):  # Windows has no such limit
        import resource

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
