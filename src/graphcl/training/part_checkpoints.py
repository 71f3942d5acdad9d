"""Checkpoints of a training over parts: a copy on every host, and all of them of one step.

    FOLDER/checkpoint-00000001-00000040/part-00000/     the state, as `graphcl.training.checkpoints`
    FOLDER/checkpoint-00000001-00000040/part-00002/     writes it, by one process of each host
    FOLDER/checkpoint-00000001-00000040/complete.json   written when all copies are

They are written in two phases. First one process of each host writes its copy, and all wait for
each other. Then `complete.json` appears. A set without it is never read, so a process that dies at
any moment leaves the set before, or a complete one. FOLDER may be on a shared disk, or on one of
each host: any complete set that any process finds is as good as another, because all copies are of
the same step, and the state is the same in all processes. It is read by one process, which tells
the others.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from graphcl.distributed import Share, current_share, from_rank, max_over
from graphcl.errors import RunError
from graphcl.files.atomic import write_whole
from graphcl.store.header import part_name
from graphcl.training.checkpoints import (
    STATE,
    Checkpoints,
    Saved,
    StoppedError,
    parse_state,
    read_state,
    require_same,
    require_same_draws,
    state_about,
    state_tensors,
    write_state,
)
from graphcl.training.loop import TrainingState

COMPLETE = "complete.json"


class _Found(NamedTuple):
    """The newest complete set that a process can read: its name and content, empty without one."""

    name: str = ""
    content: bytes = b""
    damaged: bool = False


class PartCheckpoints(Checkpoints):
    """Saves a training over parts, as `Checkpoints` does; all processes take part in saving."""

    def __call__(self, state: TrainingState) -> None:
        """Saves where it is time to for any process; raises `StoppedError` where that is asked."""
        by_time = 0 < self.every_seconds <= time.monotonic() - self._last_time
        asked = max_over(torch.tensor([int(self.stop()), int(by_time)]), self._share)
        stopping, due = (bool(one) for one in asked)
        by_epoch = 0 < self.every_epochs <= state.epoch - self._last_epoch
        if stopping or due or by_epoch or state.epoch == state.epochs:
            self.save(state)
        if stopping:
            raise StoppedError(f"epoch {state.epoch + 1}, step {state.step}")

    def begin(self, trained: Mapping[str, Any], saved: Saved | None = None) -> None:
        """Says what is trained and from where; sets that are not of use any more are removed."""
        super().begin(trained, saved)
        for path in self._paths() if _writes() else ():
            if saved is None or path.name > self._good:
                _remove(path)
        self._agree("")  # nobody writes before all have removed

    def save(self, state: TrainingState) -> None:
        """Writes a set of checkpoints in two phases, and removes those beyond the last `keep`.

        Raises:
            RunError: in all processes, if one of them cannot write; earlier sets are as they were.
        """
        self._last_time, self._last_epoch = time.monotonic(), state.epoch
        name = f"checkpoint-{state.epoch:08d}-{state.step:08d}"
        if name == self._good:
            return
        path, problem = self.folder / name, ""
        try:
            if _writes():
                copy = path / part_name(self._share.rank)
                write_state(copy, state_tensors(state), state_about(state, self.trained))
        except OSError as error:
            problem = f"{path}: could not be written ({error.strerror or error})"
        self._agree(problem)  # phase one ends: all copies are written
        try:
            if _writes():
                about = {"format": 1, "processes": self._share.world, "step": name}
                write_whole(path / COMPLETE, json.dumps(about, indent=1) + "\n")
        except OSError as error:
            problem = f"{path}: could not be completed ({error.strerror or error})"
        self._agree(problem)
        self._good = name
        if _writes():
            # Only earlier ones: another process may be at the next set already.
            earlier = [one for one in self._paths() if one.name < name]
            complete = [one for one in earlier if _is_complete(one)]
            for old in set(earlier) - set(complete[len(complete) + 1 - self.keep :]):
                _remove(old)

    def latest(self, trained: Mapping[str, Any]) -> Saved | None:
        """Returns the newest complete set of which any process has a copy, or None.

        Raises:
            RunError: in all processes: there are sets and all copies are damaged, or they are of
                another training, or of a version that draws differently.
        """
        whole = [path for path in self._paths() if (path / STATE).exists()]
        if int(max_over(torch.tensor([len(whole)]), current_share())):
            raise RunError(
                f"{self.folder}: holds checkpoints of a training on a whole graph; go on with that "
                "graph, or choose another place"
            )
        found = self._newest_of_all()
        if not found.name:
            if found.damaged:
                raise RunError(f"{self.folder}: every checkpoint is damaged; begin anew")
            return None
        saved = parse_state(found.content)
        path = self.folder / found.name
        require_same(saved.about["trained"], trained, path)
        require_same_draws(saved.about, path)
        self._good = found.name
        return saved

    def begun(self, keys: Collection[str]) -> dict[str, Any] | None:
        """Returns some keys of what the newest readable set is of; None if there is none."""
        found = self._newest_of_all()
        if not found.name:
            return None
        trained = parse_state(found.content).about["trained"]
        return {key: trained[key] for key in keys if key in trained}

    def clear(self) -> None:
        """Removes all sets, where this process has written them."""
        for path in self._paths() if _writes() else ():
            _remove(path)

    def _newest_of_all(self) -> _Found:
        """Returns the newest complete set of any process, in all processes."""
        share = current_share()
        own = self._newest_copy(share)
        about = json.dumps([own.name, own.damaged]).encode()
        every = [json.loads(from_rank(about, share, rank=rank)) for rank in range(share.world)]
        names = [name for name, _ in every]
        source = names.index(max(names))  # names are in the order of steps
        content = from_rank(own.content, share, rank=source)
        return _Found(names[source], content, any(damaged for _, damaged in every))

    def _newest_copy(self, share: Share) -> _Found:
        damaged = False
        for path in reversed(self._paths()):
            if not _is_complete(path):
                continue  # phase one did not end
            own = path / part_name(share.rank)
            copies = sorted(path.glob("part-*"), key=lambda copy: (copy != own, copy.name))
            for copy in copies:
                try:
                    return _Found(path.name, read_state(copy), damaged)
                except RunError as error:
                    damaged = True
                    print(f"{error}; trying another copy", file=sys.stderr, flush=True)
        return _Found(damaged=damaged)

    def _agree(self, problem: str) -> None:
        """Raises the first problem of any process in all of them; all wait for each other."""
        for rank in range(self._share.world):
            said = from_rank(problem.encode(), self._share, rank=rank).decode()
            if said:
                names = [one.name for one in self._paths() if _is_complete(one)]
                raise RunError(said + (f"; {names[-1]} is intact" if names else ""))


def _writes() -> bool:
    """Says whether this process writes the copy of its host."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _is_complete(path: Path) -> bool:
    return (path / COMPLETE).is_file()


def _remove(path: Path) -> None:
    """Removes a set, which others may be doing too; it is incomplete from the first moment."""
    try:
        (path / COMPLETE).unlink(missing_ok=True)
    except OSError:
        return
    shutil.rmtree(path, ignore_errors=True)
