"""What short trainings give, bit by bit: a table of hashes that a refactoring must not change.

Every recipe, mode, encoder, kind of input and baseline is trained for a moment on a CPU, through
the public names and the command line alone. Encoders are not trained with every combination of
settings, but with every pair of them.

    python -m tests.behaviour.record FILE       writes what this tree gives
    python -m tests.behaviour.record --write    records it, where bits change on purpose

Bits depend on the CPU and on the versions of torch and NumPy. `outcomes.json` therefore keeps, for
each case, hashes by machine and a few rounded numbers that every machine must reach.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import combinations as choose
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from safetensors.numpy import load_file

import graphcl
from graphcl.cli.main import run
from tests.groups import command
from tests.interpreter import ONE_THREAD

OUTCOMES = Path(__file__).with_name("outcomes.json")
RECIPES = ("citeseer", "cora", "default", "ppi", "ppi-wide", "pubmed", "reddit")
ENCODERS = ("mean", "residual", "gcn", "sage", "gat", "gin")
SHORT = {"dim": 16, "epochs": 3}
# Cases without a recipe fix these keys, so that a new default leaves them as they are.
PLAIN = {
    "encoder": "mean",
    "normalisation": "none",
    "side_by_side": False,
    "own_features": 0.0,
    "smoothed_features": 0.0,
    "repeat_own": False,
    "batch_nodes": 4096,
    "feature_scaling": "row",
    "temperature": 0.5,
    "learning_rate": 0.001,
}
SAMPLED = {"mode": "sampled", "fan_out": 3, "batch_nodes": 64}
# What an encoder is trained with. Of all combinations, `covering` chooses those that are trained.
FACTORS: dict[str, tuple[Any, ...]] = {
    "encoder": ENCODERS,
    "kind": ("dense", "sparse", "wide", "weighted"),
    "layers": (1, 2, 3),
    "replacement": (None, True, False),  # of neighbours that are sampled; None: all are taken
}
BASELINES = {
    "raw": {},
    "propagation": {},
    "random-encoder": {"dim": 16},
    "label-propagation": {},
    "deepwalk": {"dim": 8, "walks": 2, "length": 5},
    "deepwalk-features": {"dim": 8, "walks": 2, "length": 5},
    "ep-b": {"dim": 8, "epochs": 3},
    "dgi": {"dim": 8, "epochs": 3},
    "gcn": {"epochs": 3},
    "gat": {"epochs": 3},
    "dgi-inductive": {"dim": 8, "epochs": 1},
    "graphsage-gcn": {"dim": 8, "epochs": 1},
    "graphsage-mean": {"dim": 8, "epochs": 1},
    "graphsage-lstm": {"dim": 8, "epochs": 1},
    "graphsage-pool": {"dim": 8, "epochs": 1},
    "gaan": {"dim": 8, "epochs": 1},
}
Case = tuple[str, Callable[[], np.ndarray]]


def machine() -> str:
    """Returns what bits depend on: the kind of CPU, and the versions that compute."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    parts = [line.partition(":")[2].strip() for line in lines if line.startswith("CPU part")]
    cpu = (named or parts or ["unknown"])[0]
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    return f"{platform.machine()} {cpu}, {torch.backends.cpu.get_cpu_capability()}, {versions}"


def arrays(seed: int = 0, *, nodes: int = 240, features: int = 24) -> dict[str, np.ndarray]:
    """Returns a small graph of three communities as plain arrays."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, nodes)
    edges = random.integers(0, nodes, (2, 12 * nodes))
    close = y[edges[0]] == y[edges[1]]
    edges = edges[:, close | (random.random(edges.shape[1]) < 0.1)]
    edges = edges[:, edges[0] != edges[1]]
    edges = np.unique(np.sort(edges, axis=0), axis=1)
    x = (random.random((nodes, features)) < 0.2).astype(np.float32)
    x[np.arange(nodes), y] = 1
    split = random.permutation(nodes)
    masks = np.zeros((3, nodes), dtype=bool)
    for mask, part in zip(masks, np.split(split, [nodes // 3, 2 * nodes // 3]), strict=True):
        mask[part] = True
    return {
        "edge_index": edges,
        "x": x,
        "y": y,
        "train_mask": masks[0],
        "val_mask": masks[1],
        "test_mask": masks[2],
    }


def graph(kind: str = "dense", seed: int = 0, **sizes: int) -> graphcl.Graph:
    """Returns that graph with dense, sparse or wide features, or with weights."""
    given = arrays(seed, **sizes)
    if kind == "sparse":
        given["x"] = scipy.sparse.csr_array(given["x"])
    elif kind == "wide":
        given["x"] = np.tile(given["x"], (1, 2))
    elif kind == "weighted":
        random = np.random.default_rng(seed)
        given["edge_weight"] = random.uniform(0.1, 5, given["edge_index"].shape[1])
    return graphcl.Graph.from_edge_index(**given)


def model_of(settings: dict[str, object]) -> graphcl.GraphCL:
    """Returns the estimator of a recipe, by default of `default`, and keys that are changed."""
    keys = dict(settings)
    recipe = graphcl.Recipe(keys.pop("recipe", "default"), **keys)
    return graphcl.GraphCL(recipe, seed=1, device="cpu")


def trained(data: str | object, **settings: object) -> np.ndarray:
    """Returns the embeddings after a short training on a graph, or on one of a kind."""
    plain = {} if "recipe" in settings else PLAIN
    model = model_of({**SHORT, **plain, **settings})
    z = model.fit_transform(graph(data) if isinstance(data, str) else data)
    return np.concatenate(z) if isinstance(z, list) else z


def recipe_cases() -> Iterator[Case]:
    for name in RECIPES:
        for mode in ("full", "sampled"):
            settings = {**SAMPLED, "mode": mode, "inductive": False}
            yield f"recipe {name}, {mode}", partial(trained, "dense", recipe=name, **settings)
        yield f"recipe {name}, as shipped", partial(trained, "sparse", recipe=name)
    yield "cora itself", lambda: trained(graphcl.load_dataset("cora"), recipe="cora", epochs=2)


def combinations() -> list[dict[str, Any]]:
    """Returns every combination of `FACTORS` that can be trained."""
    every = (dict(zip(FACTORS, values, strict=True)) for values in product(*FACTORS.values()))
    return [
        one
        for one in every
        if not (one["kind"] == "weighted" and one["encoder"] in ("sage", "gat", "gin"))
        and (one["replacement"] is None or one["encoder"] in ("mean", "residual"))
    ]


def pairs(combination: dict[str, Any]) -> set[tuple[tuple[str, Any], ...]]:
    """Returns the pairs of settings that a combination trains together."""
    return set(choose(combination.items(), 2))


def covering(combinations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns few combinations that have every pair of settings: always the one with most new."""
    missing, chosen = set().union(*map(pairs, combinations)), []
    while missing:
        chosen.append(max(combinations, key=lambda one: len(missing & pairs(one))))
        missing -= pairs(chosen[-1])
    return chosen


def encoder_cases() -> Iterator[Case]:
    for one in covering(combinations()):
        name = f"{one['encoder']}, {one['kind']}, {one['layers']} layers"
        settings = {"encoder": one["encoder"], "layers": one["layers"]}
        if one["replacement"] is not None:
            name += f", sampled, replacement {one['replacement']}"
            settings |= {**SAMPLED, "sample_with_replacement": one["replacement"]}
        yield name, partial(trained, one["kind"], **settings)


def setting_cases() -> Iterator[Case]:
    for mode in ("full", "sampled"):
        yield (
            f"inductive, {mode}",
            partial(trained, "dense", mode=mode, inductive=True, batch_nodes=32),
        )
        yield (
            f"several graphs, {mode}",
            lambda mode=mode: trained(
                [graph(seed=seed) for seed in range(3)], recipe="ppi", mode=mode, fan_out=3
            ),
        )
        yield f"a store of float16, {mode}", partial(stored, "float16", mode)
    for encoder in ("mean", "residual"):
        for kind in ("dense", "sparse", "weighted"):
            name = f"{encoder} on a large {kind} graph, layer by layer"
            yield name, partial(large, encoder, kind, None)
        name = f"{encoder} on some nodes of a large graph"
        yield name, partial(large, encoder, "dense", slice(100, 400))


def stored(kind: str, mode: str) -> np.ndarray:
    """Returns embeddings that were learned from a store."""
    with tempfile.TemporaryDirectory() as folder:
        graph().save(Path(folder) / "store", features=kind)
        mapped = graphcl.Graph.open(Path(folder) / "store")
        return trained(mapped, **{**SAMPLED, "mode": mode})


def large(encoder: str, kind: str, nodes: slice | None) -> np.ndarray:
    """Returns embeddings of a graph that is too large to be encoded at once."""
    settings = {**PLAIN, "encoder": encoder, "dim": 16, "epochs": 1}
    model = model_of(settings)
    model.fit(graph(kind, features=8))
    return model.transform(graph(kind, 1, nodes=50_500, features=8), rows=nodes)


def baseline_cases() -> Iterator[Case]:
    for name, settings in BASELINES.items():
        if name.startswith("deepwalk") and find_spec("gensim") is None:
            continue  # an extra
        yield f"baseline {name}", partial(by_command, "--method", name, **settings)
    two = {"processes": 2, **SHORT, **PLAIN, "batch_nodes": 64}
    yield "two processes", partial(by_command, **two)
    yield "two processes, sampled", partial(by_command, **{**two, **SAMPLED})


def typed(kind: str = "typed") -> graphcl.Graph:
    """Returns a graph with types, directions, weights or vectors of edges, as `kind` says."""
    random, given = np.random.default_rng(2), arrays()
    about = {key: given[key] for key in ("y", "train_mask", "val_mask", "test_mask")}
    paper = {"x": given["x"], **about}
    edges = {"edge_index": given["edge_index"]}
    count = given["edge_index"].shape[1]
    if kind in ("weighted", "typed weighted"):
        edges["edge_weight"] = random.uniform(0.1, 5, count)
    if kind in ("edge features", "typed edge features"):
        edges["edge_features"] = random.normal(size=(count, 3))
    if not kind.startswith("typed"):
        undirected = {"undirected": kind == "one type"}
        key = ("paper", "cites", "paper")
        return graphcl.Graph.from_edges({"paper": paper}, {key: edges | undirected})
    words = scipy.sparse.csr_array((random.random((90, 11)) < 0.3).astype(np.float32))
    nodes = {"paper": paper, "author": words if kind != "typed bare" else 90, "venue": 7}
    written = np.stack([random.integers(0, 90, 700), random.integers(0, 240, 700)])
    relations = {
        ("paper", "cites", "paper"): edges | {"undirected": False},
        ("author", "writes", "paper"): np.unique(written, axis=1),
        ("paper", "in", "venue"): np.stack([np.arange(240), random.integers(0, 7, 240)]),
    }
    return graphcl.Graph.from_edges(nodes, relations)


def trained_types(kind: str, *, store: bool = False, **settings: object) -> np.ndarray:
    """Returns the embeddings of all types, one after another."""
    data = typed(kind)
    model = model_of({**SHORT, "batch_nodes": 64, **settings})
    with tempfile.TemporaryDirectory() as folder:
        if store:
            data.save(Path(folder) / "store")
            data = graphcl.Graph.open(Path(folder) / "store")
        z = model.fit_transform(data)
        return np.concatenate(list(z.values())) if isinstance(z, dict) else z


def typed_cases() -> Iterator[Case]:
    kinds = ("one type", "directed", "weighted", "edge features", "typed")
    for mode in ("full", "sampled"):
        about = {"mode": mode, "fan_out": 6}
        for kind in (*kinds, "typed weighted", "typed edge features", "typed bare"):
            yield f"{kind} relations, {mode}", partial(trained_types, kind, **about)
        for contrast in ("all", "paper"):
            name = f"typed relations, contrast {contrast}, {mode}"
            yield name, partial(trained_types, "typed", contrast=contrast, **about)
    for kind in ("typed", "weighted"):
        without = {**about, "sample_with_replacement": False}
        name = f"{kind} relations, sampled without replacement"
        yield name, partial(trained_types, kind, **without)
    yield "typed relations, a store", partial(trained_types, "typed", store=True)
    yield "typed relations, one layer", partial(trained_types, "typed", layers=1)
    for kind in ("dense", "sparse", "weighted"):
        yield f"one part, {kind}", lambda kind=kind: in_parts(graph(kind), 1)
    yield "two parts", lambda: in_parts(graph(), 2)
    yield "one part, typed", lambda: in_parts(typed(), 1)
    yield "two parts, typed", lambda: in_parts(typed("typed edge features"), 2)


def in_parts(data: graphcl.Graph, parts: int) -> np.ndarray:
    """Returns the weights that a training over parts leaves in its run."""
    with tempfile.TemporaryDirectory() as folder:
        data.save(Path(folder) / "store")
        divide = ["build", str(Path(folder) / "store"), "--parts", str(parts)]
        _command([*divide, "--out", str(Path(folder) / "parts"), "--quiet"])
        out, short = Path(folder) / "run", {**SHORT, "batch_nodes": 64, "fan_out": 6}
        changed = [word for key, value in short.items() for word in ("--set", f"{key}={value}")]
        train = ["train", str(Path(folder) / "parts"), "--out", str(out), "--seed", "1"]
        _command([*train, *changed, "--quiet"], parts)
        weights = load_file(out / "model.safetensors")
        return np.concatenate([weights[name].reshape(-1) for name in sorted(weights)])


def _command(words: list[str], processes: int = 1) -> None:
    code = run(words) if processes == 1 else command(*words, processes=processes)[0]
    if code != 0:
        raise RuntimeError(f"exit code {code}: {' '.join(words)}")


def by_command(*options: str, processes: int = 1, **settings: object) -> np.ndarray:
    """Returns what `graphcl train` leaves in a run."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "small.npz", **arrays())
        changed = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        out = Path(folder) / "run"
        train = ["train", str(Path(folder) / "small.npz"), "--out", str(out), "--seed", "1"]
        _command([*train, *options, *changed, "--quiet"], processes)
        names = [name for name in ("embeddings", "predictions") if (out / f"{name}.npy").exists()]
        return np.load(out / f"{names[0]}.npy")


def outcome(z: np.ndarray) -> tuple[str, list[float]]:
    """Returns a hash of the bits, and rounded numbers: size, spread and some entries.

    Of predictions they are the shares of the classes: a class may flip on another machine.
    """
    digest = hashlib.sha256(np.ascontiguousarray(z).tobytes()).hexdigest()[:16]
    if z.dtype.kind == "i":
        return digest, [round(float((z == c).mean()), 3) for c in range(int(z.max()) + 1)]
    flat = z.reshape(-1).astype(np.float64)
    some = flat[np.linspace(0, len(flat) - 1, 6).astype(int)]
    return digest, [float(f"{value:.4g}") for value in (np.abs(flat).mean(), flat.std(), *some)]


def record(only: str = "") -> dict[str, tuple[str, list[float]]]:
    """Returns the outcome of every case whose name has `only` in it."""
    torch.set_num_threads(1)
    found = {}
    for cases in (recipe_cases, encoder_cases, setting_cases, baseline_cases, typed_cases):
        for name, work in cases():
            if only in name:
                found[name] = outcome(work())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="where to write the outcomes as JSON")
    parser.add_argument("--write", action="store_true", help="record them in outcomes.json")
    parser.add_argument("--only", default="", help="cases with this in their names")
    given = parser.parse_args()
    found = record(given.only)
    if given.file is not None:
        given.file.write_text(json.dumps({"machine": machine(), "outcomes": found}))
    if not given.write:
        return
    known = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
    for name, (digest, values) in found.items():
        entry = known.setdefault(name, {"values": values, "hashes": {}})
        if entry["hashes"].get(machine(), digest) != digest:
            entry.update(values=values, hashes={})  # new behaviour: other machines' hashes are void
        entry["hashes"][machine()] = digest
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items()]
    OUTCOMES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if not ONE_THREAD.items() <= os.environ.items():  # libraries read these as they are loaded
        command = [sys.executable, "-m", "tests.behaviour.record", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | ONE_THREAD)
    main()
