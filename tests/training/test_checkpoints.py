import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from graphcl.errors import ParameterError, RunError
from graphcl.estimator.model import GraphCL
from graphcl.files import atomic
from graphcl.sampling import DRAWS
from graphcl.training import Checkpoints
from graphcl.training.checkpoints import StoppedError, _digest, parse_state, read_state
from graphcl.training.loop import EpochMetrics, TrainingState
from tests.conftest import random_collection, random_graph
from tests.groups import server
from tests.store.test_partition import typed_graph


def model_of(recipe, **changes):
    return GraphCL(recipe.replace(epochs=4, **changes), device="cpu")


def stop_after(steps):
    """Returns a `stop` that says yes at the call of that number."""
    calls = iter(range(1, 10**6))
    return lambda: next(calls) >= steps


def weights(model):
    return dict(model.encoder_.state_dict())


def same_bits(first, second):
    return all(torch.equal(weights(first)[key], weights(second)[key]) for key in weights(first))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


GRAPHS = {
    "whole": (random_graph, {}),
    "minibatches": (random_graph, {"batch_nodes": 16}),
    "sampled": (random_graph, {"mode": "sampled", "batch_nodes": 16, "fan_out": 3}),
    "several": (random_collection, {"batch_nodes": 25}),
}


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("steps", [1, 6, 7])
def test_resumed_is_uninterrupted_bit_for_bit(tmp_path, recipe, kind, steps):
    make, changes = GRAPHS[kind]
    graph = make()
    whole = model_of(recipe, **changes).fit(graph)
    with pytest.raises(StoppedError):
        model_of(recipe, **changes).fit(
            graph, checkpoints=Checkpoints(tmp_path, stop=stop_after(steps))
        )
    again = model_of(recipe, **changes).fit(graph, checkpoints=tmp_path, resume=True)
    assert same_bits(whole, again)
    figures = [(m.epoch, m.loss, m.gradient_norm, m.mi_bound) for m in whole.history_]
    assert figures == [(m.epoch, m.loss, m.gradient_norm, m.mi_bound) for m in again.history_]


def library():
    return typed_graph(1, authors=40, papers=60, edges=150)


CUT = GRAPHS | {
    "typed": (library, {"batch_nodes": 16}),
    "typed, sampled": (library, {"mode": "sampled", "batch_nodes": 16, "fan_out": 3}),
}


@pytest.mark.parametrize("kind", sorted(set(CUT) - {"whole"}))
def test_steps_cut_an_epoch_and_resume_to_the_same(tmp_path, recipe, kind):
    make, changes = CUT[kind]
    graph = make()
    every = model_of(recipe, **changes)

    def at(steps):
        return Checkpoints(tmp_path / str(steps), stop=stop_after(steps))

    whole = Checkpoints(tmp_path / "all", every_seconds=1e-9, keep=1000)
    every.fit(graph, checkpoints=whole)
    each = len(names(tmp_path / "all")) // 4 - 1  # a checkpoint a step, and one an epoch
    assert each > 2
    limit = each + 2  # in the middle of the second epoch
    cut = model_of(recipe, steps=limit, **changes).fit(graph)
    assert [metrics.epoch for metrics in cut.history_] == [1, 2]
    assert cut.history_[0].loss == every.history_[0].loss
    # The weights are those of the longer training after so many steps; its losses give the mean.
    saved = parse_state(read_state(tmp_path / "all" / "checkpoint-00000001-00000002"))
    for name, weight in cut.encoder_.named_parameters():  # not what is calibrated at the end
        assert torch.equal(weight, saved.tensors[f"w.{name}"])
    assert cut.history_[1].loss == pytest.approx(float(saved.tensors["results"][:, 0].mean()))
    # Calls: the steps of the first epoch, its end, two steps, the end.
    for stop in (each - 1, each + 2, each + 3):
        with pytest.raises(StoppedError):
            model_of(recipe, steps=limit, **changes).fit(graph, checkpoints=at(stop))
        again = model_of(recipe, steps=limit, **changes)
        again.fit(graph, checkpoints=tmp_path / str(stop), resume=True)
        assert same_bits(cut, again)
        assert [m.loss for m in again.history_] == [m.loss for m in cut.history_]
        assert names(tmp_path / str(stop))[-1] == "checkpoint-00000002-00000000"


def test_steps_beyond_the_epochs_and_at_an_end_cut_nothing(graph, recipe):
    changes = {"batch_nodes": 16}
    whole = model_of(recipe, **changes).fit(graph)
    assert same_bits(whole, model_of(recipe, steps=10**6, **changes).fit(graph))
    each = -(-graph.num_nodes // 16)
    two = GraphCL(recipe.replace(epochs=2, **changes), device="cpu").fit(graph)
    assert same_bits(two, model_of(recipe, steps=2 * each, **changes).fit(graph))


def test_the_last_ones_are_kept(tmp_path, graph, recipe):
    model_of(recipe).fit(graph, checkpoints=Checkpoints(tmp_path, every_epochs=1, keep=3))
    assert names(tmp_path) == [f"checkpoint-0000000{n}-00000000" for n in (2, 3, 4)]


def test_by_time(tmp_path, graph, recipe):
    model_of(recipe).fit(graph, checkpoints=Checkpoints(tmp_path, every_seconds=1e-9, keep=100))
    assert len(names(tmp_path)) == 8  # after each step, and after each epoch's end
    model_of(recipe).fit(graph, checkpoints=Checkpoints(tmp_path / "once", every_seconds=1e9))
    assert names(tmp_path / "once") == ["checkpoint-00000004-00000000"]


def test_a_finished_training_resumes_to_itself(tmp_path, graph, recipe):
    first = model_of(recipe).fit(graph, checkpoints=tmp_path)
    again = model_of(recipe).fit(graph, checkpoints=tmp_path, resume=True)
    assert same_bits(first, again)
    assert again.history_ == first.history_


def damage_truncate(path):
    state = path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-7])


def damage_flip(path):
    state = path / "state.safetensors"
    content = bytearray(state.read_bytes())
    content[-3] = (content[-3] + 1) % 256  # damage done twice is damage
    state.write_bytes(content)


def damage_position(path):
    about = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(about | {"step": about["step"] + 1}))


def damage_about(path):
    (path / "checkpoint.json").write_text("[]")


def damage_missing(path):
    (path / "state.safetensors").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "damage", [damage_truncate, damage_flip, damage_position, damage_about, damage_missing]
)
def test_a_damaged_checkpoint_is_passed_over_aloud(tmp_path, capsys, graph, recipe, damage):
    whole = model_of(recipe).fit(graph)
    with pytest.raises(StoppedError):
        model_of(recipe).fit(
            graph, checkpoints=Checkpoints(tmp_path, every_epochs=1, stop=stop_after(5))
        )
    newest = tmp_path / names(tmp_path)[-1]
    damage(newest)
    again = model_of(recipe).fit(graph, checkpoints=Checkpoints(tmp_path, keep=9), resume=True)
    assert f"{newest}: damaged or truncated; trying the one before it" in capsys.readouterr().err
    assert same_bits(whole, again)
    for path in tmp_path.iterdir():
        damage(path)
    with pytest.raises(RunError, match="every checkpoint is damaged"):
        model_of(recipe).fit(graph, checkpoints=tmp_path, resume=True)


def test_another_training_is_refused(tmp_path, graph, recipe):
    model_of(recipe).fit(graph, checkpoints=tmp_path)
    for model, other, what in (
        (model_of(recipe, dim=8), graph, r"another training \(dim 16, now 8\)"),
        (GraphCL(model_of(recipe).recipe, seed=1), graph, r"\(seed 0, now 1\)"),
        (model_of(recipe), random_graph(1), r"\(graph '"),
    ):
        with pytest.raises(RunError, match=what):
            model.fit(other, checkpoints=tmp_path, resume=True)


@pytest.mark.parametrize("draws", [None, 1, 10**6])
def test_a_sampled_training_goes_on_with_the_draws_it_began_with(tmp_path, graph, recipe, draws):
    """Whole-graph training has not changed: its older checkpoints go on."""
    for kind in ("whole", "sampled"):
        folder, (_, changes) = tmp_path / kind, GRAPHS[kind]
        model_of(recipe, **changes).fit(graph, checkpoints=folder)
        file = folder / names(folder)[-1] / "checkpoint.json"
        about = json.loads(file.read_text())
        assert about.pop("draws") == DRAWS
        del about["sha256_about"]
        about |= {} if draws is None else {"draws": draws}
        file.write_text(json.dumps(about | {"sha256_about": _digest(about)}))
        model = model_of(recipe, **changes)
        if kind == "whole":
            model.fit(graph, checkpoints=folder, resume=True)
            continue
        with pytest.raises(RunError, match=r"draws its views differently since .*; begin anew, or"):
            model.fit(graph, checkpoints=folder, resume=True)
        assert file.exists()  # another version may go on from it


def test_a_full_disk_leaves_the_last_good_one(tmp_path, monkeypatch, graph, recipe):
    written = []

    def write(path, content):
        written.append(path)
        if len(written) > 5:
            real(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, content)

    real = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", write)
    whole = model_of(recipe).fit(graph)
    with pytest.raises(RunError, match=r"No space left on device\); checkpoint-0+2-0+ is intact"):
        model_of(recipe).fit(graph, checkpoints=Checkpoints(tmp_path, every_epochs=1))
    assert names(tmp_path) == [f"checkpoint-0000000{n}-00000000" for n in (1, 2)]
    monkeypatch.undo()
    assert same_bits(whole, model_of(recipe).fit(graph, checkpoints=tmp_path, resume=True))


def test_a_process_that_died_while_writing_leaves_nothing_that_counts(tmp_path, graph, recipe):
    whole = model_of(recipe).fit(graph, checkpoints=tmp_path)
    (tmp_path / "checkpoint-00000004-00000000").rename(tmp_path / ".checkpoint-00000004-00000000")
    again = model_of(recipe).fit(graph, checkpoints=tmp_path, resume=True)
    assert same_bits(whole, again)
    assert names(tmp_path) == ["checkpoint-00000004-00000000"]


def test_nothing_to_resume_is_a_beginning(tmp_path, graph, recipe):
    model = model_of(recipe).fit(graph, checkpoints=tmp_path / "new", resume=True)
    assert same_bits(model, model_of(recipe).fit(graph))


def test_bad_arguments(tmp_path):
    with pytest.raises(ParameterError, match="keep must be at least 1; got 0"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(ParameterError, match="every_epochs must be 0 or more; got -1"):
        Checkpoints(tmp_path, every_epochs=-1)


TRAINED = {"seed": 3, "graph": "a"}


def state(step, epoch=1):
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(100.0 * epoch + step)
    adam = torch.optim.Adam(layer.parameters())
    history = [EpochMetrics(1, 2.0, 0.1, None, 1.0)]
    return TrainingState(layer, adam, 100, 900, epoch=epoch, step=step, history=history)


def saved(folder, *steps, **options):
    checkpoints = Checkpoints(folder, every_host=True, **options)
    checkpoints.begin(TRAINED)
    for step in steps:
        checkpoints.save(state(step))
    return checkpoints


def weight_of(found):
    fresh = state(0)
    found.restore(fresh)
    return float(fresh.encoder.weight[0, 0].detach())


def test_the_newest_one_is_read(tmp_path):
    saved(tmp_path, 1, 2, 3)
    assert names(tmp_path) == ["checkpoint-00000001-00000002", "checkpoint-00000001-00000003"]
    found = Checkpoints(tmp_path).latest(TRAINED)
    assert (found.about["epoch"], found.about["step"], weight_of(found)) == (1, 3, 103.0)
    assert Checkpoints(tmp_path).begun(["seed"]) == {"seed": 3}
    assert Checkpoints(tmp_path / "none").latest(TRAINED) is None
    assert Checkpoints(tmp_path / "none").begun(["seed"]) is None


def test_any_copy_will_do_and_a_damaged_one_is_left(tmp_path, capsys):
    saved(tmp_path, 1, 2)
    newest = tmp_path / "checkpoint-00000001-00000002"
    newest = newest.rename(f"{newest}-00005")  # ranks were given out anew
    assert weight_of(Checkpoints(tmp_path).latest(TRAINED)) == 102.0
    file = newest / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert weight_of(Checkpoints(tmp_path).latest(TRAINED)) == 101.0
    assert "00000002-00005: damaged or truncated; trying the one" in capsys.readouterr().err
    (tmp_path / "checkpoint-00000001-00000001/checkpoint.json").unlink()
    with pytest.raises(RunError, match="every checkpoint is damaged"):
        Checkpoints(tmp_path).latest(TRAINED)


def test_one_of_another_build_is_refused(tmp_path):
    saved(tmp_path, 1)
    with pytest.raises(RunError, match="is of another training \\(graph 'a', now 'b'\\)"):
        Checkpoints(tmp_path).latest(TRAINED | {"graph": "b"})


def test_a_full_disk_leaves_the_copy_before(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "sync", full)
    with pytest.raises(RunError, match=r"No space left.*checkpoint-00000001-00000001 is intact"):
        checkpoints.save(state(2))
    assert weight_of(Checkpoints(tmp_path).latest(TRAINED)) == 101.0


def test_it_saves_when_it_is_time_and_when_asked(tmp_path):
    checkpoints = saved(tmp_path, every_seconds=0.0, every_epochs=2)
    checkpoints(state(0, epoch=1))
    assert list(tmp_path.glob("checkpoint-*")) == []
    checkpoints(state(0, epoch=2))
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1
    checkpoints.stop = lambda: True
    with pytest.raises(StoppedError, match="epoch 3, step 4"):
        checkpoints(state(4, epoch=2))
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    saved(tmp_path, 1)  # anew
    assert names(tmp_path) == ["checkpoint-00000001-00000001"]


def process(rank, folder):
    """One of three hosts, with a disk each and one that they share; the second dies at the end."""
    torch.set_num_threads(1)
    folder = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
    own = folder / f"host-{rank}"
    saved(own, 1)
    shared = saved(folder / "shared", 1, 2)
    listed = names(folder / "shared")
    # The newest on one host alone, as if another died before it wrote; a lost disk on a third.
    checkpoints = Checkpoints(own, every_host=True)
    checkpoints.begin(TRAINED, checkpoints.latest(TRAINED))
    checkpoints.save(state(2))
    if rank == 0:
        shutil.rmtree(own / "checkpoint-00000001-00000002")
    if rank == 2:
        shutil.rmtree(own)
    found = weight_of(Checkpoints(own).latest(TRAINED))
    said = ""
    shared.folder = folder / ("file" if rank == 1 else "shared")
    (folder / "file").touch()
    try:
        shared.save(state(3))
    except RunError as error:
        said = str(error)
    os.environ["LOCAL_RANK"] = str(rank)  # one host: one process writes
    saved(folder / "one-host", 1)
    about = {"listed": listed, "found": found, "said": said}
    (folder / f"{rank}.json").write_text(json.dumps(about))
    late = saved(folder / "late")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError):  # nobody goes on without the one that died
        late.save(state(1))
    os._exit(0)


def test_several_hosts(tmp_path):
    group = [server().Process(target=process, args=(rank, str(tmp_path))) for rank in range(3)]
    for one in group:
        one.start()
    for one in group:
        one.join(120)
    assert [one.exitcode for one in group] == [0, -signal.SIGKILL, 0]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    steps = [f"checkpoint-00000001-0000000{step}" for step in (1, 2)]
    copies = [f"{step}{rank}" for step in steps for rank in ("", "-00001", "-00002")]
    for about in found:
        assert about["listed"] == copies
        assert about["found"] == 102.0  # by the one host that has it
        assert "file" in about["said"]
        assert "could not be written" in about["said"]
    assert names(tmp_path / "one-host") == ["checkpoint-00000001-00000001"]
