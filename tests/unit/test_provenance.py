"""Executors that import or read something else than the job: who is named, with what, and who defines what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.code.first_seen import FirstSeen, shown
from isoscale.runtime.code.hashes import Hashes
from isoscale.runtime.coordinator.provenance import Provenance
from isoscale.runtime.membership.instructions import Emit, Fail, Kill
from isoscale.runtime.membership.state_machine import Membership
from isoscale.runtime.membership.target import Goal
from isoscale.runtime.training.uses import Uses, data_facts
from isoscale.types import JobSpec, Settings


def uses(versions: dict[str, str] | None = None, data: dict[str, str] | None = None, **modules: str) -> m.Uses:
    """Modules whose names begin with `my` are the user's."""
    paths = {name: f"/p/{name}.py" for name in modules if name.startswith("my")}
    return m.Uses(modules=modules, paths=paths, versions=versions or {}, data=data or {})


@pytest.fixture
def provenance(tmp_path: Path) -> Provenance:
    (tmp_path / "code").mkdir()
    return Provenance(str(tmp_path), "elastic", anew=True)


def everybody(executor: int) -> bool:
    return True


def test_differences_are_named_data_first_then_modules_then_packages() -> None:
    seen = FirstSeen()
    assert seen.learn(
        uses({"python": "3.11.7", "numpy": "2.0"}, {"loader 1": "64 samples"}, mynet="a", numpy="a", os="a")
    )
    other = uses(
        {"python": "3.12.1", "numpy": "2.1"}, {"loader 1": "65 samples"}, mynet="b", numpy="b", os="b", new="x"
    )
    assert seen.differences(other) == [
        "loader 1 has 65 samples, the job's has 64 samples",
        "module mynet (/p/mynet.py)",
        "Python 3.12.1, the job has 3.11.7",
        "numpy 2.1, the job has 2.0",
        "os (1 file differs)",
    ]
    assert seen.differences(other, libraries=False) == seen.differences(other)[:2]
    assert seen.differences(uses(new="x", data={"loader 2": "1 samples"})) == []
    assert FirstSeen.from_json(seen.to_json()) == seen


def test_a_module_of_the_users_that_hides_a_library_is_named() -> None:
    seen = FirstSeen()
    seen.learn(m.Uses(modules={"torch": "a"}))
    assert seen.differences(m.Uses(modules={"torch": "b"}, paths={"torch": "/p/torch.py"})) == [
        "module torch (/p/torch.py)"
    ]


def test_a_long_list_is_cut_with_a_count() -> None:
    assert shown(["a"]) == "a"
    assert shown(list("abcdef")) == "a; b; c; d; and 2 more"


def test_the_first_executors_define_what_is_right_and_a_successor_knows_it(
    provenance: Provenance, tmp_path: Path
) -> None:
    assert provenance.compare(0, uses(mynet="a"), trains=True, known=everybody) is None
    error = provenance.compare(1, uses(mynet="b"), trains=True, known=everybody)
    assert error is not None
    assert "module mynet (/p/mynet.py)" in str(error)
    assert provenance.objection(1) is error
    later = Provenance(str(tmp_path), "elastic", anew=False)
    assert later.compare(2, uses(mynet="b"), trains=True, known=everybody) is not None
    assert (
        Provenance(str(tmp_path), "elastic", anew=True).compare(2, uses(mynet="b"), trains=True, known=everybody)
        is None
    )


def test_what_a_newcomer_brings_does_not_count_before_it_trains(provenance: Provenance) -> None:
    provenance.compare(0, uses(mynet="a"), trains=True, known=everybody)
    assert provenance.compare(1, uses(mynet="a", mylate="b"), trains=False, known=everybody) is None
    assert provenance.compare(0, uses(mylate="c"), trains=True, known=everybody) is None
    error = provenance.joined(1)
    assert error is not None
    assert "module mylate" in str(error)
    assert provenance.joined(1) is None


def test_at_level_off_libraries_may_differ_and_isoscale_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    lax = Provenance(str(tmp_path), "off", anew=True)
    lax.compare(0, uses({"numpy": "1"}, numpy="a", mynet="a"), trains=True, known=everybody)
    assert lax.versions == {}
    assert lax.compare(1, uses({"numpy": "2"}, numpy="b"), trains=True, known=everybody) is None
    assert lax.compare(1, uses(mynet="b"), trains=True, known=everybody) is not None
    strict = Provenance(str(tmp_path), "elastic", anew=True)
    strict.compare(0, m.Uses(modules={"isoscale.types": "a", "isoscales": "a"}), trains=True, known=everybody)
    strict.begin_again()
    assert strict.compare(1, m.Uses(modules={"isoscale.types": "b"}), trains=True, known=everybody) is None
    assert strict.compare(1, m.Uses(modules={"isoscales": "b"}), trains=True, known=everybody) is not None


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for text in ("", "[]", "{}", '{"modules": 1, "versions": {}, "data": {}}'):
        (tmp_path / "code" / "imports.json").write_text(text)
        found = Provenance(str(tmp_path), "elastic", anew=False)
        assert found.versions == {}
        assert "imports.json is damaged" in found.warning
    (tmp_path / "code" / "imports.json").unlink()
    assert Provenance(str(tmp_path), "elastic", anew=False).warning == ""


# ---- what becomes of it ----


def membership(**settings: Any) -> Membership:
    spec = JobSpec(workers=4)
    return Membership(spec, Settings(**settings), Goal(DeviceSet.parse("cpu*1")), lambda mine, theirs: ())


def hello(executor: int) -> m.Hello:
    return m.Hello(executor=executor, pid=executor + 100, kind="cpu", fingerprint="f", kernels={}, factors={})


def training() -> Membership:
    """On executor 0; executor 1 has been asked for."""
    one = membership()
    one.begin()
    one.on_hello(hello(0))
    one.on_sealed(1, 1)
    one.on_request(DeviceSet.parse("cpu*2"))
    return one


def refusal() -> Any:
    return Provenance("/nowhere", "elastic", anew=True)._refusal(1, ["module mynet (/p/mynet.py)"])


def test_a_newcomer_with_other_code_is_refused_and_training_goes_on() -> None:
    job = training()
    told = job.on_hello(hello(1), refusal())
    assert [one for one in told if isinstance(one, Kill)] == [Kill(1, str(refusal()))]
    (warning,) = [one for one in told if isinstance(one, Emit)]
    assert warning.fields["message"].startswith("scaling is given up: executor=1: runs other code, or reads other data")
    assert job.phase == "training"
    assert job.goal.target.total == 1


def test_one_that_imports_something_else_on_its_way_is_refused_too() -> None:
    job = training()
    job.on_hello(hello(1))
    assert any(isinstance(one, Kill) for one in job.on_unlike(1, refusal()))
    assert job.phase == "training"


def test_a_member_with_other_code_ends_the_job() -> None:
    job = training()
    (fail,) = job.on_unlike(0, refusal())
    assert isinstance(fail, Fail)
    assert fail.error.exit_code == 2
    assert job.on_unlike(0, refusal()) == []


def test_one_that_is_needed_to_begin_ends_the_job() -> None:
    job = membership()
    job.begin()
    (fail,) = job.on_hello(hello(0), refusal())
    assert isinstance(fail, Fail)
    assert job.on_unlike(7, refusal()) == []


# ---- what is told ----


class Fingered(list[int]):
    def __init__(self, *args: Any, fingerprint: Any = None) -> None:
        super().__init__(*args)
        self.fingerprint = fingerprint


class Huggy(list[int]):
    _fingerprint = "c0ffee"


class View:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return 2


class Endless:
    def __iter__(self) -> Any:
        return iter(())


def wants_arguments(what: str) -> str:
    return what


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        ([1, 2, 3], "3 samples"),
        (Fingered([1], fingerprint="ab"), "1 samples, fingerprint ab"),
        (Fingered([1], fingerprint=lambda: 12), "1 samples, fingerprint 12"),
        (Fingered([1], fingerprint=wants_arguments), "1 samples"),
        (Huggy([1, 2]), "2 samples, fingerprint c0ffee"),
        (View(View(Huggy())), "2 samples, fingerprint c0ffee"),
        (Endless(), ""),
    ],
)
def test_facts_of_data(data: Any, facts: str) -> None:
    assert data_facts(data) == facts


def test_everything_is_told_again_to_another_coordinator() -> None:
    sent: list[Any] = []
    told = Uses(None, sent.append)
    told.reads("loader 1", "3 samples")
    told.again()
    assert sent == [m.Uses(data={"loader 1": "3 samples"})] * 2


def test_hashes_are_computed_again_when_a_file_was_touched(tmp_path: Path) -> None:
    record, files = tmp_path / "hashes.json", [tmp_path / f"{i}.py" for i in range(30)]
    for path in files:
        path.write_text("1")
    first = Hashes(record)
    before = [first.sha256(str(path)) for path in files]
    first.save()
    files[0].write_text("2")
    second = Hashes(record)
    assert [second.sha256(str(path)) for path in files][1:] == before[1:]
    assert second.sha256(str(files[0])) != before[0]
    with pytest.raises(FileNotFoundError):
        second.sha256(str(tmp_path / "none"))
    record.write_text("[")
    assert Hashes(record).sha256(str(files[1])) == before[1]
