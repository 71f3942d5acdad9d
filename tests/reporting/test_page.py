import base64
import dataclasses
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcl
from graphcl.errors import ParameterError, RunError
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.drift import measure_drift
from graphcl.graphs.graph import Graph
from graphcl.reporting import page as page_module
from graphcl.reporting.page import (
    answer_sections,
    degree_rows,
    drift_page,
    line_chart,
    map_data,
    morton_order,
    pack,
    pack_texts,
    packed_column,
    part,
    quantised,
    relative,
    render,
    script_json,
)
from graphcl.runs.files import Origin, RunConfig
from graphcl.tabular.originals import Original
from tests.reporting.conftest import made_up, unpack

NAME = '</script><b>"&'


def test_a_curve_goes_through_its_points():
    chart = ElementTree.fromstring(line_chart([1, 2, 3], [4.0, 2.0, 3.0], label=NAME, x_label=NAME))
    path = chart.find("path[@class='curve']").get("d")
    points = [tuple(map(float, pair.split())) for pair in path[1:].split("L")]
    xs, ys = zip(*points, strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] < ys[2] < ys[1]  # up is less in SVG
    assert chart.get("aria-label") == NAME


def test_long_flat_and_single_curves():
    long = line_chart(range(1, 5001), np.arange(5000.0), label="", x_label="")
    assert long.count("L") < 450
    ElementTree.fromstring(line_chart([1, 2], [5.0, 5.0], label="", x_label=""))
    ElementTree.fromstring(line_chart([1], [5.0], label="", x_label=""))


def test_degree_rows_count_every_node_once():
    degree = np.array([0, 1, 1, 2, 3, 4, 5, 8, 9, 16, 17, 1000])
    rows = degree_rows(degree)
    assert rows[:6] == [("0", 1), ("1", 2), ("2", 1), ("3–4", 2), ("5–8", 2), ("9–16", 2)]
    assert sum(count for _, count in rows) == len(degree)
    assert rows[-1] == ("513–1,024", 1)
    assert degree_rows(np.array([1, 2]))[0] == ("1", 1)
    assert degree_rows(np.zeros(3, int))[0] == ("0", 3)


def test_bars_and_matrix_escape_names():
    for markup in (
        part("bars", [(NAME, 3), ("b", 0)], label=NAME),
        part("confusion", [NAME, "b"], [[3, 1], [0, 2]]),
    ):
        assert "<b>" not in markup
        assert "&lt;/script&gt;" in markup
    table = part("confusion", ["a", "b"], [[3, 1], [0, 2]])
    assert re.findall(r"--share:([\d.]+)", table) == ["0.750", "0.250", "0.000", "1.000"]
    assert "75 %" in table
    assert "100 %" in table


ANSWERS = {
    "predict": {
        "nodes": 1234,
        "several": False,
        "labelled": {NAME: 60, "Law": 4},
        "predicted": {NAME: 1000, "Law": 234},
        "text": f"1,234 nodes predicted\nexpected: accuracy 81.2 ± 5.0 % {NAME}",
        "rivals": [{"name": NAME, "roc_auc": 0.61}, {"name": "trees", "roc_auc": 0.7}],
    },
    "cluster": {
        "method": "kmeans",
        "groups": 2,
        "text": "2 groups by kmeans",
        "profiles": [
            [
                {
                    "what": f"{NAME} = b",
                    "kind": "category",
                    "sides": ["41 of 52", "88 of 750"],
                    "inside": 41,
                    "known": 52,
                    "outside": 88,
                    "known_outside": 750,
                    "effect": 3.3,
                }
            ],
            [],
        ],
        "stability": {"times": 5, "agreement": 0.9, "groups": [0.95, 0.4]},
        "sizes": [900, 334],
        "typical": [[NAME, "b"], [7]],
        "silhouette": 0.31,
        "chosen_by": "silhouette",
        "outside": 0,
    },
    "links": {
        "best": [{"source": NAME, "target": "Ada", "score": 0.98}],
        "evaluation": {
            "held_out": 120,
            "negatives": 100,
            "scores": {
                name: {"roc_auc": 0.9, "mrr": 0.5}
                for name in ("embeddings", "common_neighbours", "adamic_adar", "features")
            },
        },
    },
}


def test_every_answer_has_its_section_and_names_are_escaped():
    page = answer_sections(ANSWERS)
    for text in (
        "How far to trust the predictions",
        "1,234",
        "81.2 ± 5.0 %",
        "0.610",
        "Groups",
        "900 nodes",
        "found again by 40 %",
        "79 % (41 of 52)",
        "12 % (88 of 750)",
        "log odds +3.3",
        "Nothing sets it apart beyond chance",
        "Links",
        "adamic adar",
        "120 linked pairs were removed before training; each is ranked among 100 pairs that are "
        "not linked",
    ):
        assert text in page
    assert "<b>" not in page
    assert page.count("&lt;/script&gt;") == 7


def test_no_answer_is_no_section():
    assert answer_sections({}) == ""
    assert answer_sections({"links": {"best": []}}) == ""


@pytest.mark.parametrize("kind", ["predict", "cluster", "links"])
def test_damaged_answers_are_left_out(kind):
    for key in ANSWERS[kind]:
        for wrong in (None, "x", 3, [None], {"a": "b"}, {}):
            answer_sections({kind: ANSWERS[kind] | {key: wrong}})  # it must not fail
    assert answer_sections({kind: {"other": 1}}) == ""


def test_the_page_shows_them_and_the_names_of_classes():
    contents = made_up()
    names = ("Art", "Law", NAME, "d", "e", "f")
    named = replace(contents, answers=ANSWERS, nodes=replace(contents.nodes, class_names=names))
    page = render(named)
    assert "How far to trust the predictions" in page
    assert '<th scope="row">Law</th>' in page
    assert "class 1" not in page
    assert "How far to trust the predictions" not in render(contents)


def test_links_of_a_typed_graph_are_judged_by_other_scores():
    scores = {name: {"roc_auc": 0.8, "mrr": 0.4} for name in ("embeddings", "popularity")}
    worth = {"held_out": 9, "negatives": 5, "scores": scores}
    page = answer_sections({"links": {"evaluation": worth}})
    assert "popularity" in page
    assert "adamic adar" not in page


NASTY = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a b",
    "日本 🦀",
    "\"quoted\" & 'so'",
    "<!--",
    "",
    "line\nbreak",
]


class Tags(HTMLParser):
    """Collects start tags, text and attributes, and holds tags to their nesting."""

    VOID = ("meta", "input", "br", "img", "line", "path", "circle")

    def __init__(self):
        super().__init__()
        self.tags, self.open, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(page):
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    return parser


def embedded(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_is_well_formed_and_loads_nothing(contents):
    page = render(contents)
    parser = parsed(page)
    assert parser.tags.count("script") == 2
    for name, value in parser.attributes:
        assert name not in ("src", "href", "action")
        assert not name.startswith("on")
        assert "http:" not in (value or "")
        assert "https:" not in (value or "")
    assert "@import" not in page
    assert "url(" not in page
    for text in ("Accuracy", "81.2 %", "Nodes by degree", "Effective rank", "All nodes"):
        assert text in page


def test_the_policy_admits_this_script_alone(contents):
    page = render(contents)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_text_from_the_user_is_not_markup():
    ids = np.empty(64, dtype=object)
    ids[:] = NASTY * 8
    nasty = made_up(64, ids=ids, name=NASTY[0])
    result = nasty.result | {
        "device": NASTY[1],
        "note": NASTY[1],
        "versions": {NASTY[1]: NASTY[0]},
        "seed": NASTY[0],
        "warnings": [{"message": NASTY[0], "advice": NASTY[1]}, NASTY[0]],
    }
    recipe = {"encoder": NASTY[1], NASTY[0]: NASTY[1]}
    config = RunConfig(recipe, seed=0, origin=Origin(graph=NASTY[1]))
    page = render(dataclasses.replace(nasty, result=result, config=config, notes=[NASTY[0]]))
    plain, parser = parsed(render(made_up(64))), parsed(page)
    assert parser.tags.count("script") == 2
    assert "img" not in parser.tags
    assert set(parser.tags) <= {*plain.tags, "strong", "p", "br"}
    raw = zlib.decompress(base64.b64decode(embedded(page)["ids"]))
    assert sorted(json.loads(raw)) == sorted(NASTY * 8)


def test_what_the_script_reads_is_what_was_measured(contents):
    data = map_data(contents, 10)
    ids = [int(text) for text in json.loads(zlib.decompress(base64.b64decode(data["ids"])))]
    assert sorted(ids) == list(range(300))
    steps = unpack(data["neighbours"]).astype(np.int64).reshape(300, 10)
    places = np.where(steps & 1, -(steps + 1) // 2, steps // 2) + np.arange(300)[:, None]
    for row, node in enumerate(ids):
        assert [ids[place] for place in places[row]] == contents.points.neighbours[node].tolist()
    titles = {channel["title"]: channel for channel in data["channels"]}
    assert list(titles) == ["label", "group", "split", "degree"]
    assert unpack(titles["label"]["values"]).tolist() == contents.nodes.y[ids].tolist()
    assert unpack(titles["group"]["values"]).tolist() == contents.assigned[ids].tolist()
    degree = titles["degree"]
    assert unpack(degree["values"]).tolist() == contents.nodes.degree[ids].tolist()
    split = titles["split"]
    named = [[*split["names"], ""][code] for code in unpack(split["values"])]
    codes = contents.nodes.split_codes[ids]
    expected = [["", "train", "validation", "test"][code] for code in codes]
    assert named == expected
    assert unpack(data["places"]).size == 600


def test_a_page_without_labels():
    page = render(made_up(labelled=False))
    assert "There is no probe score: the graph has no labels." in page
    assert "could not be read again" in page
    assert "confusion" not in page.split("</style>")[1].split("<script")[0]
    assert [c["title"] for c in embedded(page)["channels"]] == ["group", "degree"]


def test_signs_that_a_training_failed_come_first(contents):
    assert "Warning:" not in render(contents)
    signs = [{"name": "loss", "message": "the loss hardly moved", "advice": "more epochs"}]
    probe = contents.result["probe"] | {"majority": 0.25, "roc_auc": 0.61}
    result = contents.result | {"warnings": signs, "probe": probe}
    page = render(
        dataclasses.replace(contents, result=result, effective_rank=12.34, mean_cosine=0.567)
    )
    parsed(page)
    assert "the loss hardly moved. <br>Try more epochs." in page
    assert page.index("hardly moved") < page.index("All nodes")
    for text in ("Majority", "25.0 %", "ROC-AUC", "0.610", "Effective rank", "12.3", "0.567"):
        assert text in page


def test_unlabelled_nodes_and_scattered_class_numbers():
    some = made_up(50)
    y = some.nodes.y * 100
    y[:7] = -1
    nodes = dataclasses.replace(some.nodes, y=y)
    data = map_data(dataclasses.replace(some, nodes=nodes), 3)
    label = data["channels"][0]
    ids = [int(text) for text in json.loads(zlib.decompress(base64.b64decode(data["ids"])))]
    names = [*label["names"], "none"]
    shown = [names[code] for code in unpack(label["values"])]
    assert shown == [f"class {y[n]}" if y[n] >= 0 else "none" for n in ids]


def test_200_000_points_with_long_ids_stay_under_10_mb():
    random = np.random.default_rng(0)
    ids = np.empty(200_000, dtype=object)
    ids[:] = [row.tobytes().hex() for row in random.integers(0, 256, (200_000, 16), np.uint8)]
    page = render(made_up(200_000, ids=ids, blobs=40))
    assert len(page.encode()) < 10_000_000
    assert embedded(page)["k"] >= 3


def test_a_page_that_cannot_be_small_enough_is_refused(monkeypatch, contents):
    monkeypatch.setattr(page_module, "MOST_BYTES", 20_000)
    with pytest.raises(RunError, match="would exceed"):
        render(contents)


def test_interrupted_before_the_first_epoch(contents):
    bare = dataclasses.replace(contents, metrics=[], result={})
    page = render(bare)
    assert "No epoch recorded" in page


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.float32, np.float64])
def test_arrays_come_back(kind):
    values = np.random.default_rng(0).uniform(0, 255, 1000).astype(kind)
    packed = pack(values)
    assert np.array_equal(unpack(packed), values)
    assert unpack(packed).dtype == kind


def test_columns_come_back_and_numbers_sort_in_names():
    rows = np.array([2, 0, 1])
    numbers = Original("pay", "number", np.array([1234.56, np.nan, 7]), unit=" €")
    data = packed_column(numbers, rows)
    np.testing.assert_array_equal(unpack(data["values"]), [7, 1234.56, np.nan])
    assert (data["unit"], data["log"]) == (" €", False)
    assert packed_column(Original("d", "number", np.array([1, 1, 99.0])), rows)["log"]
    assert packed_column(Original("d", "number", np.full(3, np.nan)), rows)["high"] == 0
    names = np.array(["group 10", None, "group 9"], dtype=object)
    data = packed_column(Original("group", "category", names), rows)
    assert data["names"] == ["group 9", "group 10"]
    assert unpack(data["values"]).tolist() == [0, 1, 2]
    data = packed_column(Original("said", "text", names), rows)
    assert json.loads(zlib.decompress(base64.b64decode(data["values"]))) == [
        "group 9",
        "group 10",
        "",
    ]


def test_own_columns_come_as_far_as_there_is_room(monkeypatch, contents):
    random = np.random.default_rng(0)
    own = [Original(f"c{n}", "number", random.normal(size=300)) for n in range(6)]
    rich = dataclasses.replace(contents, columns=own)
    titles = [one["title"] for one in embedded(render(rich))["channels"]]
    assert titles == ["group", "split", *(f"c{n}" for n in range(6))]
    monkeypatch.setattr(page_module, "COLUMN_BYTES", 10_000)
    page = render(rich)
    assert [one["title"] for one in embedded(page)["channels"]][2:] == ["c0", "c1", "c2"]
    assert "too large with all columns; without: c3, c4, c5." in page


@settings(deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_texts_come_back_and_hold_no_markup(texts):
    packed = pack_texts(texts)
    assert "<" not in packed
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == texts


@settings(deadline=None)
@given(
    value=st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_json_in_a_script_cannot_end_it(value):
    text = script_json(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_the_map_keeps_its_shape():
    places = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 1.0]])
    grid = quantised(places).astype(int)
    assert grid[:, 0].tolist() == [0, 65535, 65535]
    assert grid[2, 1] - grid[0, 1] == pytest.approx(65535 / 4, abs=1)
    assert (quantised(np.ones((3, 2))) == 32768).all()


def test_the_curve_keeps_neighbours_near():
    random = np.random.default_rng(0)
    grid = random.integers(0, 65536, (2000, 2)).astype(np.uint16)
    order = morton_order(grid)
    assert sorted(order) == list(range(2000))
    step = np.abs(np.diff(grid[order].astype(int), axis=0)).sum(axis=1)
    shuffled = np.abs(np.diff(grid.astype(int), axis=0)).sum(axis=1)
    assert step.mean() < shuffled.mean() / 8


def test_relative_is_undone_as_the_script_does():
    neighbours = np.array([[2, 1], [0, 2], [1, 0]])
    steps = relative(neighbours).astype(int)
    back = np.where(steps & 1, -(steps + 1) // 2, steps // 2) + np.arange(3)[:, None]
    assert np.array_equal(back, neighbours)


SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def about():
    return {
        "version": 3,
        "run": f"run {SCRIPT}",
        "from": 2,
        "nodes": 62,
        "edges": 100,
        "embedded": 7,
        "changes": {
            "new_nodes": 2,
            "removed_nodes": 1,
            "changed_nodes": 4,
            "edges_before": 90,
            "edges_after": 100,
        },
        "seconds": {"embedding": 0.5},
    }


def drift_of(moved):
    random = np.random.default_rng(0)
    old = random.normal(size=(60, 5)).astype(np.float32)
    new = np.concatenate([old, old[:2]])
    new[moved] += 1
    found = measure_drift(old, new, np.arange(60), np.array([*moved, 60, 61]))
    return found.to_json(lambda row: f"{SCRIPT} {row}")


def test_it_shows_moves_regions_and_changes(about):
    drift = drift_of([1, 2, 3, 4, 5])
    page = drift_page(about, drift)
    for text in ("How far nodes moved", "Which regions changed", "New nodes", "median move"):
        assert text in page
    assert f"{100 * drift['kept']:.1f} %" in page
    assert page.count("<tr>") >= len(drift["regions"])
    assert "the model is the same" in page


def test_it_runs_nothing_and_loads_nothing(about):
    page = drift_page(about, drift_of([1, 2]))
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=|https?://", page)
    assert "&lt;script&gt;" in page


def test_nothing_was_embedded_again(about):
    page = drift_page(about, drift_of([]))
    assert "No known node was embedded again." in page


def test_more_training_is_said(about):
    page = drift_page({**about, "retrained": {"epochs": 12}}, drift_of([0]))
    assert "the model was trained on" in page
    assert "More epochs" in page


@pytest.fixture
def model(graph):
    return GraphCL(dim=8, epochs=2, device="cpu").fit(graph)


@pytest.fixture
def saved(model, graph, tmp_path):
    """A run that a model wrote; it has no result.json, and does not know where its graph is."""
    model.save(tmp_path / "run", graph=graph)
    return tmp_path / "run"


def test_a_saved_model_gets_the_page_that_a_training_would_get(saved, graph, tmp_path):
    run, out = graphcl.Run(saved, graph=graph), tmp_path / "page.html"
    page = run.report(out, layout="pca")
    text = out.read_text()
    assert (page.path, page.bytes, page.nodes) == (out, len(text.encode()), 60)
    for words in ("Accuracy", "Confusion matrix", "Effective rank", "Loss (NT-Xent)"):
        assert words in text
    with pytest.raises(RunError, match="already exists"):
        run.report(out, layout="pca")
    run.report(out, layout="pca", overwrite=True)


def test_without_labels_and_without_the_graph(model, saved, graph, tmp_path):
    bare = Graph.from_edge_index(graph.edge_index(), graph.x)
    model.save(tmp_path / "bare", graph=bare)
    page = graphcl.Run(tmp_path / "bare", graph=bare).report(layout="pca")
    assert page.path == tmp_path / "bare" / "report.html"
    assert "the graph has no labels" in page.path.read_text()
    notes = []
    page = graphcl.Run(saved).report(layout="pca", on_note=notes.append)
    assert "The graph could not be read again" in page.path.read_text()
    assert len(notes) == 1
    assert "does not say which graph" in notes[0]
    page = graphcl.Run(saved).report(layout="pca", without_graph=True, on_note=notes.append)
    assert "it was not asked for" in page.path.read_text()
    assert len(notes) == 1


def test_what_is_refused(saved, graph, tmp_path):
    run, before = graphcl.Run(saved, graph=graph), sorted(tmp_path.rglob("*"))
    with pytest.raises(ParameterError, match="layout must be umap or pca"):
        run.report(tmp_path / "a.html", layout="tsne")
    with pytest.raises(RunError, match=r"must end in \.html"):
        run.report(tmp_path / "a.pdf")
    wide = Graph.from_edge_index(graph.edge_index(), np.ones((60, 3)))
    with pytest.raises(RunError, match="is not the graph that the run was trained on"):
        graphcl.Run(saved, graph=wide).report(tmp_path / "a.html", layout="pca")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_typed_graph_has_a_page_for_a_type(tmp_path):
    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    masks = {"train_mask": np.arange(16), "val_mask": np.arange(16, 24)}
    papers = {"x": random.normal(size=(40, 4)), "y": y, **masks, "test_mask": np.arange(24, 40)}
    typed = graphcl.Graph.from_edges(
        {"paper": papers, "author": random.normal(size=(20, 3))},
        {("author", "writes", "paper"): random.integers(0, 20, (2, 80))},
    )
    GraphCL(dim=8, epochs=1, device="cpu").fit(typed).save(tmp_path / "run", graph=typed)
    run = graphcl.Run(tmp_path / "run", graph=typed)
    page = run.report(tmp_path / "a.html", layout="pca").path.read_text()
    assert "the nodes of type &#39;paper&#39;" in page
    assert "Confusion matrix" in page
    page = run.report(tmp_path / "b.html", layout="pca", node_type="author").path.read_text()
    assert "author" in page
    bare = dataclasses.replace(
        typed, nodes={**typed.nodes, "paper": dataclasses.replace(typed.nodes["paper"], y=None)}
    )
    GraphCL(dim=8, epochs=1, device="cpu").fit(bare).save(tmp_path / "bare", graph=bare)
    with pytest.raises(RunError, match="name one: node_type='paper'"):
        graphcl.Run(tmp_path / "bare").report(tmp_path / "d.html", layout="pca")
    assert not (tmp_path / "d.html").exists()
