"""What every request passes: names, tokens, rates, times, errors, counts."""

import asyncio
import re
import time

import pytest

from graphcl.serving.asking import Bounds
from graphcl.serving.gate import COOKIE, Counts, Gate, _Rate, ticket
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
    monkeypatch.setattr("graphcl.serving.gate.time.monotonic", lambda: now[0])
    rate = _Rate(5)
    assert sum(rate.allows("a") for _ in range(30)) == 10  # two seconds' worth are saved up
    assert rate.allows("b")
    now[0] += 1
    assert sum(rate.allows("a") for _ in range(30)) == 5
    monkeypatch.setattr("graphcl.serving.gate.MOST_CLIENTS", 3)
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

    answer = Client(gate(broken)).get("/known")
    assert answer.status_code == 500
    assert answer.json() == {"error": "the service failed; its log says more"}
    assert "bug: RuntimeError: a secret place" in capsys.readouterr().err


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
    text = counts.text()
    assert 'graphcl_requests_total{path="/known",status="200"} 2' in text
    assert 'graphcl_requests_total{path="other",status="200"} 2' in text
    assert 'graphcl_request_seconds_count{path="/known"} 2' in text
    buckets = [
        int(count)
        for count in re.findall(r'seconds_bucket\{path="/known",le="[^"]+"\} (\d+)', text)
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2
    line = re.compile(r'^(# TYPE \w+ \w+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [0-9.e+]+)$')
    assert all(line.match(one) for one in text.splitlines())
    assert "graphcl_requests_under_way 0" in text


def test_every_answer_has_the_headers():
    headers = Client(gate(plain)).get("/known").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
