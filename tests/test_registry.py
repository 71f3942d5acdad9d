"""Names of parts: ours, registered ones, those of installed packages; and what is refused."""

import sys
from dataclasses import dataclass

import pytest

from graphcl.errors import ParameterError
from graphcl.registry import ENCODERS, LOSSES, PERTURBATIONS, Registry


@pytest.fixture
def parts():
    return Registry("part", "graphcl.parts_of_a_test", {"ours": "graphcl.views:Drop"})


class Own:
    pass


@dataclass(frozen=True)
class Rated:
    rate: float = 0.5


def test_our_names():
    assert list(ENCODERS) == ["mean", "residual", "gcn", "sage", "gat", "gin"]
    assert (list(PERTURBATIONS), list(LOSSES)) == (["drop"], ["nt-xent"])
    for known in (ENCODERS, PERTURBATIONS, LOSSES):
        assert all(callable(known.get(name)) for name in known)


def test_a_registered_name_is_known_and_kept(parts):
    parts.register("mine", Own)
    parts.register("mine", Own)  # the same again is no conflict
    assert list(parts) == ["ours", "mine"]
    assert len(parts) == 2
    assert parts.get("mine") is Own
    assert parts.name_of(Own) == "mine"
    for taken in ("ours", "mine"):
        with pytest.raises(ParameterError, match="name must be one that is not taken"):
            parts.register(taken, Rated)
    for bad in ("", "a:b", "two\nlines"):
        with pytest.raises(ParameterError, match="name must be plain text without a colon"):
            parts.register(bad, Rated)


def test_unknown_names_are_refused_with_the_nearest(parts):
    with pytest.raises(ParameterError, match="unknown part 'our'; known: ours; did you mean"):
        parts.get("our")


def test_the_place_of_a_class_is_a_name_that_nobody_imports(parts, tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    parts.check("trap:Own")
    with pytest.raises(ParameterError, match="'trap:Own' is not registered; pass the object"):
        parts.get("trap:Own")
    assert "trap" not in sys.modules


def test_objects_are_named_by_their_place_and_their_fields(parts):
    assert parts.name_of(Own) == f"{__name__}:Own"
    assert parts.name_of(Own()) == f"{__name__}:Own"
    assert parts.name_of(Rated(0.1)) == f"{__name__}:Rated(rate=0.1)"
    assert parts.name_of("ours") == "ours"


def test_an_object_must_be_of_the_class_that_is_named(parts):
    assert parts.resolve("__main__:Rated(rate=0.5)", Rated()) == Rated()
    assert parts.resolve("ours", None) is parts.get("ours")
    with pytest.raises(ParameterError, match="the object must be of a:Own, as the recipe says"):
        parts.resolve("a:Own", Rated())


def test_entry_points_of_installed_packages_bring_names(parts, tmp_path, monkeypatch):
    (tmp_path / "brought_by_a_test.py").write_text("class Brought:\n    pass\n")
    about = tmp_path / "brought-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    points = "[graphcl.parts_of_a_test]\nbrought = brought_by_a_test:Brought\n"
    (about / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    assert list(parts) == ["ours", "brought"]
    assert "brought_by_a_test" not in sys.modules  # a name costs no import
    assert parts.get("brought").__name__ == "Brought"
