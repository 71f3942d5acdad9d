"""The report in a real browser: headless Chromium, software GL, screenshots to look at.

They are kept where ``GRAPHCL_SCREENSHOTS`` names a folder. Without Chromium or Playwright the tests
are skipped, aloud.
"""

import os
import re
import shutil
import statistics
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from graphcl.reporting.contents import read_ranking
from graphcl.reporting.page import render
from graphcl.tabular.originals import Original
from tests.reporting.conftest import made_up

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

SOFTWARE_GL = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
MOST_MILLISECONDS = 100

# From the wheel event to the frame's pixels being there; reading one back waits for them.
ZOOM = """async () => {
  const { scatter } = window.graphclMap, canvas = scatter.canvas, times = [];
  const box = canvas.getBoundingClientRect(), pixel = new Uint8Array(4);
  for (let i = 0; i < 15; i++) {
    await new Promise(requestAnimationFrame);
    const began = performance.now();
    canvas.dispatchEvent(new WheelEvent("wheel", {
      deltaY: i < 8 ? -60 : 60, clientX: box.left + 200, clientY: box.top + 200,
      cancelable: true }));
    await new Promise(requestAnimationFrame);
    const { gl } = scatter;
    gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
    times.push(performance.now() - began);
  }
  return times;
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=SOFTWARE_GL)
        yield launched
        launched.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a report and, at the end, holds the console to silence and the network to none."""
    complaints, contexts = [], []

    def open_report(contents, *, width=1280, height=900, dark=False, motion=True):
        file = tmp_path / "report.html"
        if contents is not None:  # None: the page is there already
            file.write_text(render(contents), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="no-preference" if motion else "reduce",
            has_touch=width < 500,
        )
        contexts.append(context)
        page = context.new_page()
        # The driver remarks on pixels read back, which these tests do.
        page.on(
            "console",
            lambda message: "ReadPixels" in message.text or complaints.append(message.text),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "blob:", "data:"))
                or complaints.append(request.url)
            ),
        )
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-map]", timeout=30_000)
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert complaints == []


def keep(page, name, *, whole=False):
    folder = os.environ.get("GRAPHCL_SCREENSHOTS")
    picture = page.screenshot(full_page=whole)
    if folder:
        (Path(folder) / f"{name}.png").write_bytes(picture)
    return picture


def painted(page):
    """The share of the map's pixels that points cover."""
    return page.evaluate(
        """() => {
          const { scatter } = window.graphclMap, { gl } = scatter;
          scatter.draw();
          const w = gl.drawingBufferWidth, h = gl.drawingBufferHeight;
          const pixels = new Uint8Array(4 * w * h);
          gl.readPixels(0, 0, w, h, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
          let covered = 0;
          for (let i = 3; i < pixels.length; i += 4) covered += pixels[i] > 0;
          return covered / (w * h);
        }"""
    )


def test_labelled_hover_click_colour_and_find(visit):
    page = visit(made_up(2000))
    assert page.get_attribute("body", "data-map") == "webgl"
    assert 0.01 < painted(page) < 0.9
    page.locator("#points").scroll_into_view_if_needed()
    box = page.locator("#points").bounding_box()
    x, y = page.evaluate("() => window.graphclMap.scatter.toScreen(7)")
    page.mouse.move(box["x"] + x, box["y"] + y)
    under = page.evaluate("() => window.graphclMap.names[window.graphclMap.state.hover]")
    assert page.locator("#tip strong").inner_text() == under
    assert "label: class" in page.locator("#tip").inner_text()
    page.mouse.click(box["x"] + x, box["y"] + y)
    assert page.locator("#chosen h3").inner_text() == under
    assert page.locator("#chosen li").count() == 10
    first = page.locator("#chosen li button span:nth-child(2)").first.inner_text()
    page.locator("#chosen li button").first.click()
    assert page.locator("#chosen h3").inner_text() == first
    page.fill("#find", "1234")
    page.press("#find", "Enter")
    assert page.locator("#chosen h3").inner_text() == "1234"
    page.fill("#find", "no such node")
    page.press("#find", "Enter")
    assert "no such node" in page.locator("#missing").inner_text()
    for colour in ("group", "degree", "split", "label"):
        page.select_option("#colour", label=colour)
        assert page.locator("#legend").inner_text().strip()
    before = painted(page)
    page.locator("#legend button").first.click()
    assert page.locator("#legend button").first.get_attribute("aria-pressed") == "true"
    page.locator("#legend button").first.click()
    assert painted(page) == before
    keep(page, "labelled-light", whole=True)


def listed():
    """A page to act on: predictions with reasons, groups with profiles, and own columns."""
    some = made_up(600, name="people")
    random = np.random.default_rng(0)
    risk = random.permutation(600) / 600
    table = {
        "id": [str(n) for n in range(600)],
        "label": ["yes" if one > 0.5 else "no" for one in risk],
        "p:no": (1 - risk).tolist(),
        "p:yes": risk.tolist(),
        "why": [f"because of {n}" for n in range(600)],
    }
    towns = np.array([["Köln", "Łódź", None][n % 3] for n in range(600)], dtype=object)
    age = np.where(np.arange(600) % 5, np.arange(600) + 0.5, np.nan)
    difference = {"what": "town = Köln", "kind": "category", "effect": 2, "sides": ["1 of 2"] * 2}
    difference |= {"inside": 1, "known": 2, "outside": 1, "known_outside": 2}
    sizes = np.bincount(some.assigned).tolist()
    groups = {"text": "6 groups", "groups": 6, "sizes": sizes, "typical": [["7"]] * 6}
    answers = {
        "predict": {"text": "600 nodes", "predicted": {"yes": 300, "no": 300}, "several": False},
        "cluster": groups | {"profiles": [[difference]] * 6},
    }
    ranking = read_ranking(table, answers["predict"], table["id"])
    own = [Original("town", "category", towns), Original("age", "number", age)]
    shown = replace(some, answers=answers, ranking=ranking, columns=own, title="Whom to call")
    return replace(shown, note="Ask Zoë."), risk


def test_the_list_is_searched_sorted_and_read_by_keyboard_alone(visit):
    contents, risk = listed()
    page = visit(contents)
    ids = "() => [...document.querySelectorAll('#list tbody button')].map((b) => b.innerText)"
    best = [str(n) for n in np.argsort(-risk)]
    assert page.evaluate(ids) == best[:25]
    assert page.locator("h1").bounding_box()["y"] < 100
    assert page.locator("#list tbody tr").first.bounding_box()["y"] < 900  # seen at once
    cells = page.locator("#list tbody tr").first.locator("th, td").all_inner_texts()
    assert cells[:3] == [best[0], f"{100 * risk.max():.1f} %", "yes"]
    assert f"because of {best[0]}" in cells
    page.focus("#sought")
    page.keyboard.type("łódź")
    page.locator("#sifted", has_text="of 200").wait_for()
    assert {int(one) % 3 for one in page.evaluate(ids)} == {1}
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.locator("#sifted", has_text="of 600").wait_for()
    page.locator("#list thead button", has_text="age").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(ids)[0] == "599"
    assert page.locator("#list th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.keyboard.press("Enter")
    assert page.evaluate(ids)[:2] == ["1", "2"]
    assert page.locator("#list th[aria-sort]").get_attribute("aria-sort") == "ascending"
    page.locator("#more").focus()
    page.keyboard.press("Enter")
    assert len(page.evaluate(ids)) == 50
    assert page.evaluate("() => document.activeElement.innerText") == page.evaluate(ids)[25]
    chosen = page.evaluate(ids)[25]
    page.keyboard.press("Enter")  # the dialog on the node in focus
    dialog = page.locator("#node")
    assert dialog.is_visible()
    assert dialog.locator("h3").inner_text() == chosen
    assert f"because of {chosen}" in dialog.inner_text()
    assert dialog.locator("li").count() == 10
    dialog.locator("li button").first.focus()
    page.keyboard.press("Enter")
    assert dialog.locator("h3").inner_text() != chosen
    keep(page, "dialog")
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert page.evaluate("() => document.activeElement.innerText") == chosen
    page.locator("[data-node]").first.click()
    assert dialog.locator("h3").inner_text() == "7"
    dialog.get_by_text("Show on the map").click()
    assert page.locator("#chosen h3").inner_text() == "7"


def test_a_screen_reader_hears_names_and_roles(visit):
    page = visit(listed()[0])
    client = page.context.new_cdp_session(page)
    tree = client.send("Accessibility.getFullAXTree")["nodes"]
    found = [
        (one["role"]["value"], one.get("name", {}).get("value", ""))
        for one in tree
        if not one.get("ignored") and "role" in one
    ]
    for role, name in (
        ("heading", "Whom to call"),
        ("heading", "To look at first"),
        ("heading", "Groups"),
        ("heading", "Map"),
        ("searchbox", "Search"),
        ("combobox", "Colour by"),
        ("columnheader", "probability of yes"),
        ("button", "Show more"),
        ("list", "Typical nodes of group 1"),
        ("region", "To look at first"),
    ):
        assert (role, name) in found, (role, name)
    assert any(role == "image" and name.startswith("Map of 600 nodes") for role, name in found)
    spoken = {"button", "searchbox", "combobox", "textbox", "columnheader", "rowheader", "image"}
    assert [role for role, name in found if role in spoken and not name.strip()] == []
    levels = [
        int(one[1])
        for one in page.evaluate(
            "() => [...document.querySelectorAll('h1,h2,h3')].map((h) => h.tagName)"
        )
    ]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_on_paper_and_on_a_phone_nothing_is_cut_off(visit, tmp_path):
    page = visit(listed()[0], width=390, height=844)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    page.locator("#list tbody button").first.tap()
    box = page.locator("#node").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    keep(page, "phone-dialog")
    page = visit(None, width=720)  # A4 with margins
    page.emulate_media(media="print")
    assert page.evaluate("() => document.documentElement.scrollWidth") == 720
    assert not page.locator("#sift").is_visible()
    assert page.locator("#list tbody tr").count() == 25
    keep(page, "print", whole=True)
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    paper = (tmp_path / "page.pdf").read_bytes()
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 9
    # The drawn map is among the pictures: an empty canvas would be of one colour.
    pictures = re.findall(rb"/Subtype\s*/Image.*?stream\r?\n(.*?)endstream", paper, re.DOTALL)
    assert any(len(set(zlib.decompress(one)[::97])) > 9 for one in pictures)


def test_keys_move_and_choose(visit):
    page = visit(made_up(500), motion=False)
    page.focus("#points")
    view = "() => { const s = window.graphclMap.scatter; return [s.x, s.y, s.zoom]; }"
    start = page.evaluate(view)
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    x, y, zoom = page.evaluate(view)
    assert x > start[0]
    assert y > start[1]
    assert zoom == pytest.approx(1.5 * start[2])
    page.keyboard.press("Enter")
    assert page.locator("#chosen li").count() == 10
    page.keyboard.press("Escape")
    assert page.locator("#chosen li").count() == 0
    page.keyboard.press("0")
    assert page.evaluate(view) == start


def test_unlabelled_in_the_dark_on_a_phone(visit):
    page = visit(made_up(1500, labelled=False), width=390, height=844, dark=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    page.locator("#points").scroll_into_view_if_needed()
    box = page.locator("#points").bounding_box()
    x, y = page.evaluate("() => window.graphclMap.scatter.toScreen(11)")
    page.touchscreen.tap(box["x"] + x, box["y"] + y)
    assert page.locator("#chosen li").count() == 10
    # Two fingers, drawn apart.
    zoom = page.evaluate(
        """() => {
          const { scatter } = window.graphclMap, canvas = scatter.canvas;
          canvas.setPointerCapture = () => {};
          const box = canvas.getBoundingClientRect(), before = scatter.zoom;
          const touch = (type, id, x) => canvas.dispatchEvent(new PointerEvent(type, {
            pointerId: id, pointerType: "touch", clientX: box.left + x, clientY: box.top + 100 }));
          touch("pointerdown", 1, 100); touch("pointerdown", 2, 150);
          touch("pointermove", 2, 200); touch("pointerup", 1, 100); touch("pointerup", 2, 200);
          return [before, scatter.zoom];
        }"""
    )
    assert zoom[1] == pytest.approx(2 * zoom[0])
    keep(page, "unlabelled-dark-phone")


@pytest.mark.alone
def test_200_000_points_answer_a_zoom(visit):
    page = visit(made_up(200_000, blobs=24))
    assert page.get_attribute("body", "data-map") == "webgl"
    times = page.evaluate(ZOOM)
    print(
        f"zoom of 200,000 points: median {statistics.median(times):.0f} ms, best {min(times):.0f}"
    )
    page.evaluate("() => window.graphclMap.scatter.home()")
    keep(page, "200000-light")
    assert statistics.median(times) < MOST_MILLISECONDS, times


def test_names_that_are_markup_stay_text(visit):
    ids = np.empty(60, dtype=object)
    ids[:] = [
        "</script><script>document.title='broken'</script>",
        "<img src=x onerror=alert(1)>",
    ] * 30
    page = visit(made_up(60, ids=ids, name="<i>name</i>"))
    page.evaluate("() => window.graphclMap.choose(0)")
    assert page.locator("#chosen h3").inner_text() in set(ids)
    assert page.locator("#chosen img").count() == 0
    assert page.locator("h1").inner_text() == "<i>name</i>"
    assert "broken" not in page.title()


def test_text_can_be_read_on_its_ground(visit):
    """WCAG's contrast of 4.5 for text, in both schemes."""
    for dark in (False, True):
        page = visit(listed()[0], dark=dark)
        ratios = page.evaluate(
            r"""() => {
              const parse = (text) => text.match(/[\d.]+/g).map(Number);
              const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map(
                (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
              const ground = (node) => {
                for (; node; node = node.parentElement) {
                  const colour = parse(getComputedStyle(node).backgroundColor);
                  if (colour.length === 3 || colour[3] > 0.99) return colour;
                }
                return [255, 255, 255];
              };
              const texts = "h1,p,dt,dd,th,td,small,summary,figcaption,label,button,.count,footer";
              return [...document.querySelectorAll(texts)]
                .filter((node) => node.innerText && node.offsetParent)
                .filter((node) => !node.matches(".confusion td"))
                .map((node) => {
                  const a = light(parse(getComputedStyle(node).color)), b = light(ground(node));
                  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                  return [ratio, node.outerHTML.slice(0, 80)];
                });
            }"""
        )
        assert len(ratios) > 40
        assert min(ratios)[0] >= 4.5, min(ratios)


def test_cora_from_training_to_the_page(visit, tmp_path, monkeypatch):
    from graphcl.cli.main import run

    monkeypatch.chdir(tmp_path)
    assert run(["train", "cora", "--set", "epochs=2", "--set", "dim=32"]) == 0
    assert run(["report", "runs/cora", "--out", "report.html", "--map", "pca"]) == 0
    page = visit(None)
    assert "2,708" in page.inner_text("body")
    assert "Accuracy" in page.inner_text("body")
    assert painted(page) > 0.01
    keep(page, "cora-light", whole=True)
