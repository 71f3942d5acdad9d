"""The OpenAPI document says what the service does; the live page in a real browser.

Without Chromium or Playwright these tests are skipped, aloud.
"""

import contextlib
import json
import threading
import time
from html import unescape

import pytest
import uvicorn

from graphcl.serving.pages import ADDRESSES, PATHS, PageMaker, description_page
from graphcl.serving.requests import Bounds
from graphcl.serving.run import ServedRun
from tests.reporting.test_browser import CHROMIUM, SOFTWARE_GL, playwright
from tests.serving.conftest import app_of, client_of

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@contextlib.contextmanager
def listening(app):
    """Serves an application from a thread; yields its address."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none", http="h11")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def page_of(served):
    maker = PageMaker()
    assert maker.of(served) is None
    maker.thread.join()
    assert maker.of(served) is not None
    return maker


def test_the_page_is_sent_once_it_is_drawn(served, page_of, monkeypatch):
    client = client_of(served, page=page_of)
    answer = client.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "connect-src 'self'" in policy
    assert "default-src 'none'" in policy
    monkeypatch.setattr(page_of, "_drawn", None)
    waiting = client.get("/")
    assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "2")


def test_a_run_without_a_map_says_so(a_run, tmp_path, capsys):
    served = ServedRun(*a_run)
    served.path = tmp_path / "gone"
    maker = PageMaker()
    maker.of(served)
    maker.thread.join()
    assert maker.of(served) is None
    assert "serve: no map" in capsys.readouterr().err


@needs_browser
def test_a_new_node_is_shown_on_the_map(served, page_of, new_node):
    complaints = []
    expected = client_of(served).post("/v1/neighbors", {"new": [new_node[0]]}).json()
    near = expected["nodes"][0]["neighbors"]
    app = app_of(served, bounds=Bounds(per_second=0), page=page_of)
    with listening(app) as address, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=SOFTWARE_GL)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                request.url.startswith((address, "blob:")) or complaints.append(request.url)
            ),
        )
        page.goto(address)
        page.wait_for_selector("body[data-live=ready]", timeout=30_000)
        page.fill("#find", "node 7")
        page.press("#find", "Enter")
        assert page.inner_text("#chosen h3") == "node 7"
        assert page.locator("#chosen li").count() == 10
        page.fill("#new-neighbours", "node 3, node 14,node 59")
        page.fill("#new-features", ", ".join(map(str, new_node[0]["features"])))
        page.click("#new button")
        page.wait_for_selector("body[data-fresh=shown]")
        first = page.locator("#new-near li").first.inner_text()
        assert first.startswith(f"{near[0]['id']} {near[0]['cosine']:.3f}")
        x, y = page.evaluate("window.graphclMap.fresh")
        places = page.evaluate(
            "names => names.map(n => { const i = window.graphclMap.names.indexOf(n); const p ="
            " window.graphclMap.scatter.places; return [p[2*i] / 65535, p[2*i+1] / 65535]; })",
            [one["id"] for one in near],
        )
        assert min(p[0] for p in places) <= x <= max(p[0] for p in places)
        assert min(p[1] for p in places) <= y <= max(p[1] for p in places)
        drawn = page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => { const c ="
            " document.getElementById('fresh'); const d = c.getContext('2d').getImageData(0, 0,"
            " c.width, c.height).data; done(d.some(v => v > 0)); }))"
        )
        assert drawn
        page.fill("#new-neighbours", "nobody")
        page.click("#new button")
        page.wait_for_selector("body[data-fresh=failed]")
        assert "no node has the id 'nobody'" in page.inner_text("#new-said")
        page.fill("#new-features", "1, 2")
        page.click("#new button")
        page.wait_for_function("document.getElementById('new-said').textContent.startsWith('12 ')")
        browser.close()
    # The unknown neighbour is a 404; the driver remarks on pixels read back, which the map does.
    assert [one for one in complaints if "404" not in one and "ReadPixels" not in one] == []


def references(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    for one in value if isinstance(value, list) else []:
        yield from references(one)


def test_every_reference_leads_somewhere(client):
    about = client.get("/openapi.json").json()
    schemas = about["components"]["schemas"]
    found = {one.removeprefix("#/components/schemas/") for one in references(about)}
    assert {"NewNode", "Row", "Some", "EmbedBody", "Error"} <= found <= set(schemas)
    assert schemas["Row"]["minItems"] == 12


@pytest.mark.parametrize("path", [path for path, one in ADDRESSES.items() if one.takes])
def test_a_body_has_the_keys_that_are_understood(path, client):
    about = client.get("/openapi.json").json()
    shown = about["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = about["components"]["schemas"][shown["$ref"].rpartition("/")[2]]
    assert schema["additionalProperties"] is False
    for key in ("ids", "new", "pairs", "k", "why", "edges"):
        answer = client.post(path, {"ids": ["node 1"], key: 0})
        unknown = f"unknown key {key!r}" in answer.json()["error"]
        assert unknown == (key not in schema["properties"])


def test_every_example_is_answered(client):
    about = client.get("/openapi.json").json()
    page = unescape(client.get("/docs").text)
    asked = 0
    for path, verbs in about["paths"].items():
        body = verbs.get("post", {}).get("requestBody", {"content": {}})["content"]
        for example in body.get("application/json", {}).get("examples", {}).values():
            answer = client.post(path, example["value"])
            ends = time.monotonic() + 60
            while (
                answer.status_code == 503 and time.monotonic() < ends
            ):  # labels are learned beside
                time.sleep(0.1)
                answer = client.post(path, example["value"])
            assert answer.status_code == 200, (path, example, answer.text)
            assert json.dumps(example["value"]) in page
            asked += 1
    assert asked == 9


def test_the_page_escapes_the_name(client):
    about = client.get("/openapi.json").json()
    page = description_page(about, "<b>")
    assert "<b>" not in page
    assert all(f"{path}</code>" in page for path in PATHS)
