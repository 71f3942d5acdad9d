"""Parts of the method by name: encoders, perturbations and losses.

A recipe names its encoder, perturbation and loss. A name is shipped with this package, registered
by the caller, or an entry point of an installed package. Any other part is passed as an object.
A run then stores the location of its class (``package.module:Class``), but never imports it: to
load the run, pass the class again or register it.

Nothing here imports torch, so recipes are read, and their names checked, without it.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import walk_tb
from typing import Any, ParamSpec, TypeVar

from graphcl.errors import GraphCLError, ParameterError, PartError, check_known, demand, require

P = ParamSpec("P")
R = TypeVar("R")


class Registry(Collection[str]):
    """The known parts of one kind.

    Args:
        kind: its name in messages, such as ``encoder``.
        group: the group of entry points by which installed packages offer such parts.
        shipped: the parts of this package, as ``module:attribute`` by name; imported on first use.
    """

    def __init__(self, kind: str, group: str, shipped: dict[str, str]) -> None:
        self.kind, self.group = kind, group
        self._places, self._parts = dict(shipped), dict[str, Any]()

    def register(self, name: str, part: Any) -> None:
        """Makes `part` known as `name` in this process.

        Raises:
            ParameterError: the name is taken, or contains a colon like the location of a class.
        """
        plain = bool(name) and ":" not in name and name.isprintable()
        require(plain, f"register {self.kind}", "name", "plain text without a colon", name)
        taken = name in self._places or self._parts.get(name, part) is not part
        require(not taken, f"register {self.kind}", "name", "one that is not taken", name)
        self._parts[name] = part

    def __iter__(self) -> Iterator[str]:
        """Yields every known name: shipped, registered, then those of installed packages."""
        installed = [point.name for point in entry_points(group=self.group)]
        return iter(dict.fromkeys([*self._places, *self._parts, *installed]))

    def __contains__(self, name: object) -> bool:
        return name in self._places or name in list(self)  # entry points are slow to list

    def __len__(self) -> int:
        return sum(1 for _ in self)  # `list` would ask for the length

    def get(self, name: str) -> Any:
        """Returns the part called `name`.

        Raises:
            ParameterError: the name is unknown.
        """
        self.check(name)
        if name in self._parts:
            return self._parts[name]
        if name in self._places:
            return EntryPoint(name, self._places[name], self.group).load()
        installed = tuple(entry_points(group=self.group, name=name))
        demand(
            installed,
            f"{self.kind} {name!r} is not registered; pass the object as {self.kind}=, or "
            f"register it under a name",
            ParameterError,
        )
        return installed[0].load()

    def check(self, name: str) -> None:
        """Checks that a name is known, or is the location of a class.

        Raises:
            ParameterError: the name is unknown; the message lists the known names.
        """
        if ":" not in name:
            check_known(name, self, what=f"unknown {self.kind}", error=ParameterError)

    def name_of(self, part: Any) -> str:
        """Returns the name of a part in a recipe: as registered, or the location of its class.

        For an object of a dataclass, its fields follow: ``package.module:Class(field=value, …)``.
        So recipes with different values are different recipes.
        """
        if isinstance(part, str):
            return part
        for name, known in self._parts.items():
            if known is part:
                return name
        owner = part if hasattr(part, "__qualname__") else type(part)
        place = f"{owner.__module__}:{owner.__qualname__}"
        if owner is part or not is_dataclass(part):
            return place
        values = ", ".join(f"{one.name}={getattr(part, one.name)!r}" for one in fields(part))
        return f"{place}({values})"

    def resolve(self, name: str, part: Any) -> Any:
        """Returns `part` if one is given, else the part called `name`.

        Modules are not compared: a class of a script is in ``__main__`` when the script runs.

        Raises:
            ParameterError: the name is unknown, or `part` is not of the class that it names.
        """
        if part is None or isinstance(part, str):
            return self.get(name)
        wanted, given = (text.partition("(")[0] for text in (name, self.name_of(part)))
        same = wanted.rpartition(":")[2] == given.rpartition(":")[2]
        require(same, self.kind, "the object", f"of {wanted}, as the recipe says", given)
        return part


def answerable(kind: str, part: Any, work: Callable[P, R]) -> Callable[P, R]:
    """Returns `work`, which uses a part; what a part of the user's own raises is a `PartError`.

    It names the part, the exception, and the user's line. What a part of this package raises stays
    as it is: that is a bug.
    """
    owner = part.func if isinstance(part, partial) else part
    owner = owner if hasattr(owner, "__qualname__") else type(owner)
    module = getattr(owner, "__module__", None) or "__main__"  # none: made by exec
    package = module.partition(".")[0]
    if package == __name__.partition(".")[0]:
        return work

    def watched(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return work(*args, **keywords)
        except (GraphCLError, MemoryError):
            raise
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError":  # torch's: smaller blocks may help
                raise
            place = ""
            for frame, line in walk_tb(error.__traceback__):
                if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
                    place = f" ({Path(frame.f_code.co_filename).name}:{line})"
            said = " ".join(f"{type(error).__name__}: {error}".split())
            name = f"{module}.{owner.__qualname__}"
            raise PartError(f"your {kind} {name} failed: {said}{place}") from error

    return watched


ENCODERS = Registry(
    "encoder",
    "graphcl.encoders",
    {
        "mean": "graphcl.encoders.paper:MeanPoolingEncoder",
        "residual": "graphcl.encoders.paper:ResidualEncoder",
        "gcn": "graphcl.encoders.paper:gcn",
        "sage": "graphcl.encoders.paper:sage",
        "gat": "graphcl.encoders.paper:gat",
        "gin": "graphcl.encoders.paper:gin",
    },
)
PERTURBATIONS = Registry("perturbation", "graphcl.perturbations", {"drop": "graphcl.views:Drop"})
LOSSES = Registry("loss", "graphcl.losses", {"nt-xent": "graphcl.losses.nt_xent:NTXent"})
