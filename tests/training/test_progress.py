"""Trackers: what each is told, and that a service that fails does not end a training.

MLflow and Weights & Biases are stood in for by small modules with the same calls.
"""

import csv
import io
import sys
import types

import pytest
import torch
from sklearn.pipeline import Pipeline
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from graphcl.errors import MissingExtraError, ParameterError
from graphcl.estimator.model import GraphCL
from graphcl.training.loop import EpochMetrics, PartedMetrics, TrainingState
from graphcl.training.progress import csv_log, parse_trackers, progress, tensorboard_log, tracked
from tests.conftest import configured, random_graph


class Terminal(io.StringIO):
    def isatty(self):
        return True


def state_at(epoch, step, seconds, *, each=10, total=25):
    state = TrainingState(None, None, each, total, epoch=epoch, step=step, seconds=seconds)
    state.results = [torch.tensor([4.5, 1.0])] * step
    return state


def metrics_at(state, **more):
    kind = PartedMetrics if more else EpochMetrics
    return kind(state.epoch, 4.25, 1.0, None, state.seconds, **more)


def test_lines_say_steps_rate_and_eta_every_few_seconds(capsys):
    with progress(label="cora") as show:
        show.step(state_at(0, 1, 2.0))  # at once: it says how long all will take
        show.step(state_at(0, 2, 4.0))  # too soon
        show.step(state_at(0, 4, 8.0))
        show.step(state_at(0, 10, 20.0))  # the epoch speaks for its last step
        ended = state_at(1, 0, 20.0)
        show.step(ended)
        show(metrics_at(ended))
        show.step(state_at(2, 3, 21.0))  # faster now, and too soon
        show.step(state_at(2, 4, 26.0))
        cut = state_at(3, 0, 27.0)
        show.step(cut)
        show(metrics_at(cut))  # the end, whatever the time
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "cora: epoch 1/3, step 1/10  loss 4.5000  2.0 s/step  ETA 48 s",
        "cora: epoch 1/3, step 4/10  loss 4.5000  2.0 s/step  ETA 42 s",
        "cora: epoch 1/3  loss 4.2500  2.0 s/step  ETA 30 s",
        "cora: epoch 3/3, step 4/5  loss 4.5000  1.1 s/step  ETA 1 s",
        "cora: epoch 3/3  loss 4.2500  took 27 s",
    ]


def test_nothing_is_said_that_is_not_known(capsys):
    with progress() as show:
        show.step(state_at(0, 1, 0.0))
        long = state_at(1, 0, 444.0, each=1, total=1)
        show.step(long)
        show(metrics_at(long, sent_bytes=2e6, cache_hits=None))
    unknown, took = capsys.readouterr().err.splitlines()
    assert unknown == "train: epoch 1/3, step 1/10  loss 4.5000  ETA unknown"
    assert took == "train: epoch 1/1  loss 4.2500  took 7 min 24 s  2.00 MB sent a step"


def test_a_fast_training_has_steps_per_second(capsys):
    with progress() as show:
        show.step(state_at(1, 5, 0.01))
    assert "1,500.00 steps/s  ETA 0 s" in capsys.readouterr().err


def test_a_terminal_has_a_bar_of_steps():
    stream = Terminal()
    with progress(label="cora", stream=stream) as show:
        show.step(state_at(0, 4, 8.0))
    shown = stream.getvalue()
    assert "4/25" in shown
    assert "epoch 1/3, step 4/10" in shown


class Notebook(io.StringIO):
    """What a notebook has for stderr."""


Notebook.__module__ = "ipykernel.iostream"


def test_a_notebook_has_a_bar_in_one_line():
    stream = Notebook()
    with progress(label="cora", stream=stream) as show:
        show.step(state_at(0, 4, 8.0))
        show.step(state_at(0, 8, 16.0))
    start, *shown = stream.getvalue().split("\r")
    assert start == ""
    assert [line.split()[1:3] for line in shown] == [["━━━", "4/25"], ["━━━━━━", "8/25"]]
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("stream", [Terminal, Notebook, io.StringIO])
def test_a_bar_is_shown_where_somebody_watches_and_scikit_learn_does_not_call(
    graph, stream, monkeypatch
):
    model = GraphCL(dim=8, epochs=1, batch_nodes=20, device="cpu")
    shown = []
    for train in (model.fit, Pipeline([("embed", model)]).fit):
        monkeypatch.setattr("sys.stderr", stream())
        train(graph)
        shown.append("epoch 1/1" in sys.stderr.getvalue())
    watched = stream is not io.StringIO
    assert shown == [watched, False]
    monkeypatch.setattr("sys.stderr", stream())
    model.set_params(verbose=False).fit(graph)
    assert sys.stderr.getvalue() == ""


def test_who_does_not_speak_is_silent(capsys):
    with progress(speaks=False) as show:
        show.step(state_at(0, 1, 2.0))
        done = state_at(3, 0, 9.0)
        show.step(done)
        show(metrics_at(done))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_a_real_training_speaks_within_an_epoch(graph, mode, capsys, monkeypatch):
    monkeypatch.setattr("graphcl.training.progress.LINE_EVERY_SECONDS", 0.0)
    settings = {"mode": mode, "batch_nodes": 20, "dim": 8, "epochs": 2, "fan_out": 3}
    configured(device="cpu", verbose=True, **settings).fit(graph)
    each = -(-graph.num_nodes // 20)
    lines = [one for one in capsys.readouterr().err.splitlines() if one.startswith("train: ")]
    places = [line.split("  ")[0].removeprefix("train: ") for line in lines]
    assert places == [
        place
        for epoch in ("epoch 1/2", "epoch 2/2")
        for place in [*(f"{epoch}, step {step}/{each}" for step in range(1, each)), epoch]
    ]
    assert all("ETA" in line for line in lines[:-1])
    assert "took" in lines[-1]


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
