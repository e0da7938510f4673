from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from isoscale.core.encoding.codec import pack, unpack
from isoscale.core.encoding.fast_hash import fast_digest
from isoscale.errors import CheckpointError
from isoscale.runtime.checkpoint import state_file
from isoscale.runtime.checkpoint.files import (
    Identity,
    Written,
    at_or_before,
    clean_temporaries,
    newest,
    publish,
    write,
)
from isoscale.types import JobSpec
from tests.unit.test_codec import same, trees

IDENTITY = Identity.of(JobSpec(workers=4))


def state_of(step: int, size: int = 1000) -> dict[str, Any]:
    return {"step": step, "model": {"w": torch.full((size,), float(step))}, "optimizer": {"state": {0: (1, None)}}}


def save(directory: Path, step: int, *, keep: int = 10, tag: str = "e0") -> Path:
    return publish(directory, write(directory, state_of(step), step=step, identity=IDENTITY, tag=tag), keep)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def refuse(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def found_step(directory: Path) -> tuple[int | None, list[str]]:
    warnings: list[str] = []
    found = newest(directory, warnings.append)
    return (found.step if found else None), warnings


# ---- an ordinary life ----


def test_what_is_published_is_found_and_loaded(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", 40)
    assert names(tmp_path / "checkpoints") == ["step-00000040.json", "step-00000040.pt"]
    found = newest(tmp_path / "checkpoints", refuse)
    assert found is not None
    assert (found.path, found.step, found.identity) == (path, 40, IDENTITY)
    assert same(state_file.read(found.path), state_of(40))
    assert same(torch.load(path, weights_only=True), state_of(40))


def test_the_manifest_describes_the_file(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    manifest = json.loads(path.with_suffix(".json").read_text())
    data = path.read_bytes()
    expected = {
        "format": 2,
        "file": path.name,
        "step": 7,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert expected.items() <= manifest.items()
    assert manifest["identity"]["workers"] == 4
    assert manifest["identity"]["torch"] == torch.__version__


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees)
@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_every_state_comes_back_or_is_refused_at_once(tmp_path: Path, tree: Any) -> None:
    try:
        written = write(tmp_path, {"tree": tree}, step=1, identity=IDENTITY, tag="e0")
    except CheckpointError as error:
        assert "is not recognized" in str(error)  # noqa: PT017 - torch saves no integers of less than a byte
        return
    publish(tmp_path, written, 1)
    found = newest(tmp_path, refuse)
    assert found is not None
    assert same(state_file.read(found.path)["tree"], tree)


def test_only_what_is_seen_of_a_storage_is_written(tmp_path: Path) -> None:
    large = torch.randn(1000, 1000)
    parts = {
        "row": large[3],
        "column": large[:, 3],
        "block": large[:2].t(),
        "empty": large[:0],
        "zero": large[5, 5],
        "bits": large[7].view(torch.bfloat16),
        "conj": torch.view_as_complex(large.view(-1, 2))[:3].conj(),
        "tied": [large[:, :1].clone()] * 2,
    }
    written = write(tmp_path, parts, step=1, identity=IDENTITY, tag="e0")
    assert written.size < 50_000
    back = torch.load(publish(tmp_path, written, 1), weights_only=True)
    for name in parts:
        assert fast_digest(back[name]) == fast_digest(parts[name]), name
    assert back["block"].stride() == (1, 1000)
    assert back["tied"][0].data_ptr() == back["tied"][1].data_ptr()


def test_packed_state_is_written_without_another_copy(tmp_path: Path) -> None:
    state = state_of(1) | {"half": torch.ones(7, dtype=torch.float16), "none": torch.ones(0, 3), "n": torch.tensor(3)}
    views = unpack(pack(state), copy=False)
    assert views["half"].untyped_storage().data_ptr() == views["n"].untyped_storage().data_ptr()
    publish(tmp_path, write(tmp_path, views, step=1, identity=IDENTITY, tag="e0"), 1)
    found = newest(tmp_path, refuse)
    assert found is not None
    assert same(state_file.read(found.path), state)


def test_nothing_is_visible_before_it_is_published(tmp_path: Path) -> None:
    written = write(tmp_path, state_of(3), step=3, identity=IDENTITY, tag="e0-g2")
    assert found_step(tmp_path) == (None, [])
    assert names(tmp_path) == [".step-00000003-e0-g2.tmp.json", ".step-00000003-e0-g2.tmp.pt"]
    assert written.size == (tmp_path / written.temporary_data).stat().st_size


def test_no_directory_and_an_empty_one_hold_nothing(tmp_path: Path) -> None:
    assert found_step(tmp_path / "none") == found_step(tmp_path) == (None, [])
    assert clean_temporaries(tmp_path / "none") == 0


def test_what_was_written_travels_in_a_message(tmp_path: Path) -> None:
    written = write(tmp_path, state_of(3), step=3, identity=IDENTITY, tag="e0")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=Written) == written
    hostile = msgspec.to_builtins(written) | {"tag": "/../../x"}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(hostile, Written)


def test_at_or_before(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    (tmp_path / "step-00000030.pt").write_bytes(b"")
    found = [at_or_before(tmp_path, step, refuse) for step in (9, 10, 19, 29)]
    assert [f and f.step for f in found] == [None, 10, 10, 20]


def test_steps_of_more_digits_are_newer(tmp_path: Path) -> None:
    save(tmp_path, 99_999_999)
    save(tmp_path, 100_000_000)
    assert found_step(tmp_path) == (100_000_000, [])


# ---- retention ----


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step-00000030.json", "step-00000030.pt", "step-00000040.json", "step-00000040.pt"]


def test_damaged_ones_do_not_count_as_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    (tmp_path / "step-00000020.pt").write_bytes(b"torn")
    (tmp_path / "step-00000030.json").unlink()
    save(tmp_path, 40, keep=2)
    assert found_step(tmp_path) == (40, [])
    assert at_or_before(tmp_path, 39, lambda _: None).step == 10  # type: ignore[union-attr]
    save(tmp_path, 50, keep=1)
    assert names(tmp_path) == ["step-00000050.json", "step-00000050.pt"]


def test_what_was_just_published_stays_beside_later_ones(tmp_path: Path) -> None:
    for step in (30, 40, 20):
        save(tmp_path, step, keep=1)
    assert at_or_before(tmp_path, 20, refuse) is not None
    with pytest.raises(ValueError, match="keep=0"):
        save(tmp_path, 50, keep=0)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    others = ["notes.txt", "step-1.pt", "step-000000001.pt", "step-00000001.pt.bak", ".step-00000001.tmp.pt"]
    for name in others:
        (tmp_path / name).write_text("mine")
    for step in (10, 20):
        save(tmp_path, step, keep=1)
    clean_temporaries(tmp_path)
    assert set(others) < set(names(tmp_path))
    assert found_step(tmp_path) == (20, [])


# ---- damage ----


@pytest.fixture
def two(tmp_path: Path) -> Path:
    save(tmp_path, 10)
    save(tmp_path, 20)
    return tmp_path


DAMAGE = {
    "truncated": ("pt", lambda b: b[: len(b) // 2], r"bytes instead of"),
    "empty": ("pt", lambda b: b"", "0 bytes instead of"),
    "longer": ("pt", lambda b: b + b"x", r"bytes instead of"),
    "one bit": ("pt", lambda b: b[:-900] + bytes([b[-900] ^ 1]) + b[-899:], "sha256"),
    "manifest empty": ("json", lambda b: b"", "manifest is damaged"),
    "manifest truncated": ("json", lambda b: b[:-10], "manifest is damaged"),
    "manifest binary": ("json", lambda b: b"\xff\xfe\x00", "manifest is damaged"),
    "manifest deep": ("json", lambda b: b"[" * 100_000, "manifest is damaged"),
    "manifest of something else": ("json", lambda b: b"[1]", "no manifest"),
    "manifest of the future": ("json", lambda b: b.replace(b'"format": 2', b'"format": 3'), "format 3"),
    "manifest of another seed": ("json", lambda b: b.replace(b'"seed": 0', b'"seed": 1'), "changed or damaged"),
}


@pytest.mark.parametrize(("ending", "change", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_one_is_skipped_with_one_warning(two: Path, ending: str, change: Any, reason: str) -> None:
    path = two / f"step-00000020.{ending}"
    path.write_bytes(change(path.read_bytes()))
    step, warnings = found_step(two)
    assert step == 10
    assert len(warnings) == 1
    assert "step-00000020.pt" in warnings[0]
    assert reason in warnings[0]


@pytest.mark.parametrize("ending", ["pt", "json"])
def test_no_flipped_bit_goes_unseen(tmp_path: Path, ending: str) -> None:
    written = write(tmp_path, {"w": torch.arange(3.0)}, step=1, identity=IDENTITY, tag="e0")
    path = publish(tmp_path, written, 1).with_suffix(f".{ending}")
    whole = path.read_bytes()
    for at in range(len(whole)):
        # An ASCII letter becomes the other case, a digit another character.
        path.write_bytes(
            whole[:at] + bytes([whole[at] ^ 0x20 if ending == "pt" else whole[at] ^ 0x01]) + whole[at + 1 :]
        )
        # In a manifest a blank may become another one.
        is_same = ending == "json" and path.read_bytes().split() == whole.split()
        assert is_same or found_step(tmp_path)[0] is None


def test_missing_halves_are_skipped(two: Path) -> None:
    save(two, 30)
    (two / "step-00000030.json").unlink()
    (two / "step-00000020.pt").unlink()
    step, warnings = found_step(two)
    assert step == 10
    assert ["never finished" in warnings[0], "no data" in warnings[1]] == [True, True]


def test_a_manifest_of_another_step_is_skipped(two: Path) -> None:
    for ending in ("pt", "json"):
        shutil.copy(two / f"step-00000010.{ending}", two / f"step-00000030.{ending}")
    step, warnings = found_step(two)
    assert step == 20
    assert "that of step 10" in warnings[0]


def test_what_is_no_file_is_skipped(two: Path) -> None:
    """Opening a pipe would wait for ever."""
    (two / "step-00000020.pt").unlink()
    os.mkfifo(two / "step-00000020.pt")
    (two / "step-00000030.json").mkdir()
    step, warnings = found_step(two)
    assert (step, len(warnings)) == (10, 2)


def test_all_damaged_is_none(two: Path) -> None:
    for path in two.glob("*.pt"):
        path.write_bytes(b"x")
    assert found_step(two)[0] is None
    assert len(found_step(two)[1]) == 2


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("exploded"),))


@pytest.mark.parametrize("contents", ["bomb", "list", "garbage"])
def test_loading_runs_nothing_even_if_the_digests_agree(
    two: Path, contents: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    found = newest(two, refuse)
    assert found is not None
    if contents == "garbage":
        found.path.write_bytes(b"PK\x03\x04" + bytes(100))
    else:
        torch.save({"x": Bomb()} if contents == "bomb" else [1], found.path)
    with pytest.raises(CheckpointError, match="cannot load it") as caught:
        state_file.read(found.path)
    assert "weights_only" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("exploded").exists()


# ---- writers that fail ----


@pytest.mark.parametrize("value", [object(), Bomb(), {1}, torch.eye(2).to_sparse()])
def test_what_could_not_be_loaded_is_not_written(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"state\['x'\]"):
        write(tmp_path, {"x": value}, step=1, identity=IDENTITY, tag="e0")
    assert names(tmp_path) == []


@pytest.mark.parametrize("tag", ["", "a/b", "..", "a.b", "a" * 65, "a\n"])
def test_a_tag_is_part_of_a_name(tmp_path: Path, tag: str) -> None:
    with pytest.raises(ValueError, match="tag"):
        write(tmp_path, state_of(1), step=1, identity=IDENTITY, tag=tag)


@pytest.mark.parametrize("num_good_writes", [0, 1, 5, 9, 20])
def test_an_error_at_any_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_good_writes: int
) -> None:
    save(tmp_path, 10)
    before = names(tmp_path)

    class Full:
        num_writes = 0

        def write(self, data: memoryview) -> int:
            self.num_writes += 1
            if self.num_writes > num_good_writes:
                raise OSError(28, "No space left on device")
            return len(data)

    init = state_file._HashingFile.__init__
    monkeypatch.setattr(state_file._HashingFile, "__init__", lambda self, file: init(self, Full()))
    with pytest.raises(CheckpointError, match="No space left on device"):
        write(tmp_path, state_of(20), step=20, identity=IDENTITY, tag="e0")
    assert names(tmp_path) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
        )
        if shutil.which("mount")
        else None
    )
    if mounted is None or mounted.returncode:
        pytest.skip("mounting is not permitted")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("missing", ["all", "half", "end of the data", "manifest"])
def test_a_full_disk_leaves_the_last_good_one(small_disk: Path, missing: str) -> None:
    save(small_disk, 10)
    page = os.statvfs(small_disk).f_bsize
    free = os.statvfs(small_disk).f_bavail
    write(small_disk, state_of(20, 100_000), step=20, identity=IDENTITY, tag="e0")
    needed = free - os.statvfs(small_disk).f_bavail
    clean_temporaries(small_disk)
    room = {"all": 0, "half": needed // 2, "end of the data": needed - 2, "manifest": needed - 1}[missing]
    (small_disk / "filler").write_bytes(bytes((free - room) * page))
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        write(small_disk, state_of(20, 100_000), step=20, identity=IDENTITY, tag="e0")
    assert "free space" in caught.value.remedy
    assert names(small_disk) == ["filler", "step-00000010.json", "step-00000010.pt"]
    assert found_step(small_disk) == (10, [])
    (small_disk / "filler").unlink()
    save(small_disk, 30)
    assert found_step(small_disk) == (30, [])


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot write it"):
        write(tmp_path / "checkpoints", state_of(1), step=1, identity=IDENTITY, tag="e0")
    with pytest.raises(CheckpointError, match="cannot look for it"):
        newest(tmp_path / "checkpoints", refuse)


# ---- publishing ----


def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    written = write(tmp_path, state_of(5), step=5, identity=IDENTITY, tag="e0")
    path = publish(tmp_path, written, 1)
    contents = {p: p.read_bytes() for p in tmp_path.iterdir()}
    assert publish(tmp_path, written, 1) == path
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == contents


def test_publishing_goes_on_where_another_stopped(tmp_path: Path) -> None:
    written = write(tmp_path, state_of(5), step=5, identity=IDENTITY, tag="e0")
    (tmp_path / written.temporary_data).rename(tmp_path / "step-00000005.pt")
    assert found_step(tmp_path)[0] is None
    publish(tmp_path, written, 1)
    assert found_step(tmp_path) == (5, [])


@pytest.mark.parametrize("gone", ["data", "manifest", "both", "size"])
def test_what_is_gone_is_not_published(tmp_path: Path, gone: str) -> None:
    save(tmp_path, 4)
    written = write(tmp_path, state_of(5), step=5, identity=IDENTITY, tag="e0")
    if gone in ("data", "both"):
        (tmp_path / written.temporary_data).unlink()
    if gone in ("manifest", "both"):
        (tmp_path / written.temporary_manifest).unlink()
    if gone == "size":
        os.truncate(tmp_path / written.temporary_data, 100)
    with pytest.raises(CheckpointError, match="gone"):
        publish(tmp_path, written, 1)
    assert found_step(tmp_path)[0] == 4


def test_an_older_one_of_the_same_step_does_not_pass_for_what_is_gone(tmp_path: Path) -> None:
    save(tmp_path, 5)
    written = write(tmp_path, {"other": torch.zeros(3)}, step=5, identity=IDENTITY, tag="e1")
    clean_temporaries(tmp_path)
    with pytest.raises(CheckpointError, match="gone"):
        publish(tmp_path, written, 1)
    assert found_step(tmp_path) == (5, [])


def test_a_damaged_one_is_replaced_by_the_same_step_again(tmp_path: Path) -> None:
    path = save(tmp_path, 5)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert found_step(tmp_path)[0] is None
    save(tmp_path, 5, tag="e1")
    assert found_step(tmp_path) == (5, [])
    assert len(names(tmp_path)) == 2


def test_two_writers_of_one_step(tmp_path: Path) -> None:
    """Both write at the same time; the one that is not published never becomes visible."""
    written: dict[str, Written] = {}

    def run(tag: str, value: int) -> None:
        state = state_of(value, 200_000)
        written[tag] = write(tmp_path, state, step=9, identity=IDENTITY, tag=tag)

    threads = [threading.Thread(target=run, args=(tag, value)) for tag, value in (("old", 1), ("new", 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publish(tmp_path, written["new"], 1)
    found = newest(tmp_path, refuse)
    assert found is not None
    assert state_file.read(found.path)["step"] == 2
    assert clean_temporaries(tmp_path, in_use=["old"]) == 0
    assert clean_temporaries(tmp_path) == 2
    assert names(tmp_path) == ["step-00000009.json", "step-00000009.pt"]


# ---- kill -9 ----

KILLED = """
import signal, sys
from pathlib import Path
import torch
from isoscale.runtime.checkpoint import files as checkpoint
from isoscale.runtime.checkpoint import manifest
from isoscale.runtime.checkpoint import state_file
from isoscale.types import JobSpec

directory, moment = Path(sys.argv[1]), sys.argv[2]

def wait_for_death():
    print("here", flush=True)
    signal.pause()

def once_then_wait(function):
    def replacement(*args, **kwargs):
        if replacement.calls == {"in data": 8, "before manifest": 0, "between renames": 1}[moment]:
            wait_for_death()
        replacement.calls += 1
        return function(*args, **kwargs)
    replacement.calls = 0
    return replacement

if moment == "in data":
    state_file._HashingFile.write = once_then_wait(state_file._HashingFile.write)
elif moment == "before manifest":
    manifest.Manifest.to_json = once_then_wait(manifest.Manifest.to_json)
else:
    Path.replace = once_then_wait(Path.replace)
identity = checkpoint.Identity.of(JobSpec(workers=4))
written = checkpoint.write(directory, {"w": torch.ones(1_000_000)}, step=20, identity=identity, tag="e0")
checkpoint.publish(directory, written, 1)
"""


@pytest.mark.processes
@pytest.mark.parametrize("moment", ["in data", "before manifest", "between renames"])
def test_a_writer_killed_at_any_moment_leaves_the_last_good_one(tmp_path: Path, moment: str) -> None:
    save(tmp_path, 10)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), moment], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"here\n"
        writer.send_signal(signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    step, warnings = found_step(tmp_path)
    assert step == 10
    assert len(warnings) == (moment == "between renames")
    assert clean_temporaries(tmp_path) >= 1
    save(tmp_path, 20, keep=1)
    assert names(tmp_path) == ["step-00000020.json", "step-00000020.pt"]
    assert found_step(tmp_path) == (20, [])


def test_importing_is_light() -> None:
    code = "import sys, isoscale.runtime.checkpoint.files; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]
