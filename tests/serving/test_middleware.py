"""What every request passes: names, tokens, rates, times, errors, counts."""

import asyncio
import contextlib
import json
import re
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from graphcl.serving import middleware
from graphcl.serving.middleware import COOKIE, Counts, Gate, _Rate, ticket
from graphcl.serving.requests import Bounds
from tests.serving.conftest import Client, client_of

TOKEN = "a long and secret token".replace(" ", "-")


def gate(inner, **options):
    values = {
        "bounds": Bounds(per_second=0, seconds=0.2),
        "counts": Counts(("/known",)),
        "token": None,
        "any_host": False,
    }
    return Gate(inner, **(values | options))


async def plain(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"fine"})


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:80", 200),
        ("127.0.0.2:8000", 200),
        ("[::2]:80", 421),
        ("127.0.0.1.evil.example", 421),
        ("LOCALHOST", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("169.254.169.254", 421),
    ],
)
def test_a_service_of_this_machine_answers_its_own_names(host, status):
    assert Client(gate(plain))("GET", "/known", headers={"host": host}).status_code == status
    anywhere = Client(gate(plain, any_host=True))
    assert anywhere("GET", "/known", headers={"host": host}).status_code == 200


def test_a_token_is_needed_where_there_is_one():
    client = Client(gate(plain, token=TOKEN))
    assert client.get("/health").status_code == 200
    right = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/known", headers=right).status_code == 200
    assert client.get("/known", headers={"cookie": f"{COOKIE}={ticket(TOKEN)}"}).status_code == 200
    wrong = [
        "",
        f"Bearer {TOKEN}x",
        f"bearer {TOKEN}",
        TOKEN,
        "Bearer",
        "Bearer \xff",
        "Basic YTpi",
    ]
    for one in wrong:
        answer = client.get("/known", headers={"authorization": one.encode("latin-1")})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    for cookie in (f"{COOKIE}=", f"{COOKIE}={TOKEN}", "a=b; ;;=", "\xff\xfe", f'{COOKIE}="\\777"'):
        answer = client.get("/known", headers={"cookie": cookie.encode("latin-1")})
        assert answer.status_code == 401
    page = client.get("/")
    assert (page.status_code, "<form" in page.text) == (401, True)


def test_a_browser_gets_a_cookie_for_the_token(served):
    client = client_of(served, token=TOKEN)
    assert client("POST", "/login", data={"token": "wrong"}).status_code == 401
    found = client("POST", "/login", data={"token": TOKEN})
    assert found.status_code == 303
    cookie = found.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    known = {"cookie": cookie.split(";")[0]}
    assert client.get("/metrics", headers=known).status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.get("/health").json() == {"status": "ok"}


def test_rates_of_each_address(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("graphcl.serving.middleware.time.monotonic", lambda: now[0])
    rate = _Rate(5)
    assert sum(rate.allows("a") for _ in range(30)) == 10  # two seconds' worth are saved up
    assert rate.allows("b")
    now[0] += 1
    assert sum(rate.allows("a") for _ in range(30)) == 5
    monkeypatch.setattr("graphcl.serving.middleware.MOST_CLIENTS", 3)
    for number in range(50):
        rate.allows(str(number))
    assert len(rate._known) <= 3
    client = Client(gate(plain, bounds=Bounds(per_second=0.5)))
    assert client.get("/known").status_code == 200
    refused = client.get("/known")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


def test_what_takes_too_long_is_ended():
    async def slow(scope, receive, send):
        await asyncio.sleep(5)

    answer = Client(gate(slow)).get("/known")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_what_is_under_way_when_the_service_stops_is_answered():
    began = []

    async def slow(scope, receive, send):
        began.append(asyncio.current_task())
        await asyncio.sleep(5)

    async def ask():
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "path": "/known", "headers": [(b"host", b"localhost")]}
        task = asyncio.create_task(gate(slow, bounds=Bounds(per_second=0))(scope, None, send))
        while not began:
            await asyncio.sleep(0.01)
        task.cancel()
        await task
        return sent

    start, body = asyncio.run(ask())
    assert (start["status"], b"is stopping" in body["body"]) == (503, True)


def test_odd_cookies_are_read_at_once():
    client = Client(gate(plain, token=TOKEN))
    began = time.perf_counter()
    for cookie in ('a="' + '\\"' * 16_000 + '"', "a=b; " * 8000, f"{COOKIE}=" * 4000):
        assert client.get("/known", headers={"cookie": cookie}).status_code == 401
    assert time.perf_counter() - began < 2  # Python's own parser takes ten seconds and more
    right = f"a=b; {COOKIE}={ticket(TOKEN)} ;c"
    assert client.get("/known", headers={"cookie": right}).status_code == 200


def test_no_error_shows_where_it_happened(capsys):
    async def broken(scope, receive, send):
        raise RuntimeError("a secret\nplace /etc/passwd")

    answer = Client(gate(broken)).get("/known", headers={"x-request-id": "mine"})
    assert answer.status_code == 500
    assert answer.json() == {"error": "the service failed; its log says more"}
    assert "bug: mine: RuntimeError: a secret place" in capsys.readouterr().err


def test_an_error_after_the_answer_began_ends_it():
    async def late(scope, receive, send):
        await plain(scope, receive, send)
        raise RuntimeError

    assert Client(gate(late)).get("/known").text == "fine"


def test_counts_are_prometheus_text():
    counts = Counts(("/known",))
    client = Client(gate(plain, counts=counts))
    for path in ("/known", "/known", "/a", "/b"):
        client.get(path)
    counts.look(3)
    text = counts.text().decode()
    assert 'graphcl_requests_total{path="/known",status="200"} 2.0' in text
    assert 'graphcl_requests_total{path="other",status="200"} 2.0' in text
    assert 'graphcl_request_seconds_count{path="/known"} 2.0' in text
    buckets = [
        float(count)
        for count in re.findall(r'seconds_bucket\{le="[^"]+",path="/known"\} ([\d.]+)', text)
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2
    assert "graphcl_requests_under_way 0.0" in text
    assert "graphcl_run_version 3.0" in text


def test_every_answer_has_the_headers():
    headers = Client(gate(plain)).get("/known").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.fixture
def port(served, monkeypatch):
    """The port of a service that waits for half a second."""
    monkeypatch.setattr(middleware, "HEAD_SECONDS", 0.5)
    config = uvicorn.Config(
        client_of(served).app,
        port=0,
        http=middleware.Connection,
        log_level="error",
        lifespan="off",
        ws="none",
        timeout_keep_alive=60,
        h11_max_incomplete_event_size=middleware.HEAD_BYTES,
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


def healthy(port):
    """How long `/health` takes; None if it is not answered."""
    began = time.monotonic()
    try:
        answered = httpx.get(f"http://localhost:{port}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return None
    return time.monotonic() - began if answered else None


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /health HTTP/1.1\r\nhost: loc"])
def test_a_connection_without_a_whole_head_is_closed(port, sent):
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(sent)
        assert closed_after(raw) < 5


@pytest.mark.parametrize(
    "sent",
    [b"foo\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /" + b"a" * (1 << 13), b"a:\r\n" * 150],
    ids=["no HTTP", "no host", "too long", "too many lines"],
)
def test_a_head_that_makes_no_sense_is_answered_as_all_else(port, sent):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.sendall(sent)
        head, _, body = raw.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"application/json" in head
    assert list(json.loads(body)) == ["error"]


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


def test_the_longest_waiting_connection_makes_room(port, monkeypatch):
    monkeypatch.setattr(middleware, "HEAD_SECONDS", 60)
    monkeypatch.setattr(middleware, "CONNECTIONS", 8)
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(8)
        ]
        for one in held:
            one.sendall(b"GET /health HTTP/1.1\r\n")
        time.sleep(0.2)
        for _ in range(3):
            assert healthy(port) is not None
        assert closed_after(held[0]) < 5  # the others still wait
        held[-1].sendall(b"host: localhost\r\n\r\n")
        assert held[-1].recv(1000).startswith(b"HTTP/1.1 200")


def test_who_does_not_read_an_answer_makes_room(port, monkeypatch):
    """Small windows, large answers: the connections are under way, and none is idle."""
    monkeypatch.setattr(middleware, "HEAD_SECONDS", 60)
    monkeypatch.setattr(middleware, "CONNECTIONS", 4)
    body = b'{"ids": [' + b", ".join([b'"node 3"'] * 1000) + b"]}"
    head = b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    asked = head + b"content-length: %d\r\n\r\n" % len(body) + body
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", port))
            one.sendall(asked * 20)
        # Until an answer is there, its connection does not wait for anybody.
        assert any(healthy(port) is not None for _ in range(50) if not time.sleep(0.2))


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"1\r\na\r\n" * 100_000,
        b"POST /no HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n\0\0\0\0\0\0\0",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n\x00 \r\n\r\n" * 50,
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"a:\r\n" * 16_000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\na: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n" * 100,
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000,
        b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999\r\n\r\n",
        b"HEAD /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100,
        b"GET / HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n",
    ],
)
def test_nonsense_harms_nobody_and_says_nothing(port, sent, capfd):
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            one.settimeout(0.2)
            with contextlib.suppress(OSError):
                one.sendall(sent)
        assert healthy(port) < 2
    time.sleep(0.2)
    assert capfd.readouterr().err == ""


def test_a_body_that_nobody_reads_stays_outside(port, served, monkeypatch):
    """What is sent beyond a piece waits in the client, while no thread is free to read it."""
    from graphcl.serving import app

    begun, go_on = threading.Event(), threading.Event()
    wait = app._body

    async def late(*arguments):
        begun.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return await wait(*arguments)

    monkeypatch.setattr(app, "_body", late)
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        one.setblocking(False)
        body = b'{"ids": ["node 3"]' + b" " * 8_000_000 + b"}"
        head = b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        data = head + b"content-length: %d\r\n\r\n" % len(body) + body
        gone = one.send(data)
        assert begun.wait(5)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                gone += one.send(data[gone : gone + 65536])
        assert gone < len(data)
        go_on.set()
        one.setblocking(True)
        one.sendall(data[gone:])
        assert one.recv(1000).startswith(b"HTTP/1.1 200")


def test_who_leaves_during_an_answer_is_not_written_to(port, capfd):
    body = b'{"ids": [' + b", ".join([b'"node 3"'] * 1000) + b"]}"
    head = b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            assert one.recv(100).startswith(b"HTTP/1.1 200")
    assert healthy(port) is not None
    time.sleep(0.2)
    assert capfd.readouterr().err == ""
