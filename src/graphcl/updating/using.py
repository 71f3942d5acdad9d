"""Which version of a run is in use: the way back, and the embeddings that it has."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from graphcl.errors import RunError
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.runs.files import read_object

Rows = npt.NDArray[np.float32]


def rollback(run: str | Path, version: int | None = None) -> int:
    """Makes an earlier version of a run the current one; returns its number.

    Args:
        run: the run.
        version: its number; None is the one that the current was made from. A later one can be
            chosen too.

    Raises:
        RunError: there is no such version.
    """
    root = versions.run_root(Path(run))
    runs.read_config(root)
    with versions.changing(root):
        known = versions.numbers(root)
        # A file that names another version is damaged; it is written anew.
        if len(known) == 1 and not (root / versions.VERSIONS / versions.CURRENT).is_file():
            raise RunError(f"{root}: has no versions but the training")
        number = _before(root, known) if version is None else version
        versions.use_version(root, number)
    return number


def read_embeddings(run: str | Path) -> Rows:
    """Returns the embeddings of a run, those of the version in use, ``[nodes, dim]``.

    They are mapped from files and read-only. Rows are in the order of the version's graph: nodes
    that stayed, then new ones.

    Args:
        run: the run, or the folder of one of its versions.

    Raises:
        RunError: there is no such run, or it keeps no embeddings.
    """
    folder = versions.current_run(Path(run))
    runs.read_config(folder, baselines=True)
    found: Rows = runs.read_embeddings(folder)
    return found


def _before(root: Path, known: list[int]) -> int:
    """Returns the version that the current one was made from, or the newest older than it."""
    current = versions.current_number(root)
    if current == 0:
        raise RunError(f"{root}: is at version 0, as it was trained; there is no earlier one")
    made_from = read_object(versions.current_run(root) / versions.ABOUT).get("from")
    older = [one for one in known if one < current]
    return made_from if made_from in older else older[-1]
