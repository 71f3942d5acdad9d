"""The addresses of the service, and a thousand requests that make no sense."""

import asyncio
import io
import json
import random
import time

import numpy as np
import pyarrow.ipc
import pytest

from graphcl.answers.linking import links as links_of
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.serving import app as module
from graphcl.serving.pages import ADDRESSES
from graphcl.serving.requests import ARROW, Bounds
from graphcl.serving.run import ServedRun
from tests.conftest import random_graph
from tests.serving.conftest import app_of, client_of, connected
from tests.serving.test_requests import stream

ASKED = ("/v1/embed", "/v1/neighbors", "/v1/predict", "/v1/links")


def table(answer):
    assert answer.headers["content-type"] == ARROW
    return pyarrow.ipc.open_stream(io.BytesIO(answer.content)).read_all()


def test_embeddings_of_known_and_of_new_nodes(client, served, new_node):
    known = client.post("/v1/embed", {"ids": ["node 3", "node 0"]}).json()
    assert [one["id"] for one in known["nodes"]] == ["node 3", "node 0"]
    found = np.array([one["embedding"] for one in known["nodes"]], np.float32)
    np.testing.assert_array_equal(found, served.z[[3, 0]])
    body, (features, near) = new_node
    (one,) = client.post("/v1/embed", {"new": [body]}).json()["nodes"]
    expected = served.live.embed_new(features, near)
    np.testing.assert_array_equal(np.array(one["embedding"], np.float32), expected)
    joined = client.post("/v1/embed", {"new": [body, body], "edges": [[0, 1]]}).json()["nodes"]
    expected = served.live.embed_new(np.stack([features] * 2), [near, near], edges=[(0, 1)])
    np.testing.assert_array_equal(
        np.array([one["embedding"] for one in joined], np.float32), expected
    )


def test_arrow_in_and_out(client, served, new_node):
    _, (features, near) = new_node
    body = stream({"features": [features.tolist()], "neighbors": [near]})
    headers = {"content-type": ARROW, "accept": ARROW}
    found = table(client("POST", "/v1/embed", content=body, headers=headers))
    row = np.array(found.column("embedding").to_pylist()[0], np.float32)
    np.testing.assert_array_equal(row, served.live.embed_new(features, near))
    known = table(client.post("/v1/embed", {"ids": ["node 1"]}, headers={"accept": ARROW}))
    assert known.column("id").to_pylist() == ["node 1"]
    for path in ("/v1/neighbors", "/v1/links"):
        asked = {"ids": ["node 1", "node 2"], "k": 3}
        listed = client.post(path, asked).json()["nodes"]
        found = table(client.post(path, asked, headers={"accept": ARROW}))
        other = "neighbor" if path == "/v1/neighbors" else "target"
        expected = [one["id"] for node in listed for one in node[path[4:]]]
        assert found.column(other).to_pylist() == expected
        assert found.column("place").to_pylist() == [0, 0, 0, 1, 1, 1]
    found = table(client.post("/v1/predict", {"ids": ["node 1"]}, headers={"accept": ARROW}))
    assert found.column("label").to_pylist()[0] in ("red", "green", "blue")


def test_similar_nodes_labels_and_links(client, served, new_node):
    near = client.post("/v1/neighbors", {"ids": ["node 5"], "k": 4}).json()["nodes"][0]["neighbors"]
    assert len(near) == 4
    assert "node 5" not in [one["id"] for one in near]
    assert [one["cosine"] for one in near] == sorted((o["cosine"] for o in near), reverse=True)
    assert {one.get("label") for one in near} <= {None, "red", "green", "blue"}
    (found,) = client.post("/v1/predict", {"new": [new_node[0]]}).json()["nodes"]
    assert sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert found["probability"] == max(found["probabilities"].values())
    links = client.post("/v1/links", {"ids": ["node 5"], "k": 60}).json()["nodes"][0]["links"]
    linked = {served.id(row) for row in served.linked(np.array([5]))[0]}
    assert not linked & {one["id"] for one in links}
    assert len(links) == 60 - len(linked)
    model = GraphCL.load(served.path, device="cpu")
    exact = links_of(served.z, graph=served.graph, model=model, rows=[5], k=60)
    assert [one["id"] for one in links] == [served.id(row) for row in exact.pairs[:, 1].tolist()]
    assert [one["score"] for one in links] == pytest.approx(exact.scores.tolist(), rel=1e-5)
    assert [one["why"] for one in links] == exact.why.tolist()
    of_new = client.post("/v1/links", {"new": [new_node[0]], "k": 60}).json()["nodes"][0]["links"]
    assert not set(new_node[0]["neighbors"]) & {one["id"] for one in of_new}
    assert len(of_new) == 60 - len(set(new_node[0]["neighbors"]))
    assert all(0 < one["score"] < 1 and one["why"] for one in of_new)
    pairs = client.post("/v1/links", {"pairs": [["node 5", links[0]["id"]]]}).json()["pairs"]
    assert pairs[0] == {"source": "node 5", "target": links[0]["id"], **pairs[0]}
    assert pairs[0]["score"] == pytest.approx(links[0]["score"], rel=1e-5)
    assert pairs[0]["why"] == links[0]["why"]
    found = table(client.post("/v1/links", {"ids": ["node 5"]}, headers={"accept": ARROW}))
    assert found.column("why").to_pylist() == [one["why"] for one in links[:10]]


def test_health_metrics_and_descriptions(client, served):
    assert client.get("/health").json() == {"status": "ok"}
    served.learn()
    served._labels_learner.done.result(60)
    about = client.get("/ready").json()
    assert (about["ready"], about["version"], about["run"]) == (True, 0, "colours")
    assert (about["nodes"], about["features"], about["predicts"]) == (60, 12, True)
    assert "graphcl_requests_total" in client.get("/metrics").text
    assert set(client.get("/openapi.json").json()["paths"]) == set(ADDRESSES)
    page = client.get("/docs")
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/").status_code == 404  # no map was asked for


def test_unknown_nodes_addresses_and_methods(client):
    answer = client.post("/v1/embed", {"ids": ["node 60"]})
    assert (answer.status_code, "did you mean" in answer.json()["error"]) == (404, True)
    assert "no such address" in client.get("/nothing").json()["error"]
    assert client.get("/v1/embed").status_code == 405
    assert client.post("/health", {}).status_code == 405


def test_numbers_that_no_array_holds_are_refused_in_our_words(served, new_node, tmp_path):
    edges = served.graph.edge_index()
    weights = np.full(edges.shape[1], 2.0)
    graph = Graph.from_edge_index(edges, served.graph.x, edge_weight=weights)
    GraphCL(epochs=1, dim=8, device="cpu").fit(graph).save(tmp_path / "run", graph=graph)
    weighted = client_of(ServedRun(tmp_path / "run", graph))
    node = {"features": {}, "neighbors": ["3"]}
    for number in (1e300, -1e300, 2**63, 2**64, 10**30, 0.5, -1):
        found = weighted.post("/v1/embed", {"new": [node] * 2, "edges": [[0, number]]})
        assert (found.status_code, "by their places" in found.text) == (400, True)
    for number in (1e300, -1e300, 0, 1e-320):
        found = weighted.post("/v1/embed", {"new": [node | {"weights": [number]}]})
        assert (found.status_code, "positive and finite" in found.text) == (400, True)
        found = weighted.post("/v1/embed", {"new": [node] * 2, "edges": [[0, 1, number]]})
        assert (found.status_code, "positive and finite" in found.text) == (400, True)


def test_bodies_are_bounded(served):
    client = client_of(served, bounds=Bounds(bytes=1000, per_second=0))
    assert client.post("/v1/embed", {"ids": ["a" * 2000]}).status_code == 413

    headers = {"content-type": "application/json"}
    for length in ("-1", "1e3", "٣", "9" * 50):
        odd = headers | {"content-length": length.encode("utf-8")}
        assert client("POST", "/v1/embed", content=b"{}", headers=odd).status_code in (400, 413)
    more = headers | {"content-length": "10"}  # than it says
    assert client("POST", "/v1/embed", content=sent(b" " * 2000), headers=more).status_code == 413
    for path in ("/v1/embed", "/login", "/health"):  # in pieces of any size
        answer = client("POST", path, content=sent(b"{}"), headers=headers)
        assert (answer.status_code, answer.headers["connection"]) == (411, "close")


async def sent(*pieces):
    for piece in pieces:
        yield piece


def test_a_token_is_short_and_comes_alone(served):
    client = client_of(served, token="a" * 20)
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert client("POST", "/login", content=b"token=" + b"a" * 20, headers=kind).status_code == 303
    found = client("POST", "/login", content=b"a=1&" * 1024 + b"b", headers=kind)
    assert (found.status_code, "4096 bytes" in found.text) == (413, True)
    found = client("POST", "/login", content=b"a=1&b=1&token=" + b"a" * 20, headers=kind)
    assert (found.status_code, "nothing else" in found.text) == (400, True)


def test_no_body_is_read_before_it_has_a_place(served, monkeypatch):
    """Those who take all places send nothing; the next one is refused, and its body not read."""
    monkeypatch.setattr(module, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(module, "LOGINS", 2)
    monkeypatch.setattr(module, "THREADS", 1)
    app = app_of(served, bounds=Bounds(waiting=1, per_second=0))
    read = []

    async def slow():
        await asyncio.sleep(60)
        yield b"{}"

    async def noted():
        read.append(True)
        yield b"{}"

    async def ask(path):
        headers = {"content-type": "application/json", "content-length": "2"}
        async with connected(app) as client:
            held = [
                asyncio.create_task(client.post(path, content=slow(), headers=headers))
                for _ in range(2)
            ]
            await asyncio.sleep(0.1)
            refused = await client.post(path, content=noted(), headers=headers)
            health = await client.get("/health")
            return [one.status_code for one in (refused, health, *await asyncio.gather(*held))]

    for path in ("/v1/embed", "/login"):
        assert asyncio.run(ask(path)) == [503, 200, 408, 408]
    assert not read


def test_bytes_under_way_are_bounded_in_all(served, monkeypatch):
    """While large bodies hang, one more is refused; small ones are answered."""
    monkeypatch.setattr(module, "BODY_SECONDS", 0.5)
    app = app_of(served, bounds=Bounds(in_flight=1 << 20, per_second=0))

    async def hang():
        yield b" " * 900_000
        await asyncio.sleep(60)
        yield b" "

    async def ask():
        headers = {"content-type": "application/json", "content-length": "1000000"}
        async with connected(app) as client:
            held = asyncio.create_task(client.post("/v1/embed", content=hang(), headers=headers))
            await asyncio.sleep(0.1)
            large = await client.post("/v1/embed", json={"ids": [" " * 900_000]})
            small = await client.post("/v1/embed", json={"ids": ["node 3"]})
            await held
            again = await client.post("/v1/embed", json={"ids": [" " * 900_000]})
            return [one.status_code for one in (large, small, again)]

    assert asyncio.run(ask()) == [503, 200, 413]


def test_answers_are_bounded(served):
    client = client_of(served, bounds=Bounds(answers=100, answer_bytes=6000, per_second=0))
    ids = [f"node {row}" for row in range(30)]
    for path in ("/v1/neighbors", "/v1/links"):
        assert client.post(path, {"ids": ids[:3], "k": 10}).status_code == 200
        for asked in ({"ids": ids[:11], "k": 10}, {"ids": ids[:11]}):
            found = client.post(path, asked)
            assert found.status_code == 413
            assert "nodes times k may be 100 at most; got 11 times 10" in found.json()["error"]
    for accept in ("*/*", ARROW):
        found = client.post("/v1/embed", {"ids": ids * 2}, headers={"accept": accept})
        assert (found.status_code, "more than 6000 bytes" in found.text) == (413, True)
    assert client.post("/v1/predict", {"ids": ids * 3}).status_code == 413
    described = client.get("/openapi.json").json()
    assert "nodes times k may be 100" in described["info"]["description"]
    k = described["components"]["schemas"]["LinksBody"]["properties"]["k"]
    assert "100 at most" in k["description"]


def test_a_reader_who_does_not_read_holds_little(served, monkeypatch):
    """An answer is sent piece by piece, and counted until it is sent."""
    monkeypatch.setattr(module, "PIECE", 100)
    app = app_of(served, bounds=Bounds(in_flight=5000, per_second=0, seconds=0.5))
    body = json.dumps({"ids": ["node 3"] * 16}).encode()  # about 4 kB of numbers
    head = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/embed", "headers": head}
    scope["query_string"] = b""

    async def ask(sizes, stop=None):
        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sizes.append(message.get("status") or len(message["body"]))
            if stop is not None and len(sizes) > 3:
                await stop.wait()

        await app(dict(scope), receive, send)

    async def both():
        slow, quick, later = [], [], []
        held = asyncio.create_task(ask(slow, asyncio.Event()))
        await asyncio.sleep(0.2)
        await ask(quick)
        await held  # ended by the gate
        await ask(later)
        return slow, quick, later

    slow, quick, later = asyncio.run(both())
    assert slow == [200, 100, 100, 100]
    assert quick[0] == 503
    assert later[0] == 200
    assert max(later[1:]) == 100


@pytest.mark.parametrize("kind", ["numbers", "texts", "none"])
def test_ids_are_of_the_graph_s_kind_in_json_and_in_arrow(kind, tmp_path):
    plain = random_graph(num_nodes=20)
    ids = {"numbers": range(100, 120), "texts": map(str, range(100, 120)), "none": None}[kind]
    named = None if ids is None else list(ids)
    graph = Graph.from_edge_index(plain.edge_index(), plain.x, plain.y, node_ids=named)
    GraphCL(epochs=1, dim=8, device="cpu").fit(graph).save(tmp_path / "run", graph=graph)
    client = client_of(ServedRun(tmp_path / "run", graph))
    first, second = ([103, 104], ["103", "104"]) if named else ([3, 4], ["3", "4"])
    expected = second if kind == "texts" else first
    accept = {"accept": ARROW}
    for asked in (first, second):  # either is understood
        assert [one["id"] for one in client.post("/v1/embed", {"ids": asked}).json()["nodes"]] == (
            expected
        )
        found = table(client.post("/v1/embed", {"ids": asked}, headers=accept))
        assert found.column("id").to_pylist() == expected
        found = client.post("/v1/links", {"pairs": [asked]}).json()["pairs"][0]
        assert [found["source"], found["target"]] == expected
        found = table(client.post("/v1/links", {"pairs": [asked]}, headers=accept))
        assert [found.column(one)[0].as_py() for one in ("source", "target")] == expected
        near = client.post("/v1/neighbors", {"ids": asked, "k": 2}).json()["nodes"]
        found = table(client.post("/v1/neighbors", {"ids": asked, "k": 2}, headers=accept))
        listed = [one["id"] for node in near for one in node["neighbors"]]
        assert found.column("neighbor").to_pylist() == listed
        assert {type(one) for one in listed} == {type(expected[0])}
        found = client.post("/v1/predict", {"ids": asked}).json()["nodes"]
        labels = table(client.post("/v1/predict", {"ids": asked}, headers=accept)).column("label")
        assert labels.to_pylist() == [one["label"] for one in found]
    new = table(client.post("/v1/embed", {"new": [{"features": {}}]}, headers=accept))
    assert new.schema.field("id").type == ("string" if kind == "texts" else "int64")
    example = client.get("/openapi.json").json()["paths"]["/v1/embed"]["post"]["requestBody"]
    shown = example["content"]["application/json"]["examples"]["ids"]["value"]["ids"]
    assert {type(one) for one in shown} == {type(expected[0])}


def test_a_body_that_never_comes(served, monkeypatch):
    monkeypatch.setattr("graphcl.serving.app.BODY_SECONDS", 0.1)
    client = client_of(served)

    async def slow():
        yield b"{"
        await asyncio.sleep(1)
        yield b"}"

    headers = {"content-type": "application/json", "content-length": "2"}
    answer = client("POST", "/v1/embed", content=slow(), headers=headers)
    assert answer.status_code in (400, 408)


def test_too_many_waiting_requests_are_refused(served, monkeypatch):
    app = app_of(served, bounds=Bounds(waiting=0, per_second=0))
    slow = served.embed_new

    def wait(new):
        time.sleep(0.3)
        return slow(new)

    monkeypatch.setattr(served, "embed_new", wait)
    body = {"new": [{"features": [0.0] * 12}]}

    async def ask():
        async with connected(app) as client:
            return await asyncio.gather(*(client.post("/v1/embed", json=body) for _ in range(12)))

    codes = [one.status_code for one in asyncio.run(ask())]
    assert set(codes) == {200, 503}


WORDS = [
    "",
    "node 3",
    "../../../etc/passwd",
    "/etc/passwd",
    "\ud800",
    "\x00",
    "%00",
    "é" * 50,
    "-1",
]
PATHS = [*ASKED, "/", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/runs"]
PATHS += [
    "/v1/embed/",
    "/v1/embed/../config.toml",
    "/config.toml",
    "/assets/live.js",
    "/static/../x",
]


def anything(draw, depth=0):
    """A value that JSON can hold, mostly wrong."""
    kinds = [None, True, 0, -1, 1e308, 10**30, 0.5, *WORDS]
    if depth < 3 and draw.random() < 0.5:
        if draw.random() < 0.5:
            return [anything(draw, depth + 1) for _ in range(draw.randrange(4))]
        keys = ["features", "neighbors", "weights", "ids", "new", "edges", "k", *WORDS]
        return {draw.choice(keys): anything(draw, depth + 1) for _ in range(draw.randrange(4))}
    return draw.choice(kinds)


def nonsense(draw):
    """A request that makes no sense: method, path, headers and body."""
    kind = draw.choice(["application/json"] * 5 + [ARROW, "text/html", "", "multipart/form-data"])
    body = draw.choice(
        [
            lambda: json.dumps(anything(draw)).encode(),
            lambda: json.dumps(
                {"ids": anything(draw, 2), "k": draw.choice([0, -1, 5000])}
            ).encode(),
            lambda: json.dumps({"new": [{"features": [anything(draw)]}]}).encode(),
            lambda: json.dumps({"new": [{"features": {"0": anything(draw, 3), "x": 1}}]}).encode(),
            lambda: b'{"new": [{"features": [NaN' + b", 0" * 11 + b"]}]}",
            lambda: b"[" * draw.randrange(5000),
            lambda: draw.randbytes(draw.randrange(200)),
        ]
    )()
    headers = {"content-type": kind, "accept": draw.choice(["*/*", ARROW, "\\", "a" * 3000])}
    if draw.random() < 0.1:
        headers["host"] = draw.choice(["evil", "", "localhost:x", "[::1"])
    if draw.random() < 0.1:
        headers["x-" + "y" * draw.randrange(1, 50)] = "z" * draw.randrange(5000)
    method = draw.choice(["POST"] * 6 + ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
    path = draw.choice(PATHS if method == "POST" else PATHS[5:])
    return method, path, headers, body


def makes_sense(body):
    """Whether chance has made a body that is understood: known ids, or features that are all 0."""
    try:
        given = json.loads(body)
        ids = given.get("ids", [])
        new = given.get("new", [])
        return bool(ids and ids == ["node 3"] * len(ids)) or any(
            one.get("features") == {} for one in new
        )
    except (ValueError, AttributeError, TypeError, RecursionError):
        return False


def test_a_thousand_requests_that_make_no_sense(client, capsys):
    draw, seen = random.Random(0), set()
    for number in range(1010):
        method, path, headers, body = nonsense(draw)
        if makes_sense(body):
            continue
        answer = client(method, path, headers=headers, content=body)
        seen.add(answer.status_code)
        assert 400 <= answer.status_code < 500, (number, method, path, headers, body)
        assert set(answer.json()) == {"error"}
        assert "Traceback" not in answer.text
        assert "root:" not in answer.text
    assert {400, 404, 405, 415, 421} <= seen
    assert capsys.readouterr().err == ""
    assert client.get("/health").json()["status"] == "ok"
