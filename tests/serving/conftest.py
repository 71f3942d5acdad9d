"""A small run, served; the client speaks to the application without a network."""

import asyncio
import contextlib

import httpx
import numpy as np
import pytest

from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.serving.app import build_app
from graphcl.serving.requests import Bounds
from graphcl.serving.run import Current, ServedRun
from tests.conftest import random_graph

NAMES = [f"node {row}" for row in range(60)]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Labels are waited for on a slow machine too."""
    monkeypatch.setattr("graphcl.serving.run.LEARNING_SECONDS", 60.0)


@pytest.fixture(scope="session")
def a_run(tmp_path_factory):
    """A run directory and its graph: 60 nodes with text ids, 12 features, 3 classes."""
    plain = random_graph()
    graph = Graph.from_edge_index(
        plain.edge_index(),
        plain.x,
        np.where(np.arange(60) % 4 == 0, -1, plain.y),
        node_ids=NAMES,
        class_names=("red", "green", "blue"),
        name="colours",
    )
    path = tmp_path_factory.mktemp("served") / "colours"
    GraphCL(epochs=2, dim=24, device="cpu").fit(graph).save(path, graph=graph)
    return path, graph


@pytest.fixture(scope="session")
def served(a_run):
    return ServedRun(*a_run)


@contextlib.asynccontextmanager
async def connected(app):
    """A client of an application, without a network."""
    transport = httpx.ASGITransport(app)  # what the application raises, the client raises
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


class Client:
    """Sends requests to an application, each in a loop of its own."""

    def __init__(self, app):
        self.app = app

    def __call__(self, method, path, **options):
        async def ask():
            async with connected(self.app) as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def post(self, path, json, **options):
        return self("POST", path, json=json, **options)

    def get(self, path, **options):
        return self("GET", path, **options)


def app_of(served, **options):
    return build_app(Current(lambda _: served), **options)


def client_of(served, **options):
    options.setdefault("bounds", Bounds(per_second=0))
    return Client(app_of(served, **options))


@pytest.fixture(scope="session")
def client(served):
    return client_of(served)


@pytest.fixture(scope="session")
def new_node():
    """A new node as JSON, and as arguments of `embed_new`."""
    features = np.random.default_rng(5).normal(size=12).astype(np.float32)
    near = ["node 3", "node 14", "node 59"]
    return {"features": features.tolist(), "neighbors": near}, (features, near)
