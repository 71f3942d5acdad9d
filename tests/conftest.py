"""Small graphs that every test can afford, and a room in which forged files are read."""

import dataclasses
import gc
import importlib.util
import os
import resource
import sys
from pathlib import Path
from typing import Any

# Workers share the cores: threads of one, which spin while they wait, would take them from another.
# Libraries read this when they are imported, and processes that tests start inherit it. Numba's
# loops keep their number of threads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# What was compiled is kept, also where the environment says otherwise: hundreds of files of src and
# of tests are imported by every worker and by processes that tests start.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import numpy as np
import pytest
import torch

# Without a GPU, Triton's interpreter runs the kernels. It must be on before triton is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import HealthCheck, settings

from graphcl.answers import rivals
from graphcl.estimator.model import GraphCL
from graphcl.evaluation import folds, probe
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import NODE
from graphcl.graphs.schema import EDGES
from graphcl.kernels.neighbours import EdgeWeights
from graphcl.recipes import Recipe
from graphcl.recipes.recipe import recipe_keys
from graphcl.reporting import projection
from graphcl.topology import LocalTopology, SampledDirection
from tests import interpreter

ROOM = 600 * 2**20
FUZZ = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


# Files that take a minute or so. They come first, so that no process ends long after the others.
LONG = (
    "test_every_graph.py",
    "test_processes.py",
    "test_partitioned.py",
    "test_outcomes.py",
    "test_contributing.py",
    "test_docs.py",
    "test_nt_xent_triton.py",
    "test_program.py",
    "test_training_run.py",
    "test_trained_over_parts.py",
    "test_distributed.py",
    "test_typed_graphs.py",
    "test_train.py",
    "test_update.py",
    "test_serve.py",
    "test_gather_mean.py",
    "test_probe.py",
    "test_browser.py",
)


# What is too large for every machine, or may be missing there, and what is then not tested.
OPTIONAL = {
    "kubernetes_validate": "the manifest of docs/operate/scaling.md",
    "pyspark": "the Spark job of docs/operate/spark.md",
    "ray": "the Ray Train job of docs/operate/ray.md",
}


def pytest_ignore_collect(collection_path, config):
    """With `-m alone`, imports only files that have such tests."""
    if config.option.markexpr == "alone" and collection_path.suffix == ".py":
        return "pytest.mark.alone" not in collection_path.read_text() or None
    return None


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What tests import stays: nobody looks for garbage in it, neither now nor while they run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure(config):
    if config.getoption("numprocesses", None):
        interpreter.start()  # once, for all workers


def pytest_sessionfinish():
    if "tests.groups" in sys.modules:
        sys.modules["tests.groups"].end_workers()


def pytest_terminal_summary(terminalreporter):
    for package, what in OPTIONAL.items():
        if importlib.util.find_spec(package) is None:
            line = f"{package} is not installed: {what} was SKIPPED"
            terminalreporter.write_line(line, yellow=True)
    if not os.environ.get("GRAPHCL_DATA"):
        terminalreporter.write_line(
            "GRAPHCL_DATA is not set: tests that read PPI or the raw Planetoid files were SKIPPED",
            yellow=True,
        )


@pytest.fixture(scope="session", autouse=True)
def quick_probe():
    """A probe chooses its strength on the given split and one more, not on five more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "REDRAWN", 1)
        yield


# Their subject is how labels are held out, or what that is worth; or they compare recorded values.
HELD_OUT = ("evaluation", "behaviour", "benchmarks", "research")
MAPS = ("reporting", "test_readme.py")


@pytest.fixture(scope="module", autouse=True)
def quick_answers(request):
    """Predictions and rivals are scored on few folds, maps are where UMAP begins: but for tests
    whose subject they are."""
    within = {*request.path.relative_to(Path(__file__).parent).parts}
    with pytest.MonkeyPatch.context() as patch:
        if not within & {*HELD_OUT}:
            for module, names in ((folds, ("FOLDS", "MORE_FOLDS", "FITS")), (rivals, ("FOLDS",))):
                for name in names:
                    patch.setattr(module, name, 3)
        if not within & {*MAPS}:
            patch.setattr(projection, "_umap", lambda start, *_: start)
        yield


def random_graph(seed: int = 0, *, num_nodes: int = 60, num_features: int = 12) -> Graph:
    """Three communities with features that give them away."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, num_nodes)
    likely = np.where(y[:, None] == y[None, :], 0.25, 0.02)
    edges = np.argwhere(np.triu(random.random((num_nodes, num_nodes)) < likely, 1)).T
    x = random.normal(size=(num_nodes, num_features)) + np.eye(3, num_features)[y] * 2
    order = random.permutation(num_nodes)
    third = num_nodes // 3
    return Graph.from_edge_index(
        edges,
        x,
        y,
        train_mask=order[:third],
        val_mask=order[third : 2 * third],
        test_mask=order[2 * third :],
        name="random",
    )


def random_collection(
    seed: int = 0, *, splits: tuple[int, int, int] = (3, 2, 1), labels: int = 5
) -> GraphCollection:
    """Small graphs of different sizes whose nodes have several labels each."""
    random = np.random.default_rng(seed)
    rule = random.normal(size=(12, labels))

    def one(number: int) -> Graph:
        graph = random_graph(seed + number, num_nodes=40 + 3 * number)
        noisy = graph.x @ rule + random.normal(size=(graph.num_nodes, labels))
        return Graph.from_edge_index(
            graph.edge_index(), graph.x, noisy > 1, name=f"tissue {number}"
        )

    graphs = [one(number) for number in range(sum(splits))]
    train, val = splits[0], splits[0] + splits[1]
    return GraphCollection(
        tuple(graphs[:train]), tuple(graphs[train:val]), tuple(graphs[val:]), name="tissues"
    )


@pytest.fixture
def collection() -> GraphCollection:
    return random_collection()


@pytest.fixture
def graph() -> Graph:
    return random_graph()


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(dim=16, epochs=3, feature_scaling="none")


def configured(recipe: str | Recipe = "default", **settings: Any) -> GraphCL:
    """Returns an estimator of any keys of a recipe, keywords or not, and options."""
    plain = [key for key in settings if key in recipe_keys() and not callable(settings[key])]
    keys = {key: settings.pop(key) for key in plain}
    return GraphCL(Recipe(recipe, **keys), **settings)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def two_threads():
    """Two threads of torch, also where workers have one each."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def forked(monkeypatch):
    """Pythons that the test starts are processes of their own that have imported torch before."""
    monkeypatch.setattr(sys, "executable", interpreter.warm())


@pytest.fixture
def data_folder() -> Path:
    """The folder GRAPHCL_DATA names; tests that need it are skipped without."""
    named = os.environ.get("GRAPHCL_DATA")
    if not named:
        pytest.skip("GRAPHCL_DATA is not set")
    return Path(named)


@pytest.fixture
def bounded():
    """Lets this process take no more than `ROOM` beyond what it has."""
    status = Path("/proc/self/status").read_text()
    used = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture
def nothing_runs(tmp_path, monkeypatch):
    """Works in `tmp_path`, where a forged file that is executed leaves `was-run`."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "was-run").exists()


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    estimator = GraphCL("default", dim=8, epochs=1, feature_scaling="none", device="cpu")
    estimator.fit(random_graph()).save(folder / "run")
    return folder / "run"


@pytest.fixture
def model(saved_model, tmp_path):
    """A run of its own to break."""
    (tmp_path / "model").mkdir()
    for file in saved_model.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "model"


def plain_topology(graph, fan_out, *, replace=True, x=None, weights=None):
    """A plain graph in memory, ready to be sampled."""
    csr = torch.tensor(graph.indptr), torch.tensor(graph.indices)
    edges = SampledDirection(EDGES, *csr, fan_out, replace, weights=weights or EdgeWeights())
    return LocalTopology({NODE: torch.tensor(graph.x) if x is None else x}, {NODE: [edges]})


def plain_part(part):
    """The nodes of the only type of a part, with the edges of the only relation as fields."""
    (nodes,), (edges,) = part.nodes.values(), part.edges.values()
    return dataclasses.replace(nodes, fields={**nodes.fields, **edges})


def dense_adjacency(graph: Graph) -> np.ndarray:
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    matrix[tuple(graph.edge_index())] = 1
    return matrix
