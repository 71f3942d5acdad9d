"""Trackers: what each is told, and that a service that fails does not end a training.

MLflow and Weights & Biases are stood in for by small modules with the same calls.
"""

import csv
import sys
import types

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from graphcl.errors import MissingExtraError, ParameterError
from graphcl.estimator.model import GraphCL
from graphcl.training.loop import EpochMetrics
from graphcl.training.trackers import csv_log, parse_trackers, tensorboard_log, tracked
from tests.conftest import random_graph


def epoch(number, bound=0.5):
    return EpochMetrics(number, 2.0 / number, 0.1, bound, 1.5 * number)


class Recorder:
    """Takes any call and remembers it; one of them may fail."""

    def __init__(self, failing=""):
        self.calls, self.failing = [], failing

    def __getattr__(self, name):
        def call(*arguments, **options):
            if name == self.failing:
                raise ConnectionError("no route\nto host")
            self.calls.append((name, *arguments, options))
            return self

        return call


@pytest.fixture
def services(monkeypatch):
    """Stand-ins for both services."""
    found = {}
    for name in ("mlflow", "wandb"):
        found[name] = Recorder()
        module = types.ModuleType(name)
        module.__getattr__ = found[name].__getattr__
        monkeypatch.setitem(sys.modules, name, module)
    return found


def log(names, folder, epochs, settings=None):
    options = {"curves": folder / "curves", "file": folder / "epochs.csv", "title": "mine"}
    with tracked(names, settings=settings or {"dim": 8}, **options) as on_epoch:
        for one in epochs:
            on_epoch(one)


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_names_are_read_and_checked():
    assert parse_trackers(None) == ()
    assert parse_trackers("csv, mlflow,csv") == ("csv", "mlflow")
    for wrong in ("", "comet", "csv,", "tensorboard;csv"):
        with pytest.raises(ParameterError, match="log must be tensorboard, mlflow, wandb, csv"):
            parse_trackers(wrong)


def test_services_are_told_settings_epochs_and_the_end(services, tmp_path):
    log(("mlflow", "wandb"), tmp_path, [epoch(1), epoch(2, None)])
    first = {"loss": 2.0, "gradient_norm": 0.1, "mi_bound": 0.5, "seconds": 1.5}
    second = {"loss": 1.0, "gradient_norm": 0.1, "seconds": 3.0}
    assert services["mlflow"].calls == [
        ("start_run", {"run_name": "mine"}),
        ("log_params", {"dim": 8}, {}),
        ("log_metrics", first, {"step": 1}),
        ("log_metrics", second, {"step": 2}),
        ("end_run", "FINISHED", {}),
    ]
    assert services["wandb"].calls == [
        ("init", {"name": "mine", "config": {"dim": 8}}),
        ("log", first, {"step": 1}),
        ("log", second, {"step": 2}),
        ("finish", {"exit_code": 0}),
    ]


def test_a_training_that_fails_is_told_as_failed(services, tmp_path):
    def broken():
        yield epoch(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        log(("mlflow", "wandb"), tmp_path, broken())
    assert services["mlflow"].calls[-1] == ("end_run", "FAILED", {})
    assert services["wandb"].calls[-1] == ("finish", {"exit_code": 1})


@pytest.mark.parametrize("failing", ["start_run", "log_metrics", "end_run"])
def test_a_service_that_fails_is_left_out(services, tmp_path, capsys, failing):
    services["mlflow"].failing = failing
    log(("mlflow", "csv"), tmp_path, [epoch(1), epoch(2), epoch(3)])
    said = capsys.readouterr().err
    assert said == "train: mlflow failed and is left out: ConnectionError: no route to host\n"
    assert len(rows(tmp_path / "epochs.csv")) == 3


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed(monkeypatch, tmp_path, name):
    package = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"graphcl\[{name}\]"):
        log((name,), tmp_path, [])


def test_a_csv_file_has_a_line_per_epoch_also_after_a_pause(tmp_path):
    log(("csv",), tmp_path, [epoch(1), epoch(2, None), epoch(3)])
    log(("csv",), tmp_path, [epoch(3, 0.75), epoch(4)])  # resumed from the second epoch
    found = rows(tmp_path / "epochs.csv")
    assert [row["epoch"] for row in found] == ["1", "2", "3", "4"]
    assert [row["mi_bound"] for row in found] == ["0.5", "", "0.75", "0.5"]
    assert float(found[3]["loss"]) == 0.5


def test_a_csv_log_is_an_on_epoch_and_callbacks_see_the_model(tmp_path):
    graph, seen = random_graph(), []
    model = GraphCL(epochs=3, dim=8, device="cpu")

    def watch(number, metrics, same):
        seen.append((number, metrics.epoch, same is model, same.transform(graph).shape))

    with csv_log(tmp_path / "epochs.csv") as curve:
        model.fit(graph, on_epoch=curve, callbacks=[watch, lambda *_: None])
    assert seen == [(n, n, True, (60, 8)) for n in (1, 2, 3)]
    assert [float(row["loss"]) for row in rows(tmp_path / "epochs.csv")] == [
        one.loss for one in model.history_
    ]


def test_callbacks_change_no_bit():
    graph = random_graph()
    plain = GraphCL(epochs=2, dim=8, device="cpu").fit(graph)
    watched = GraphCL(epochs=2, dim=8, device="cpu").fit(
        graph, callbacks=[lambda number, metrics, model: model.transform(graph)]
    )
    assert (plain.transform(graph) == watched.transform(graph)).all()


def test_after_a_callback_the_encoder_trains_on():
    graph, modes = random_graph(), []
    model = GraphCL(epochs=3, dim=8, device="cpu")

    def embed(number, metrics, same):
        modes.append(same.encoder_.training)
        same.transform(graph)

    model.fit(graph, callbacks=[embed])
    assert modes == [True, True, True]


def read(folder):
    events = EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_an_estimator_writes_its_curves(graph, recipe, tmp_path):
    model = GraphCL(recipe, device="cpu")
    with tensorboard_log(tmp_path) as log:
        model.fit(graph, on_epoch=log)
    scalars = read(tmp_path)
    assert set(scalars) == {"train/loss", "train/gradient_norm", "train/mi_bound"}
    for name, attribute in (("loss", "loss"), ("mi_bound", "mi_bound")):
        expected = [(m.epoch, getattr(m, attribute)) for m in model.history_]
        assert scalars[f"train/{name}"] == [(step, pytest.approx(v)) for step, v in expected]


def test_no_bound_no_scalar(tmp_path):
    with tensorboard_log(tmp_path) as log:
        log(EpochMetrics(1, 2.0, 0.5, None, 0.1))
    assert set(read(tmp_path)) == {"train/loss", "train/gradient_norm"}
