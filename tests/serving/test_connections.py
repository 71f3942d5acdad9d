"""Connections that keep a service waiting are closed; those that work are not."""

import contextlib
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from graphcl.serving import connections
from tests.serving.conftest import client_of


@pytest.fixture
def port(served, monkeypatch):
    """The port of a service that waits for half a second."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    config = uvicorn.Config(
        client_of(served).app,
        port=0,
        http=connections.Connection,
        log_level="error",
        lifespan="off",
        ws="none",
        timeout_keep_alive=60,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def closed_after(raw):
    """How long it takes until the other side closes a connection; what it sends is skipped."""
    began = time.monotonic()
    raw.settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        while raw.recv(1 << 16):
            pass
    return time.monotonic() - began


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /health HTTP/1.1\r\nhost: loc"])
def test_a_connection_without_a_whole_head_is_closed(port, sent):
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(sent)
        assert closed_after(raw) < 5


def test_so_is_one_that_stops_after_an_answer(port):
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /hea")
        assert closed_after(raw) < 6


def test_one_that_goes_on_asking_is_kept(port):
    with httpx.Client(base_url=f"http://localhost:{port}") as client:
        began = time.monotonic()
        while time.monotonic() - began < 2:
            assert client.get("/health").status_code == 200
            time.sleep(0.1)
