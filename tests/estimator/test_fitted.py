"""The alignment of two spaces, against SciPy's orthogonal Procrustes."""

import copy
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import sklearn.base
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import graphcl
from examples.own_parts import DropColumns, NormedEncoder, Redundancy
from graphcl.cli.main import run
from graphcl.distributed import Share
from graphcl.errors import GraphError, ParameterError, PartError, RunError, TrainingError
from graphcl.estimator.fitted import Alignment, Components, align
from graphcl.estimator.model import GraphCL
from graphcl.graphs.tensors import prepare
from graphcl.recipes import load_recipe
from graphcl.registry import ENCODERS, LOSSES, PERTURBATIONS
from graphcl.training import loop
from tests.conftest import random_graph
from tests.encoders.test_layer import Everything

OWN = {"encoder": NormedEncoder, "perturbation": DropColumns(0.4), "loss": Redundancy()}


class Plain(nn.Module):
    """Any module that maps features and edges to embeddings; it states no layers."""

    def __init__(self, num_features, *, dim, layers, generator):
        super().__init__()
        self.linear = nn.Linear(num_features, dim)
        nn.init.normal_(self.linear.weight, generator=generator)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x, adjacency):
        return self.linear(adjacency.pool(x if isinstance(x, torch.Tensor) else x.to_dense()))


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    """Names that a test registers are gone after it."""
    for known in (ENCODERS, PERTURBATIONS, LOSSES):
        monkeypatch.setattr(known, "_parts", dict(known._parts))


def small(recipe, **own):
    return graphcl.GraphCL(recipe, device="cpu", seed=2, **own)


def test_all_three_train_save_load_and_embed(graph, recipe, tmp_path):
    model = small(recipe, **OWN)
    z = model.fit_transform(graph)
    assert z.shape == (graph.num_nodes, 16)
    assert np.isfinite(z).all()
    assert all(line.mi_bound is None for line in model.history_)
    assert np.array_equal(z, small(recipe, **OWN).fit_transform(graph))
    other = small(recipe, **{**OWN, "perturbation": DropColumns(0.1)}).fit_transform(graph)
    assert not np.array_equal(z, other)
    model.save(tmp_path / "run", graph=graph)
    assert np.array_equal(np.load(tmp_path / "run/embeddings.npy"), z)
    again = graphcl.GraphCL.load(tmp_path / "run", encoder=NormedEncoder, device="cpu")
    assert np.array_equal(again.transform(graph), z)
    assert again.recipe_ == model.recipe_
    assert again.recipe_.perturbation == "examples.own_parts:DropColumns(column_drop=0.4)"


def test_a_run_never_executes_what_it_names(graph, recipe, tmp_path, monkeypatch):
    small(recipe, **OWN).fit(graph).save(tmp_path / "run")
    config = tmp_path / "run/config.toml"
    config.write_text(config.read_text().replace("examples.own_parts", "trap"))
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ParameterError, match="encoder 'trap:NormedEncoder' is not registered"):
        graphcl.GraphCL.load(tmp_path / "run")
    assert "trap" not in sys.modules
    with pytest.raises(ParameterError, match="the object must be of trap:NormedEncoder"):
        graphcl.GraphCL.load(tmp_path / "run", encoder=Plain)
    model = graphcl.GraphCL.load(tmp_path / "run", encoder=NormedEncoder, device="cpu")
    with pytest.raises(ParameterError, match=r"perturbation 'trap:DropColumns.* not registered"):
        model.fit(graph)  # needed to train again, not to embed


def test_an_encoder_that_states_its_layers_trains_on_trees_and_embeds_in_blocks(
    graph, recipe, monkeypatch
):
    recipe = recipe.replace(mode="sampled", fan_out=3, batch_nodes=20)
    for encoder in (NormedEncoder, Everything(graph.num_features)):
        model = small(recipe, encoder=encoder, layers=3).fit(graph)
        assert model.mode_.name == "sampled"
        whole = model.transform(graph)
        monkeypatch.setattr("graphcl.estimator.inference.LAYERWISE_NODES", 1)
        np.testing.assert_allclose(model.transform(graph), whole, rtol=1e-4, atol=1e-5)
        monkeypatch.undo()


def test_parts_that_only_see_whole_graphs_say_so(graph, recipe, monkeypatch):
    monkeypatch.setattr("graphcl.training.modes.CPU_NODES", 1)  # sampled, where it is possible
    for own in ({"encoder": Plain}, {"perturbation": DropColumns()}):
        assert small(recipe, **own).fit(graph).mode_.name == "full"
        with pytest.raises(ParameterError, match="mode 'sampled' is not possible"):
            small(recipe, mode="sampled", **own).fit(graph)
    assert small(recipe).fit(graph).mode_.name == "sampled"


def test_a_module_is_trained_from_the_weights_it_has(graph, recipe, tmp_path):
    module = Everything(graph.num_features)
    before = copy.deepcopy(module.state_dict())
    model = small(recipe, encoder=module)
    assert sklearn.base.clone(model).encoder is not module
    z = model.fit_transform(graph)
    assert z.shape == (graph.num_nodes, 7)  # the module's own width, not the recipe's
    assert list(model.get_feature_names_out()) == [f"graphcl{n}" for n in range(7)]
    assert all(torch.equal(weight, before[key]) for key, weight in module.state_dict().items())
    model.save(tmp_path / "run")
    again = graphcl.GraphCL.load(tmp_path / "run", encoder=Everything(graph.num_features))
    np.testing.assert_allclose(again.transform(graph), z, rtol=1e-5, atol=1e-6)
    assert model.set_output(transform="pandas").transform(graph).shape == z.shape


def test_each_view_is_a_draw_of_its_own(graph, recipe):
    """Whole columns: drawn once for two copies side by side, both views would lack the same."""
    drawn = []

    def columns(x, adjacency, generator):
        keep = torch.rand(x.shape[1], generator=generator) > 0.5
        drawn.append(keep)
        return x * keep, adjacency

    small(recipe, perturbation=columns, epochs=1).fit(graph)
    assert [len(keep) for keep in drawn] == [graph.num_features] * 2
    assert not torch.equal(*drawn)


def test_registered_names_serve_the_command_line(graph, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    command = ["train", "mine.npz", "--out", "run", "--set", "dim=8", "--set", "epochs=2"]
    named = ["--set", "encoder=normed", "--set", "perturbation=columns", "--set", "loss=twins"]
    assert run([*command, *named]) == 2
    assert "unknown encoder 'normed'; known: mean, residual" in capsys.readouterr().err
    ENCODERS.register("normed", NormedEncoder)
    PERTURBATIONS.register("columns", lambda *, edge_drop, feature_drop: DropColumns(feature_drop))
    LOSSES.register("twins", lambda *, temperature, precision: Redundancy(temperature))
    assert run([*command, *named, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mi_bound"] is None
    assert run(["embed", "run", "--out", "z.npy"]) == 0
    assert np.array_equal(np.load("z.npy"), np.load("run/embeddings.npy"))
    assert run(["evaluate", "run", "--runs", "2"]) == 0
    assert run(["report", "run", "--map", "pca", "--out", "page.html"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "normed encoder" in page
    assert "perturbation = columns" in page


def test_the_report_of_a_run_with_parts_that_are_not_registered(graph, recipe, tmp_path, capsys):
    small(recipe, **OWN).fit(graph).save(tmp_path / "run", graph=graph)
    assert run(["report", str(tmp_path / "run"), "--map", "pca"]) == 0
    page = (tmp_path / "run/report.html").read_text()
    assert "examples.own_parts:NormedEncoder encoder" in page
    assert "loss = examples.own_parts:Redundancy(weight=0.01)" in page
    capsys.readouterr()
    assert run(["embed", str(tmp_path / "run"), "cora", "--out", str(tmp_path / "z.npy")]) == 2
    assert "is not registered; pass the object" in capsys.readouterr().err


def test_a_loss_of_ones_own_trains_in_one_process(graph):
    with pytest.raises(TrainingError, match="Redundancy trains in one process"):
        loop._over_processes(Redundancy(), graphcl.distributed.Share(0, 2))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"encoder": lambda *_, **__: 3}, "what the factory returns must be a module; got 3"),
        ({"loss": 3}, "loss: the object must be callable; got 3"),
        ({"perturbation": 3}, "perturbation: the object must be callable; got 3"),
        ({"loss": "nt_xent"}, "unknown loss 'nt_xent'; known: nt-xent; did you mean 'nt-xent'"),
    ],
)
def test_what_is_not_a_part_is_refused(graph, recipe, own, message):
    with pytest.raises(ParameterError, match=message):
        small(recipe, **own).fit(graph)


class Twisted(torch.nn.Module):
    def __init__(self, num_features, *, dim, layers, generator):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(num_features + 1, dim))

    def forward(self, x, adjacency):
        return x @ self.weight  # too many rows


def broken_factory(num_features, *, dim, layers, generator):
    return {}["no such encoder"]


def adds_words(x, adjacency, generator):
    return x + "noise", adjacency


def half_a_view(x, adjacency, generator):
    return x


def two_losses(h_1, h_2):
    return (h_1 - h_2).square().mean(1)


def plain_number(h_1, h_2):
    return (h_1 - h_2).square().mean().item()


FAULTS = {
    "encoder": (Twisted, "Twisted failed: RuntimeError: mat1 and mat2 shapes", "x @ self.weight"),
    "a factory": (broken_factory, "broken_factory failed: KeyError: 'no such", "return {}["),
    "perturbation": (adds_words, "adds_words failed: TypeError: unsupp", 'return x + "noise"'),
    "half": (half_a_view, "half_a_view failed: ValueError: too many values to unpack", ""),
    "loss": (lambda h_1, h_2: h_1 @ h_2, "<lambda> failed: RuntimeError: mat1 and", "h_1 @ h_2,"),
    "rows": (two_losses, r"two_losses failed: TypeError: a loss returns a scalar .*\[60\]", ""),
    "number": (plain_number, "plain_number failed: TypeError: a loss .* got float", ""),
}
KINDS = {"a factory": "encoder", "half": "perturbation", "rows": "loss", "number": "loss"}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_in_ones_own_part_is_its_own_by_name(graph, recipe, case):
    part, message, source = FAULTS[case]
    kind = KINDS.get(case, case)
    with pytest.raises(PartError, match=f"your {kind} {__name__}.{message}") as caught:
        small(recipe, **{kind: part}).fit(graph)
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)
    lines = Path(__file__).read_text().splitlines()
    if source:  # where it happened is in this file
        number = int(re.search(r"\(test_fitted\.py:(\d+)\)$", str(caught.value))[1])
        assert source in lines[number - 1]


def test_on_the_command_line_such_a_fault_is_one_line_and_no_bug(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    PERTURBATIONS.register("words", lambda *, edge_drop, feature_drop: adds_words)
    command = ["train", "cora", "--set", "perturbation=words", "--set", "epochs=1"]
    assert run([*command, "--set", "dim=8", "--out", "run"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"graphcl: your perturbation {__name__}.adds_words failed: TypeError: ")
    assert "bug" not in line
    assert run(["--verbose", *command, "--out", "run"]) == 2
    assert 'return x + "noise"' in capsys.readouterr().err


def test_a_fault_of_a_shipped_part_stays_a_bug(graph, recipe, monkeypatch):
    monkeypatch.setattr("graphcl.views.drop_features", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        small(recipe).fit(graph)


def test_the_pages_parts_train_on_words_and_on_numbers(graph):
    """docs/use/own-parts.md, on a sparse graph and on a dense one."""
    page = Path("docs/use/own-parts.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    names: dict[str, object] = {}
    exec(first.partition("graph = ")[0], names)  # noqa: S102 (our own page)
    exec(second, names)  # noqa: S102
    cora = graphcl.load_dataset("cora")
    assert scipy.sparse.issparse(cora.x)
    for one in (cora, graph):
        own = {key: names[key] for key in ("blur", "thin")}
        for perturbation in own.values():
            model = graphcl.GraphCL(
                perturbation=perturbation, loss=names["spread"], encoder=names["Gentle"],
                dim=8, epochs=1, batch_nodes=0, device="cpu",
            )  # fmt: skip
            assert np.isfinite(model.fit_transform(one)).all()


def test_a_class_is_built_with_the_recipes_values():
    class Rates:
        def __init__(self, *, edge_drop, feature_drop):
            self.rates = (edge_drop, feature_drop)

        def __call__(self, x, adjacency, generator):
            return x, adjacency

    recipe = load_recipe("cora")
    components = Components.of(recipe, encoder=None, perturbation=Rates, loss=None)
    assert components.perturbation.rates == (recipe.edge_drop, recipe.feature_drop)


def test_a_group_divides_what_can_be_divided(graph, recipe, monkeypatch):
    """By rows of nodes; else every process gets the whole graph, as it does alone."""

    def source(world, **changes):
        monkeypatch.setattr("graphcl.estimator.fitted.current_share", lambda: Share(1, world))
        own = {"encoder": None, "perturbation": None, "loss": None}
        own |= {key: changes.pop(key) for key in own.keys() & changes.keys()}
        components = Components.of(recipe.replace(mode="full", **changes), **own)
        (prepared,) = prepare([graph], "none")
        return components.source(prepared, device=torch.device("cpu"))[0]

    divided = source(2, batch_nodes=7)
    assert len(divided.x) == graph.num_nodes  # half of both copies
    assert (divided.division.share, divided.batch_nodes) == (Share(1, 2), 7)
    assert source(60).division is not None
    assert source(2, encoder=NormedEncoder).division is not None  # normalised by rows
    for whole in (
        source(1),
        source(61),  # more processes than nodes
        source(2, encoder="gcn"),
        source(2, encoder=Plain),
        source(2, perturbation=DropColumns(0.4)),
    ):
        assert whole.division is None


def turned(seed, rows=50, dim=6, noise=0.0):
    random = np.random.default_rng(seed)
    old = random.normal(size=(rows, dim)) + 3
    turn = np.linalg.qr(random.normal(size=(dim, dim)))[0]
    new = (old - 1) @ turn + random.normal(size=dim) + noise * random.normal(size=(rows, dim))
    return new.astype(np.float32), old.astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 200), noise=st.sampled_from([0.0, 0.5]))
def test_it_is_the_turn_that_scipy_finds(seed, rows, noise):
    new, old = turned(seed, rows=rows, noise=noise)
    found = align(new, old)
    rotation = found.rotation.numpy()
    centred = [one.astype(np.float64) - one.astype(np.float64).mean(axis=0) for one in (new, old)]
    expected, _ = scipy.linalg.orthogonal_procrustes(*centred)
    away = [np.linalg.norm(centred[0] @ one - centred[1]) for one in (rotation, expected)]
    assert away[0] <= away[1] + 1e-3
    if rows > 20:  # else several turns are equally good
        np.testing.assert_allclose(rotation, expected, atol=1e-4)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(6), atol=1e-5)
    if noise == 0 and rows > 20:
        np.testing.assert_allclose(found.apply(new.copy()), old, atol=1e-4)
    np.testing.assert_allclose(found.apply(new.copy()).mean(axis=0), old.mean(axis=0), atol=1e-3)


def test_distances_stay():
    new, old = turned(0, noise=1.0)
    found = align(new, old).apply(new.copy())
    before = np.linalg.norm(new[:, None] - new[None], axis=2)
    np.testing.assert_allclose(
        np.linalg.norm(found[:, None] - found[None], axis=2), before, atol=1e-4
    )


def test_the_bits_of_a_row_do_not_depend_on_others():
    new, old = turned(1, rows=10_000)
    found = align(new, old)
    whole = found.apply(new.copy())
    for rows in ([0], [7, 9_999], list(range(3, 200))):
        assert np.array_equal(found.apply(new[rows]), whole[rows])
    fixed = new.copy()
    fixed.flags.writeable = False
    assert np.array_equal(found.apply(fixed), whole)
    assert np.array_equal(fixed, new)


def test_embeddings_are_turned_everywhere_and_kept_in_runs(tmp_path):
    graph = random_graph()
    model = GraphCL("cora", encoder="mean", dim=6, epochs=1, device="cpu").fit(graph)
    plain = model.transform(graph)
    model._fitted.alignment = align(*turned(3))
    model.save(tmp_path / "run", graph=graph)
    loaded = GraphCL.load(tmp_path / "run", device="cpu")
    expected = plain @ model._fitted.alignment.rotation.numpy()
    expected += model._fitted.alignment.shift.numpy()
    np.testing.assert_allclose(loaded.transform(graph), expected, atol=1e-5)
    np.testing.assert_allclose(loaded.transform(graph, nodes=[3, 1]), expected[[3, 1]], atol=1e-5)
    assert np.array_equal(np.load(tmp_path / "run/embeddings.npy"), loaded.transform(graph))
    features, near = np.asarray(graph.x[5]), [1, 2, 3]
    free = GraphCL.load(tmp_path / "run", device="cpu")
    free._fitted.alignment = None
    new = free.embed_new(features, near, graph=graph)
    np.testing.assert_allclose(
        loaded.embed_new(features, near, graph=graph),
        model._fitted.alignment.apply(new[None].copy())[0],
        atol=1e-6,
    )
    many = [np.tile(features, (3, 1)), [near] * 3]
    assert loaded.embed_new(*many, graph=graph).shape == (3, 6)


def test_an_exported_program_turns_too():
    from graphcl.exporting.program import GraphProgram

    graph = random_graph()
    model = GraphCL("cora", encoder="mean", dim=6, epochs=1, device="cpu").fit(graph)
    model._fitted.alignment = align(*turned(3))
    program = GraphProgram(model._fitted)
    edges = torch.from_numpy(graph.edge_index())
    with torch.no_grad():
        found = program(torch.from_numpy(graph.x.copy()), edges, torch.ones(edges.shape[1]))
    np.testing.assert_allclose(found, model.transform(graph), atol=1e-5)


def test_what_cannot_be_aligned():
    with pytest.raises(GraphError, match="expected the same nodes"):
        align(np.zeros((0, 3)), np.zeros((0, 3)))
    with pytest.raises(GraphError, match="expected the same nodes"):
        align(np.zeros((4, 3)), np.zeros((4, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("shift"), "lacks rotation or shift"),
        (lambda t: t.update(rotation=torch.eye(3)), "rotation"),
        (lambda t: t.update(rotation=2 * torch.eye(6)), "not orthogonal"),
        (lambda t: t.update(rotation=torch.full((6, 6), torch.nan)), "not orthogonal"),
        (lambda t: t.update(shift=torch.full((6,), torch.inf)), "not finite"),
        (lambda t: t.update(shift=torch.zeros(6, 1)), "shift"),
    ],
)
def test_a_forged_alignment_is_refused(change, message):
    tensors = align(*turned(0)).tensors()
    change(tensors)
    with pytest.raises(RunError, match=message):
        Alignment.from_tensors(tensors)


def test_an_alignment_that_is_missing_is_said(tmp_path):
    """Without it, new nodes would be embedded in another space, and nobody would know."""
    model = GraphCL("cora", encoder="mean", dim=6, epochs=1, device="cpu").fit(random_graph())
    model._fitted.alignment = align(*turned(3))
    model.save(tmp_path / "run")
    assert GraphCL.load(tmp_path / "run", device="cpu")._fitted.alignment is not None
    (tmp_path / "run" / "alignment.safetensors").unlink()
    with pytest.raises(RunError, match=r"alignment\.safetensors: missing"):
        GraphCL.load(tmp_path / "run", device="cpu")
