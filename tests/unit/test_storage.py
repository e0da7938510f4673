"""A run's storage: which objects count, and what happens when they are half there, or when two want the same."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoscale.errors import CheckpointError, UserError
from isoscale.runtime.checkpoint.files import Identity, Written
from isoscale.runtime.checkpoint.manifest import Manifest
from isoscale.runtime.checkpoint.stored import StoredCheckpoints, fetch, hand_over
from isoscale.runtime.coordinator.mirror import Mirror
from isoscale.runtime.executor.depot import Depot
from isoscale.runtime.storage import names, pieces
from isoscale.runtime.storage.client import DirectStorage, check_conditional, open_storage
from isoscale.runtime.storage.counting import Terms, View, next_term, pieces_of, spare, terms_in, view
from isoscale.runtime.storage.courier import CourierStorage
from isoscale.runtime.storage.ledger import (
    begin_run,
    claim_term,
    find_address,
    is_superseded,
    look,
    newest_result,
    newest_terms,
)
from isoscale.runtime.storage.objects import LocalObjects, RemoteObjects, open_objects
from isoscale.runtime.storage.pieces import GrowingFile, joined
from isoscale.runtime.storage.private import run_directory, scratch_directory
from isoscale.runtime.storage.records import Address, Base, Claim, Damaged, Entry, Piece, Result, read, written
from isoscale.runtime.storage.restoring import restore
from isoscale.types import JobSpec

IDENTITY = Identity.of(JobSpec(workers=2, script="none.py"))


def entry(step: int, name: str = "a") -> Entry:
    return Entry(step=step, object=f"data/step-{step:08d}-{name}.pt", size=3, sha256="0" * 64, manifest="{}")


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        pytest.importorskip("fsspec")
        return f"memory://{tmp_path.name}"
    return f"file://{tmp_path}/store"


@pytest.fixture
def storage(url: str) -> DirectStorage:
    return open_storage(url)


def never(message: str) -> None:
    raise AssertionError(message)


# ---- deciding ----


def test_a_term_counts_when_it_has_said_what_it_goes_on_with() -> None:
    keys = [names.claim(1), names.base(1), names.claim(2), names.base(2), names.claim(3), "terms/x/claim.json", "a"]
    assert terms_in(keys) == Terms(claimed=3, based=2)
    assert next_term(Terms(claimed=3, based=2)) == 4
    assert next_term(Terms()) == 1


def test_what_counts_is_the_base_and_what_its_own_term_adds() -> None:
    base = Base(term=2, entries=(entry(20), entry(10)), events=(Piece(object="terms/00000001/e", size=5),))
    own = [entry(30), entry(20, "again")]
    found = view(base, own, (Piece(object="terms/00000002/e", size=7),))
    assert found.entries == (entry(30), entry(20, "again"), entry(10))
    assert [piece.size for piece in found.events] == [5, 7]
    assert found.as_base(3) == Base(term=3, entries=found.entries, events=found.events)


def test_events_after_a_missing_piece_do_not_count() -> None:
    keys = {names.piece("terms/00000001/events", number, ".jsonl"): 10 + number for number in (0, 1, 3)}
    assert [piece.size for piece in pieces_of(keys, 1)] == [10, 11]
    assert pieces_of(keys, 2) == ()


@given(st.sets(st.integers(1, 50), min_size=1), st.integers(1, 5), st.data())
def test_what_is_kept_is_the_newest_and_what_was_just_published(
    steps: set[int], keep: int, data: st.DataObject
) -> None:
    published = data.draw(st.sampled_from(sorted(steps)))
    gone = {one.step for one in spare([entry(step) for step in steps], keep, published)}
    left = steps - gone
    assert published in left
    assert set(sorted(steps)[-keep:]) <= left
    assert len(left) <= keep + 1


@pytest.mark.parametrize("key", ["/a", "../a", "a/../b", ".hidden", "a//b", "a/", "", "a\nb", "a" * 900, "s3://b"])
def test_names_that_could_be_paths_elsewhere_are_refused(key: str) -> None:
    assert not names.is_name(key)
    with pytest.raises(ValueError, match="no object"):
        Entry(step=1, object=key, size=1, sha256="", manifest="")


@given(st.data())
def test_a_record_with_any_byte_changed_or_missing_is_damaged(data: st.DataObject) -> None:
    whole = written(Base(term=7, entries=(entry(3),), events=(Piece(object="a", size=1),)))
    assert read(whole, Base).entries == (entry(3),)
    at = data.draw(st.integers(0, len(whole) - 3))
    torn = whole[:at]
    with pytest.raises(Damaged):
        read(torn, Base)
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    with contextlib.suppress(Damaged):
        assert read(changed, Base) == read(whole, Base)  # space between words, or the case of a digit's escape


def test_a_record_of_another_sort_is_damaged() -> None:
    with pytest.raises(Damaged):
        read(written(Claim(term=1, nonce="x")), Base)
    with pytest.raises(Damaged):
        read(b"[]", Base)


# ---- objects ----


def test_objects_are_written_listed_read_and_removed(storage: DirectStorage, tmp_path: Path) -> None:
    storage.write("a/b.json", b"one")
    storage.write("a/b.json", b"three")
    storage.write("a/c/d", b"")
    storage.write("other", b"x")
    assert storage.list("a/") == {"a/b.json": 5, "a/c/d": 0}
    assert storage.list("nothing/") == {}
    assert (storage.read("a/b.json"), storage.read("a/b.json", 2), storage.size("a/b.json")) == (b"three", b"th", 5)
    assert storage.sha256("a/b.json") == hashlib.sha256(b"three").hexdigest()
    file = tmp_path / "file"
    file.write_bytes(b"data")
    storage.upload("data/x", file)
    storage.download("data/x", tmp_path / "copy", 4, hashlib.sha256(b"data").hexdigest())
    assert (tmp_path / "copy").read_bytes() == b"data"
    storage.remove("a/b.json")
    storage.remove("a/b.json")
    with pytest.raises(FileNotFoundError):
        storage.read("a/b.json")


def test_of_two_who_create_an_object_one_succeeds(storage: DirectStorage) -> None:
    assert storage.create("claim", b"mine")
    assert not storage.create("claim", b"yours")
    assert storage.read("claim") == b"mine"
    check_conditional(storage, "x")
    assert storage.list("") in ({"claim": 4}, {})


def test_of_many_processes_one_gets_the_term(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    program = (
        "import sys; from isoscale.runtime.storage.client import open_storage\n"
        "from isoscale.runtime.storage.ledger import claim_term\n"
        "storage = open_storage(sys.argv[1]); sys.stdin.readline()\n"
        "try: print(claim_term(storage, sys.argv[1]))\n"
        "except ValueError as error: print('refused' if 'another coordinator' in str(error) else error)\n"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    terms = [int(one) for one in answers if one != "refused"]
    # Those who came later claim the next one; nobody has another's.
    assert len(set(terms)) == len(terms) >= 1, answers
    assert sorted(terms) == list(range(1, len(terms) + 1)), answers


def test_of_many_threads_one_creates(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda n: storage.create("claim", f"{n}".encode()), range(64)))
    assert made.count(True) == 1
    assert [name.name for name in tmp_path.iterdir()] == ["claim"], "something was left over"


class Flaky:
    """A storage whose next calls fail; with `lost` what they do is done, and only the answer does not come."""

    def __init__(
        self, objects: Any, failures: int, *, lost: bool = False, error: Callable[[], OSError] = OSError
    ) -> None:
        self._objects, self._failures, self._lost, self._error = objects, failures, lost, error

    def fail(self, failures: int) -> None:
        self._failures, self._error = failures, lambda: OSError("away")

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if self._failures > 0:
                self._failures -= 1
                if self._lost:
                    getattr(self._objects, name)(*arguments)
                raise self._error()
            return getattr(self._objects, name)(*arguments)

        return call


def test_what_fails_is_tried_again_and_what_cannot_work_is_not(tmp_path: Path) -> None:
    slept: list[float] = []
    storage = DirectStorage(Flaky(LocalObjects(tmp_path), 3), slept.append)
    storage.write("a", b"1")
    assert len(slept) == 3
    assert slept == sorted(slept)
    with pytest.raises(OSError, match=r"^$"):
        DirectStorage(Flaky(LocalObjects(tmp_path), 100), lambda s: None).write("a", b"2")
    for error in (FileNotFoundError, PermissionError):
        slept.clear()
        with pytest.raises(error):
            DirectStorage(Flaky(LocalObjects(tmp_path), 1, error=error), slept.append).read("a")
        assert slept == []


def test_a_claim_whose_answer_was_lost_is_still_the_claimants(tmp_path: Path) -> None:
    storage = DirectStorage(Flaky(LocalObjects(tmp_path), 1, lost=True), lambda s: None)
    assert storage.create("claim", b"mine")
    assert not storage.create("claim", b"yours")


class Forgetful:
    """Lets everybody create everything, as servers do that do not know the condition."""

    def __init__(self, objects: LocalObjects) -> None:
        self._objects = objects

    def create(self, key: str, data: bytes) -> None:
        self._objects.write(key, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


def test_a_storage_that_lets_two_create_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a shared lock"):
        check_conditional(DirectStorage(Forgetful(LocalObjects(tmp_path))), "s3://x/y")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sftp://host/run", "needs a shared lock: sftp"),
        ("hdfs://host/run", "needs a shared lock: hdfs"),
        ("relative/path", "no absolute path"),
        ("file://host/run", "no absolute path"),
        ("s3://key:secret@bucket/run", "holds a secret"),
        ("gs://bucket/run", "needs gcsfs, which is not installed"),
        ("http://[", "no URL"),
    ],
)
def test_urls_that_cannot_be_used_say_why(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        open_objects(url)
    assert "secret@" not in str(raised.value)


def test_a_directory_needs_no_fsspec(tmp_path: Path) -> None:
    program = (
        "import sys; from isoscale.runtime.storage.client import open_storage\n"
        f"open_storage({str(tmp_path)!r}).write('a', b'1')\n"
        "import isoscale.cli.app, isoscale.runtime.coordinator.run, isoscale.runtime.executor.depot\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] in ('fsspec', 's3fs', 'aiohttp')]\n"
        "sys.modules['fsspec'] = None\n"
        "try: open_storage('s3://bucket/run')\n"
        "except ValueError as error: assert \"pip install 'isoscale[storage]'\" in str(error), error\n"
        "else: raise SystemExit('opened')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_download_that_is_not_as_it_was_written_leaves_no_file(storage: DirectStorage, tmp_path: Path) -> None:
    storage.write("data/x", b"torn")
    for size, sha256 in ((5, ""), (4, "0" * 64)):
        with pytest.raises(OSError, match="not as it was written"):
            storage.download("data/x", tmp_path / "file", size, sha256)
    assert not [one for one in tmp_path.iterdir() if "file" in one.name]


def test_a_courier_does_the_same_in_a_process_of_its_own(tmp_path: Path) -> None:
    courier = CourierStorage(f"file://{tmp_path}/store")
    try:
        courier.write("a", b"\0\xff\n")
        assert courier.read("a") == b"\0\xff\n"
        assert (courier.create("b", b"1"), courier.create("b", b"2")) == (True, False)
        with pytest.raises(FileNotFoundError):
            courier.read("c")
        (tmp_path / "file").write_bytes(b"data")
        courier.upload("data/x", tmp_path / "file")
        courier.download("data/x", tmp_path / "copy", 4, hashlib.sha256(b"data").hexdigest())
        assert courier.list("data/") == {"data/x": 4}
        assert courier.sha256("data/x") == hashlib.sha256(b"data").hexdigest()
        assert courier._process is not None
        courier._process.kill()  # another one takes its place
        assert courier.size("a") == 3
        courier.remove("a")
        with pytest.raises(FileNotFoundError):
            courier.size("a")
    finally:
        courier.close()
    refused = CourierStorage("sftp://host/x")
    with pytest.raises(OSError, match="shared lock"):
        refused.size("a")
    refused.close()


# ---- a file that grows ----


@given(st.lists(st.binary(max_size=30), max_size=30), st.integers(1, 60))
def test_a_growing_file_is_the_same_when_it_is_put_together(blocks: list[bytes], full: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "FULL_BYTES", full)
        folder = Path(name)
        storage = open_storage(f"{folder}/store")
        path = folder / "log"
        path.write_bytes(b"somebody else's\n")
        kept = GrowingFile(storage, path, "terms/00000001/events", ".jsonl", start=path.stat().st_size)
        whole = b""
        for block in blocks:
            with path.open("ab") as file:
                file.write(block)
            whole += block
            kept.keep()
        assert not kept.keep()
        found = pieces_of(storage.list("terms/"), 1)
        joined(storage, found, folder / "copy")
        assert (folder / "copy").read_bytes() == whole[: whole.rfind(b"\n") + 1]


def test_only_as_much_of_a_piece_counts_as_was_there(storage: DirectStorage, tmp_path: Path) -> None:
    storage.write("p", b"one\ntwo\n")
    joined(storage, (Piece(object="p", size=4),), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"one\n"
    with pytest.raises(OSError, match="instead of 99"):
        joined(storage, (Piece(object="p", size=99),), tmp_path / "copy")


# ---- terms ----


def begun(storage: DirectStorage, url: str) -> int:
    begin_run(storage, url, "token")
    term = claim_term(storage, url)
    storage.write(names.base(term), written(look(storage, never).as_base(term)))
    return term


def test_a_place_holds_one_run(storage: DirectStorage, url: str) -> None:
    assert begun(storage, url) == 1
    with pytest.raises(UserError, match="holds a run already"):
        begin_run(storage, url, "other")
    assert storage.read(names.TOKEN) == b"token"


def test_who_died_while_taking_a_place_takes_it_again(storage: DirectStorage, url: str) -> None:
    begin_run(storage, url, "token")
    storage.remove(names.TOKEN)
    assert begun(storage, url) == 1
    with pytest.raises(UserError, match="holds a run already"):
        begin_run(storage, url, "token")


def test_a_place_whose_mark_is_damaged_is_nobodys(storage: DirectStorage, url: str) -> None:
    storage.write(names.RUN, b"{")
    with pytest.raises(UserError, match="holds a run already"):
        begin_run(storage, url, "token")


def test_a_replaced_coordinator_writes_what_counts_for_nobody(storage: DirectStorage, url: str) -> None:
    first = begun(storage, url)
    storage.write(names.entry(first, 10), written(entry(10)))
    storage.write(names.piece(names.of_term(first, "events"), 0, ".jsonl"), b"{}\n")
    second = claim_term(storage, url)
    assert is_superseded(storage, first)
    assert not is_superseded(storage, second)
    base = look(storage, never)
    storage.write(names.base(second), written(base.as_base(second)))
    # It was only slow, and does not know: a checkpoint, more events, an address.
    storage.write(names.entry(first, 20), written(entry(20)))
    storage.write(names.piece(names.of_term(first, "events"), 0, ".jsonl"), b"{}\n{}\n")
    storage.write(names.of_term(first, names.ADDRESS), written(Address(url="ws://old:1", term=first)))
    storage.write(names.of_term(second, names.ADDRESS), written(Address(url="ws://new:1", term=second)))
    found = look(storage, never)
    assert [one.step for one in found.entries] == [10]
    assert [piece.size for piece in found.events] == [3]
    assert find_address(storage) == Address(url="ws://new:1", term=second)
    # Nor later, for whoever comes next.
    third = claim_term(storage, url)
    storage.write(names.base(third), written(found.as_base(third)))
    assert [one.step for one in look(storage, never).entries] == [10]


def test_nobody_is_at_an_address_that_a_killed_coordinator_left_behind(storage: DirectStorage, url: str) -> None:
    assert find_address(storage) is None
    first = begun(storage, url)
    address = Address(url="ws://killed:1", term=first)
    storage.write(names.of_term(first, names.ADDRESS), written(address))
    assert find_address(storage) == address
    second = claim_term(storage, url)
    assert find_address(storage) == address, "it only claimed"
    storage.write(names.base(second), written(look(storage, never).as_base(second)))
    storage.write(names.of_term(second, names.ADDRESS), written(Address(url="ws://new:1", term=second)))
    storage.remove(names.of_term(second, names.ADDRESS))  # it has ended
    assert find_address(storage) is None


def test_an_address_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    objects = Flaky(LocalObjects(tmp_path / "store"), 0)
    storage = DirectStorage(objects, lambda s: None)
    first = begun(storage, "x")
    (tmp_path / "run" / "code").mkdir(parents=True)
    warnings: list[str] = []

    async def coordinate() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("isoscale.runtime.coordinator.mirror.keep_code", lambda *told: None)
            mirror = Mirror(storage, "x", tmp_path / "run", first, View(first), 2)
        objects.fail(1000)
        await mirror.announce("ws://here:1", warnings.append, lambda: None)
        assert "tried again" in warnings[0]
        objects.fail(0)
        await mirror.call(mirror.keep_all)
        assert find_address(storage) == Address(url="ws://here:1", term=first)
        await mirror.close(ended=True)
        assert find_address(storage) is None

    asyncio.run(coordinate())


def test_one_who_claimed_and_died_before_it_said_anything_changes_nothing(storage: DirectStorage, url: str) -> None:
    first = begun(storage, url)
    storage.write(names.entry(first, 10), written(entry(10)))
    claim_term(storage, url)
    assert newest_terms(storage) == Terms(claimed=2, based=1)
    assert [one.step for one in look(storage, never).entries] == [10]
    assert claim_term(storage, url) == 3


def test_torn_records_are_skipped_with_a_warning(storage: DirectStorage, url: str) -> None:
    first = begun(storage, url)
    storage.write(names.entry(first, 10), written(entry(10)))
    storage.write(names.entry(first, 20), written(entry(20))[:50])
    second = claim_term(storage, url)
    storage.write(names.base(second), written(Base(term=second))[:40])
    warnings: list[str] = []
    assert [one.step for one in look(storage, warnings.append).entries] == [10]
    assert len(warnings) == 2
    assert all("is skipped" in one for one in warnings)


def test_the_end_of_a_job_is_the_newest_whole_result(storage: DirectStorage) -> None:
    assert newest_result(storage) is None
    made = Result(step=40, digest="d", stop_reason="", object="results/step-00000040-x.pt", size=1, sha256="")
    storage.write(names.result(40), written(made))
    storage.write(names.result(50), b"torn")
    storage.write(names.result(60, "abc"), b"an upload that nothing names")
    assert newest_result(storage) == made


# ---- checkpoints ----


def write_one(directory: Path, step: int, tag: str, contents: bytes) -> Written:
    directory.mkdir(exist_ok=True)
    sha256 = hashlib.sha256(contents).hexdigest()
    made = Written(step=step, tag=tag, size=len(contents), sha256=sha256, seconds=0.0)
    (directory / made.temporary_data).write_bytes(contents)
    manifest = Manifest(step=step, size=made.size, sha256=sha256, created=0.0, identity=IDENTITY)
    (directory / made.temporary_manifest).write_text(manifest.to_json())
    return made


def test_a_checkpoint_counts_when_the_coordinator_says_so(storage: DirectStorage, tmp_path: Path) -> None:
    made = write_one(tmp_path / "node", 10, "0-1", b"state")
    hand_over(storage, tmp_path / "node", made)
    assert list((tmp_path / "node").iterdir()) == []
    book = StoredCheckpoints(storage, 1, View(), keep=2)
    assert book.newest(never, hashed=True) is None
    book.publish(made)
    found = book.newest(never, hashed=True)
    assert found is not None
    reference, one = found
    assert (one.step, one.identity) == (10, IDENTITY)
    assert fetch(storage, reference, tmp_path / "other").read_bytes() == b"state"


def test_a_partial_upload_never_counts(storage: DirectStorage, tmp_path: Path) -> None:
    book = StoredCheckpoints(storage, 1, View(), keep=2)
    whole = write_one(tmp_path / "node", 10, "0-1", b"state")
    hand_over(storage, tmp_path / "node", whole)
    book.publish(whole)
    torn = write_one(tmp_path / "node", 20, "0-2", b"later state")
    hand_over(storage, tmp_path / "node", torn)
    (there,) = [key for key in storage.list("data/") if "00000020" in key and key.endswith(".pt")]
    storage.write(there, b"later")
    with pytest.raises(CheckpointError, match="5 bytes instead of 11"):
        book.publish(torn)
    storage.remove(there)
    with pytest.raises(CheckpointError, match="does not count"):
        book.publish(torn)
    with pytest.raises(CheckpointError, match="another one's"):
        book.publish(replace(torn, size=5))
    found = book.newest(never, hashed=True)
    assert found is not None
    assert found[1].step == 10


def test_a_checkpoint_that_was_damaged_is_skipped(storage: DirectStorage, tmp_path: Path) -> None:
    book = StoredCheckpoints(storage, 1, View(), keep=3)
    for step in (10, 20, 30):
        made = write_one(tmp_path / "node", step, "0-1", b"state%d" % step)
        hand_over(storage, tmp_path / "node", made)
        book.publish(made)
    data = {names.step_of_data(key): key for key in storage.list("data/") if key.endswith(".pt")}
    storage.write(data[30], b"STATE30")
    storage.remove(data[20])
    warnings: list[str] = []
    found = book.newest(warnings.append, hashed=True)
    assert found is not None
    assert found[1].step == 10
    assert "sha256" in warnings[0]
    assert "no data" in warnings[1]
    unread = book.newest(warnings.append, hashed=False)
    assert unread is not None
    with pytest.raises(CheckpointError, match="not as it was written"):
        fetch(storage, unread[0], tmp_path / "other")


def test_a_storage_that_is_away_is_no_reason_to_begin_again(tmp_path: Path) -> None:
    objects = Flaky(LocalObjects(tmp_path / "store"), 0)
    storage = DirectStorage(objects, lambda s: None)
    book = StoredCheckpoints(storage, 1, View(), keep=2)
    for step in (10, 20):
        made = write_one(tmp_path / "node", step, "0-1", b"state%d" % step)
        hand_over(storage, tmp_path / "node", made)
        book.publish(made)
    objects.fail(1000)
    warnings: list[str] = []
    found = book.newest(warnings.append, hashed=False)
    assert found is not None, "the job would begin from nothing"
    assert found[1].step == 20
    assert "unseen" in warnings[0]
    with pytest.raises(OSError, match="away"):
        book.newest(warnings.append, hashed=True)
    objects.fail(0)
    assert fetch(storage, found[0], tmp_path / "other").read_bytes() == b"state20"


class Killed(BaseException):
    """As kill -9 does, it leaves everything as it is."""


def killed(*told: object) -> None:
    raise Killed


def test_old_ones_go_inherited_or_not_and_so_do_broken_uploads(
    storage: DirectStorage, url: str, tmp_path: Path
) -> None:
    first = begun(storage, url)
    book = StoredCheckpoints(storage, first, View(first), keep=2)
    for step in (10, 20):
        made = write_one(tmp_path / "node", step, "0-1", b"state")
        hand_over(storage, tmp_path / "node", made)
        book.publish(made)
    storage.write(names.data(15, "0-9", ".pt"), b"broken off")
    if isinstance(storage._objects, LocalObjects):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("isoscale.runtime.storage.objects.os.fsync", killed)
            patch.setattr(Path, "unlink", lambda *told, **named: None)
            with pytest.raises(Killed):
                storage.upload(names.data(16, "0-9", ".pt"), Path(__file__))
    second = claim_term(storage, url)
    base = look(storage, never)
    storage.write(names.base(second), written(base.as_base(second)))
    book = StoredCheckpoints(storage, second, base, keep=2)
    for step in (30, 40):
        made = write_one(tmp_path / "node", step, "0-1", b"state")
        hand_over(storage, tmp_path / "node", made)
        book.publish(made)
    assert [one.step for one in look(storage, never).entries] == [40, 30]
    assert sorted(names.step_of_data(key) or 0 for key in storage.list("data/")) == [30, 30, 40, 40]
    if url.startswith("file:"):
        kept = [path.name for path in Path(url.removeprefix("file://"), "data").iterdir()]
        assert len(kept) == 4, f"an upload that was broken off takes its room: {kept}"
    book.publish(made)  # told again
    # One that was replaced, and does not know, removes nothing that its successor counts on.
    third = claim_term(storage, url)
    storage.write(names.base(third), written(look(storage, never).as_base(third)))
    for step in (50, 60):
        made = write_one(tmp_path / "node", step, "0-1", b"state")
        hand_over(storage, tmp_path / "node", made)
        book.publish(made)
    counted = StoredCheckpoints(storage, third, look(storage, never), keep=2)
    found = counted.newest(never, hashed=True)
    assert found is not None
    assert found[1].step == 40


def test_a_coordinator_is_looked_for_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the storage is away, the coordinator that an executor knows may be there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    storage = open_storage(f"file://{tmp_path}/store")
    term = begun(storage, "x")
    storage.write(names.of_term(term, names.ADDRESS), written(Address(url="ws://here:1", term=term)))
    depot = Depot(f"file://{tmp_path}/store")
    answers = threading.Event()

    def list_later(prefix: str) -> dict[str, int]:
        assert answers.wait(60)
        return storage.list(prefix)

    monkeypatch.setattr(depot, "_looks", SimpleNamespace(list=list_later, read=storage.read, close=lambda: None))
    begun_at = time.monotonic()
    assert depot.find_coordinator() is None
    assert depot.find_coordinator() is None
    assert time.monotonic() - begun_at < 30
    answers.set()
    assert depot.look_for_coordinator() == ("ws://here:1", term)
    assert depot.find_coordinator() == ("ws://here:1", term)
    depot.close()


# ---- a directory made again ----


def test_a_directory_is_made_again(storage: DirectStorage, url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to go on with"):
        restore(storage, url, tmp_path, never)
    term = begun(storage, url)
    job = {"spec": {"code": "c0de"}}
    storage.write(names.of_term(term, names.JOB), json.dumps(job).encode())
    storage.write(names.of_term(term, names.EXECUTORS), b"{}")
    storage.write(names.piece(names.of_term(term, "events"), 0, ".jsonl"), b'{"event": "a"}\n')
    storage.write(names.of_term(term, names.SUMMARY), b'{"of": 1}')
    second = claim_term(storage, url)
    storage.write(names.base(second), written(look(storage, never).as_base(second)))
    made = Result(step=40, digest="d", stop_reason="", object="results/x.pt", size=1, sha256="")
    storage.write(names.result(40), written(made))
    out = tmp_path / "again"
    out.mkdir()
    assert restore(storage, url, out, never) == "c0de"
    assert (out / "control" / "token").read_text() == "token"
    assert (out / "control" / "token").stat().st_mode & 0o077 == 0
    assert (out / "control" / "term").read_text().strip() == str(second)
    assert (out / "events.jsonl").read_bytes() == b'{"event": "a"}\n'
    assert json.loads((out / "control" / "result.json").read_text())["step"] == 40
    assert not (out / "summary.json").exists(), "of a term that is not the newest"


def test_private_directories_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = run_directory("s3://a/b")
    assert place.stat().st_mode & 0o777 == 0o700
    assert run_directory("s3://a/b") == place != run_directory("s3://a/c")
    mine = scratch_directory("s3://a/b")
    parts = mine.name.split("-")
    dead = mine.with_name(f"scratch-{parts[1]}-{parts[2]}-{int(parts[3]) + 1}")
    elsewhere = mine.with_name(f"scratch-{int(parts[1]) + 1}-1-1")
    dead.mkdir()
    elsewhere.mkdir()
    assert scratch_directory("s3://a/b") == mine
    assert (dead.exists(), elsewhere.exists()) == (False, True)
    place.chmod(0o755)
    with pytest.raises(PermissionError):
        run_directory("s3://a/b")


def test_tries_are_not_multiplied_by_those_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may wait for a timeout: a storage that does not answer would hold its caller for hours."""
    pytest.importorskip("s3fs")
    tried: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()
                    tried.append(None)

        threading.Thread(target=hang_up, daemon=True).start()
        storage = DirectStorage(open_objects("s3://bucket/run"), lambda s: None)
        with pytest.raises(OSError, match=r"\S"):
            storage.size("a")
        server.shutdown(socket.SHUT_RDWR)
    assert 6 <= len(tried) <= 30  # the HTTP client itself makes a second one where it got no answer


def test_fsspec_lists_by_key(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    objects = RemoteObjects(fsspec.filesystem("memory"), f"/{tmp_path.name}-x/")
    objects.write("a/b", b"1")
    assert objects.list("a/") == {"a/b": 1}
