"""What `graphcl predict` was told: a run keeps it with the answer, for the service to follow."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from graphcl.errors import GraphError, RunError
from graphcl.runs import files as runs
from graphcl.runs.nodes import type_folder
from graphcl.runs.versions import ABOUT, VERSIONS, run_root

KEY = "how"  # in the summary of an answer


@dataclass(frozen=True)
class Choice:
    """How labels are predicted.

    Attributes:
        using: the plain rival that predicts; None is the library's own model.
        wanted: of two classes: the one that is looked for; None is the rarer.
        threshold: the probability from which a node is called wanted; None is where that is the
            more probable class.
        shares: how frequent classes are among all nodes; None is as among labelled ones.
        learn: from ``all`` labels, or those of ``train`` and validation nodes.
        labels: the file that labels were read from; None are those of the run.
        level: of a number: how often it is to be within its interval.
        seed: of the folds.
    """

    using: str | None = None
    wanted: str | None = None
    threshold: float | None = None
    shares: dict[str, float] | None = None
    learn: str = "all"
    labels: str | None = None
    level: float = 0.9
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, about: Any) -> "Choice":
        """Returns what `to_json` says.

        Raises:
            GraphError: something in it is not as that would say it.
        """
        if not isinstance(about, dict):
            raise GraphError("the kept answer does not say how it was made")
        known = {one.name: about[one.name] for one in fields(cls) if one.name in about}
        texts = [known.get(name) for name in ("using", "wanted", "labels")]
        numbers = [known.get(name, 0) for name in ("threshold", "level", "seed")]
        shares = known.get("shares")
        sound = (
            all(text is None or isinstance(text, str) for text in texts)
            and all(one is None or type(one) in (int, float) for one in numbers)
            and known.get("learn", "all") in ("all", "train")
            and (shares is None or isinstance(shares, dict))
            and all(type(one) in (int, float) for one in (shares or {}).values())
        )
        if not sound:
            raise GraphError("the kept answer does not say how it was made")
        return cls(**known)


def kept_choice(run: Path, node_type: str | None = None) -> Choice:
    """Returns how the answer was made that a run keeps; the defaults if it keeps none.

    A version that an update made has the choice of the version that it was made from, until
    `graphcl predict` is asked again.

    Args:
        run: the run, or the folder of one of its versions.
        node_type: of a graph with types: which.
    """
    root = run_root(run.absolute())
    folder = run.absolute()
    while True:
        about = runs.read_answers(type_folder(folder, node_type)).get("predict", {})
        if KEY in about:
            try:
                return Choice.from_json(about[KEY])
            except GraphError as error:
                raise RunError(
                    f"{runs.answer_file(type_folder(folder, node_type), 'predict')}: damaged "
                    f"({error}); graphcl predict writes it again"
                ) from None
        if folder == root:
            return Choice()
        number = runs.read_object(folder / ABOUT).get("from")
        before = root / VERSIONS / str(number)
        # An older version may have been removed; versions only follow earlier ones.
        earlier = isinstance(number, int) and 0 < number < int(folder.name)
        folder = before if earlier and before.is_dir() else root
