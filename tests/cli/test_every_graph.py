"""Every command takes every graph: each cell of the table in docs/use/what-works.md is run here.

A cell is a kind of graph, where it lies, and a command. Small graphs, one short training each.
"""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest

from graphcl import Graph
from graphcl.cli.main import run
from tests.groups import command
from tests.serving.conftest import client_of

PAGE = Path(__file__).parents[2] / "docs/use/what-works.md"
KINDS = ("plain", "directed", "weighted", "edge features", "types")
PLACES = ("file", "store", "parts")
COMMANDS = (
    "check",
    "train",
    "train sampled",
    "train, 2 processes",
    "train --method",
    "tune",
    "evaluate",
    "evaluate --runs",
    "embed",
    "embed --new",
    "predict",
    "cluster",
    "links",
    "neighbors",
    "report",
    "serve",
    "update",
    "export",
)
QUICK = ["--set", "epochs=1", "--set", "dim=8", "--set", "batch_nodes=32"]


def graph_of(kind):
    random = np.random.default_rng(0)
    n, m = 60, 240
    ends = random.integers(0, n, (2, m))
    y = random.integers(0, 2, n)
    x = random.normal(size=(n, 5)) + y[:, None]
    ids = [f"n{place}" for place in range(n)]
    order = random.permutation(n)
    masks = {"train_mask": order[:20], "val_mask": order[20:40], "test_mask": order[40:]}
    about = {"y": y, "node_ids": ids, **masks}
    if kind == "plain":
        return Graph.from_edge_index(ends, x, **about, name="graph")
    if kind == "weighted":
        weight = random.random(m) + 0.5
        return Graph.from_edge_index(ends, x, **about, edge_weight=weight, name="graph")
    if kind == "directed":
        return Graph.from_directed(ends, x, **about, name="graph")
    if kind == "edge features":
        features = random.normal(size=(m, 2))
        return Graph.from_directed(ends, x, **about, edge_features=features, name="graph")
    nodes = {"node": {"x": x, **about}, "group": 7}
    groups = np.stack([np.arange(n), random.integers(0, 7, n)])
    edges = {("node", "to", "node"): {"edge_index": ends, "undirected": False}}
    return Graph.from_edges(nodes, edges | {("node", "in", "group"): groups}, name="graph")


@pytest.fixture(scope="module", params=[(k, p) for k in KINDS for p in PLACES], ids="-".join)
def place(request, tmp_path_factory):
    """A folder with a graph and a run that was trained on it; works there."""
    kind, where = request.param
    folder = tmp_path_factory.mktemp("graph")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        graph = graph_of(kind)
        graph.save("whole")
        processes = []
        if where == "file":
            _write_file(graph)
            name = "graph.npz"
        elif where == "store":
            name = "whole"
        else:
            assert run(["build", "whole", "--out", "parts", "--parts", "2"]) == 0
            name, processes = "parts", ["--processes", "2"]
        device = [] if processes else ["--device", "cpu"]
        assert train([name, "--out", "run", *QUICK, *device, *processes]) == 0
        yield kind, where, name, graph


def train(arguments):
    """Trains, in several processes where they are asked for."""
    if "--processes" not in arguments:
        return run(["train", *arguments])
    code, _, err = command("train", *arguments)
    assert code == 0, err
    return code


def _write_file(graph):
    """Writes an `.npz`: with types and relations where there are some."""
    nodes = graph.nodes["node"]
    arrays = {"x": nodes.x, "y": nodes.y, "node_ids": nodes.node_ids}
    masks = ("train_mask", "val_mask", "test_mask")
    arrays |= {name: getattr(nodes, name) for name in masks}
    if graph.is_plain:
        arrays["edge_index"] = graph.edge_index()
        if graph.edge_weight is not None:
            arrays["edge_weight"] = graph.edge_weight
    elif len(graph.nodes) == 1:
        one = graph.only_relation
        arrays |= {"edge_index": one.edge_index(), "edge_type": np.array(["to"] * len(one.indices))}
        if one.edge_features is not None:
            arrays["edge_features"] = one.edge_features
    else:
        n, more = nodes.num_nodes, graph.nodes["group"].num_nodes
        arrays["x"] = np.concatenate([nodes.x, np.zeros((more, 5))])
        arrays["y"] = np.concatenate([nodes.y, np.full(more, -1)])
        arrays["node_ids"] = np.array([*nodes.node_ids, *(f"g{k}" for k in range(more))])
        for name in masks:
            arrays[name] = np.concatenate([arrays[name], np.zeros(more, bool)])
        arrays["node_type"] = np.array(["node"] * n + ["group"] * more)
        to, within = graph.relation("to").edge_index(), graph.relation("in").edge_index()
        arrays["edge_index"] = np.concatenate([to, np.stack([within[0], within[1] + n])], axis=1)
        arrays["edge_type"] = np.array(["to"] * to.shape[1] + ["in"] * within.shape[1])
    np.savez("graph.npz", **{name: np.asarray(one) for name, one in arrays.items()})


def typed(kind):
    return ["--type", "node"] if kind == "types" else []


def out_of(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Labels are waited for on a slow machine too."""
    monkeypatch.setattr("graphcl.serving.run.LEARNING_SECONDS", 60.0)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_every_graph(place, name, capsys, tmp_path):
    kind, where, path, graph = place
    out, quick = str(tmp_path / "out"), [*QUICK, "--device", "cpu"]
    capsys.readouterr()
    if name == "check":
        assert run(["check", path]) == 0
    elif name == "train":
        assert Path("run/config.toml").exists()
    elif name.startswith("train"):
        if where == "parts" and "method" not in name:
            return  # as the fixture did: sampled, by a process for each part
        more = ["--processes", "2"] if "2" in name else []
        more += ["--set", "mode=sampled"] if "sampled" in name else []
        if "method" in name:
            more, quick = ["--method", "dgi", "--set", "epochs=2"], []
        assert train([path, "--out", out, *quick, *more]) == 0
    elif name == "tune":
        assert run(["tune", path, "--trials", "1", "--out", out, *quick]) == 0
    elif name == "evaluate":
        assert run(["evaluate", "run", *typed(kind), "--json"]) == 0
        assert 0 <= out_of(capsys)["accuracy"] <= 1
    elif name == "evaluate --runs":
        assert run(["evaluate", "run", "--runs", "2", *typed(kind), "--json"]) == 0
        assert out_of(capsys)["runs"] == 2
    elif name == "embed":
        if where == "parts":
            shards = ["run", path, "--processes", "2", "--out", out]
            assert command("embed", *shards, *typed(kind))[0] == 0
        else:
            assert run(["embed", "run", path, "--out", f"{out}.csv"]) == 0
            assert len(pandas.read_csv(f"{out}.csv")) == graph.num_nodes
    elif name == "embed --new":
        _new_node(kind, graph, out)
        assert (
            run(["embed", "run", "--new", f"{out}.json", "--out", f"{out}.npy", *typed(kind)]) == 0
        )
        assert np.isfinite(np.load(f"{out}.npy")).all()
    elif name == "predict":
        assert run(["predict", "run", "--all", *typed(kind), "--out", f"{out}.csv"]) == 0
    elif name == "cluster":
        assert run(["cluster", "run", "--count", "3", *typed(kind)]) == 0
    elif name == "links":
        more = ["--relation", "to"] if kind == "types" else []
        assert run(["links", "run", "--node", "n3", *more]) == 0
    elif name == "neighbors":
        assert run(["neighbors", "run", "n3", *typed(kind)]) == 0
    elif name == "report":
        more = ["--map", "pca", "--out", f"{out}.html"]
        assert run(["report", "run", *typed(kind), *more]) == 0
    elif name == "serve":
        _serve(kind, graph)
    elif name == "update":
        _update(kind, graph, tmp_path)
    else:
        assert name == "export"
        assert run(["export", "run", "--to", "torch", "--out", f"{out}.pt2"]) == 0


def _new_node(kind, graph, out):
    near = ["to/n3", "<to/n5"] if kind in ("directed", "types") else ["n3", "n5"]
    near = [] if kind == "edge features" else near
    body = {"new": [{"features": [0.1] * 5, "neighbors": near}]}
    Path(f"{out}.json").write_text(json.dumps(body))


def _serve(kind, graph):
    """What the service answers, without its port: new nodes, labels, similar nodes and links."""
    from graphcl.cli.graphs import load_run_graph
    from graphcl.serving.run import ServedRun
    from graphcl.training_run import keep_embeddings

    whole = load_run_graph(Path("run"), again=("serve", "run"))
    keep_embeddings(Path("run"), whole, device="cpu")
    served = ServedRun(Path("run"), whole, node_type="node" if kind == "types" else None)
    client = client_of(served)
    _new_node(kind, graph, "new")
    new = json.loads(Path("new.json").read_text())
    for address, body in (
        ("/v1/embed", {"ids": ["n3"]}),
        ("/v1/embed", new),
        ("/v1/neighbors", new),
        ("/v1/predict", {"ids": ["n3"]}),
        ("/v1/links", {"ids": ["n3"]}),
    ):
        answer = client("POST", address, json=body)
        assert answer.status_code == 200, answer.text


def _update(kind, graph, tmp_path):
    """New nodes and edges, then back: other commands of the module use the run as it was."""
    columns = {"id": ["m1", "m2"], **{f"f{place}": [0.1, 0.2] for place in range(5)}}
    pandas.DataFrame(columns).to_csv(tmp_path / "nodes.csv", index=False)
    edges = {"source": ["m1", "n3"], "target": ["n3", "m2"]}
    more = []
    if kind == "weighted":
        edges["w"], more = [1.0, 2.0], ["--weight", "w"]
    if kind == "edge features":
        edges |= {"a": [0.1, 0.2], "b": [0.3, 0.4]}
    pandas.DataFrame(edges).to_csv(tmp_path / "edges.csv", index=False)
    given = [f"node={tmp_path}/nodes.csv", f"to={tmp_path}/edges.csv"]
    if graph.is_plain:
        given = [f"{tmp_path}/nodes.csv", f"{tmp_path}/edges.csv"]
    command = ["update", "run", "--nodes", given[0], "--edges", given[1], *more, "--device", "cpu"]
    assert run(command) == 0
    assert run(["update", "run", "--rollback"]) == 0


def test_the_page_has_these_cells():
    everywhere = ", ".join(PLACES)
    rows = [
        "| commands | kinds of graphs | places |",
        "|---|---|---|",
        f"| {', '.join(COMMANDS)} | {', '.join(KINDS)} | {everywhere} |",
    ]
    text = PAGE.read_text()
    shown = text.partition("<!-- cells -->\n")[2].partition("\n<!-- /cells -->")[0]
    assert shown == "\n".join(rows)
