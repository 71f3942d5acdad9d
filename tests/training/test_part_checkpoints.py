"""Sets of checkpoints: written in two phases, and read only if they are complete."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from graphcl.errors import RunError
from graphcl.files import atomic
from graphcl.training import part_checkpoints
from graphcl.training.checkpoints import StoppedError
from graphcl.training.loop import EpochMetrics, TrainingState
from graphcl.training.part_checkpoints import COMPLETE, PartCheckpoints

TRAINED = {"seed": 3, "graph": "a"}


def state(step, epoch=1):
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(100.0 * epoch + step)
    adam = torch.optim.Adam(layer.parameters())
    history = [EpochMetrics(1, 2.0, 0.1, None, 1.0)]
    return TrainingState(layer, adam, 100, 900, epoch=epoch, step=step, history=history)


def saved(folder, *steps, **options):
    checkpoints = PartCheckpoints(folder, **options)
    checkpoints.begin(TRAINED)
    for step in steps:
        checkpoints.save(state(step))
    return checkpoints


def weight_of(found):
    fresh = state(0)
    found.restore(fresh)
    return float(fresh.encoder.weight[0, 0].detach())


def test_the_newest_complete_set_is_read(tmp_path):
    saved(tmp_path, 1, 2, 3)
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == ["checkpoint-00000001-00000002", "checkpoint-00000001-00000003"]
    found = PartCheckpoints(tmp_path).latest(TRAINED)
    assert (found.about["epoch"], found.about["step"], weight_of(found)) == (1, 3, 103.0)
    assert PartCheckpoints(tmp_path).begun(["seed"]) == {"seed": 3}
    assert PartCheckpoints(tmp_path / "none").latest(TRAINED) is None
    assert PartCheckpoints(tmp_path / "none").begun(["seed"]) is None


def test_a_set_without_its_mark_is_never_used(tmp_path):
    saved(tmp_path, 1, 2)
    (tmp_path / "checkpoint-00000001-00000002" / COMPLETE).unlink()
    again = PartCheckpoints(tmp_path)
    found = again.latest(TRAINED)
    assert weight_of(found) == 101.0
    again.begin(TRAINED, found)
    again.save(state(2))  # over what phase one has left
    assert weight_of(PartCheckpoints(tmp_path).latest(TRAINED)) == 102.0


def test_any_copy_will_do_and_a_damaged_one_is_left(tmp_path, capsys):
    saved(tmp_path, 1, 2)
    newest = tmp_path / "checkpoint-00000001-00000002"
    (newest / "part-00000").rename(newest / "part-00005")  # ranks were given out anew
    assert weight_of(PartCheckpoints(tmp_path).latest(TRAINED)) == 102.0
    file = newest / "part-00005" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert weight_of(PartCheckpoints(tmp_path).latest(TRAINED)) == 101.0
    assert "part-00005: damaged or truncated; trying another copy" in capsys.readouterr().err
    (tmp_path / "checkpoint-00000001-00000001/part-00000/checkpoint.json").unlink()
    with pytest.raises(RunError, match="every checkpoint is damaged"):
        PartCheckpoints(tmp_path).latest(TRAINED)


def test_a_set_of_another_build_is_refused(tmp_path):
    saved(tmp_path, 1)
    with pytest.raises(RunError, match="is of another training \\(graph 'a', now 'b'\\)"):
        PartCheckpoints(tmp_path).latest(TRAINED | {"graph": "b"})


def test_a_full_disk_leaves_the_set_before(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "sync", full)
    with pytest.raises(RunError, match=r"No space left.*checkpoint-00000001-00000001 is intact"):
        checkpoints.save(state(2))
    assert weight_of(PartCheckpoints(tmp_path).latest(TRAINED)) == 101.0


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
    PartCheckpoints(tmp_path).begin(TRAINED)  # anew
    assert list(tmp_path.iterdir()) == []


def process(rank, folder):
    """One of three hosts, with a disk each and one that they share; the second dies at the end."""
    torch.set_num_threads(1)
    folder = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
    own = folder / f"host-{rank}"
    saved(own, 1)
    shared = saved(folder / "shared", 1, 2)
    listed = sorted(one.name for one in (folder / "shared").glob("*/*"))
    # A mark on one host alone, as if the others died before theirs; a lost disk on another.
    checkpoints = PartCheckpoints(own)
    checkpoints.begin(TRAINED, checkpoints.latest(TRAINED))
    checkpoints.save(state(2))
    newest = own / "checkpoint-00000001-00000002"
    if rank != 1:
        (newest / COMPLETE).unlink()
    if rank == 2:
        for file in newest.glob("*/*"):
            file.unlink()
    found = weight_of(PartCheckpoints(own).latest(TRAINED))
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
    with pytest.raises(RuntimeError):  # phase one does not end without the one that died
        late.save(state(1))
    assert not list((folder / "late").glob(f"*/{COMPLETE}"))
    os._exit(0)


def test_several_hosts(tmp_path):
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.training.test_part_checkpoints"])
    group = [server.Process(target=process, args=(rank, str(tmp_path))) for rank in range(3)]
    for one in group:
        one.start()
    for one in group:
        one.join(120)
    assert [one.exitcode for one in group] == [0, -signal.SIGKILL, 0]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    copies = [COMPLETE, "part-00000", "part-00001", "part-00002"]
    for about in found:
        assert sorted(set(about["listed"])) == copies
        assert about["found"] == 102.0  # by the one host that has it complete
        assert "file" in about["said"]
        assert "could not be written" in about["said"]
    assert part_checkpoints.COMPLETE in copies
    assert [path.name for path in (tmp_path / "one-host").glob("*/part-*")] == ["part-00000"]
