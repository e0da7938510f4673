"""Readers: partitions add up to the whole, and any position leads to exactly what follows it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

import isoscale
from isoscale.core.streams import rng
from isoscale.data.readers import Source
from isoscale.data.readers.lines import LineReader
from isoscale.data.stream_ledger import content_hash
from isoscale.errors import UserError


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        yield


def read(source: Source, partition: int, position: Any = None) -> list[Any]:
    reader, out = source.open(partition, position), []
    while stored := reader.read()[1]:
        out += stored
    reader.close()
    return list(source.decode(out))


def everything(source: Source) -> list[Any]:
    return [sample for partition in range(source.num_partitions) for sample in read(source, partition)]


def check_positions(source: Source) -> None:
    """From the beginning of every chunk, and from the end, the rest is what it was."""
    for partition in range(source.num_partitions):
        whole = read(source, partition)
        reader, seen = source.open(partition, None), 0
        while True:
            assert read(source, partition, reader.position) == whole[seen:]
            position, stored = reader.read()
            assert read(source, partition, position) == whole[seen:]
            seen += len(stored)
            if not stored:
                break
        reader.close()
        assert seen == len(whole)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=6), max_size=12),
    ends_with_newline=st.booleans(),
    partition_bytes=st.integers(1, 20),
    chunk=st.integers(1, 9),
)
def test_byte_ranges_hold_every_line_once(
    tmp_path: Path, lines: list[str], ends_with_newline: bool, partition_bytes: int, chunk: int
) -> None:
    text = "\n".join(lines) + ("\n" if ends_with_newline else "")
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    expected = text.encode().decode().split("\n")
    if not expected[-1]:
        expected.pop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isoscale.data.readers.lines._CHUNK_BYTES", chunk)
        source = isoscale.text_lines(path, partition_bytes=partition_bytes)
        assert everything(source) == expected
        check_positions(source)


def test_lines_of_several_files_without_last_newlines(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"three\r\nfour")
    (tmp_path / "a.txt").write_bytes(b"one\ntwo")
    source = isoscale.text_lines(tmp_path / "*.txt")
    assert source.num_partitions == 2
    assert everything(source) == ["one", "two", "three", "four"]
    assert [source.label(p) for p in range(2)] == ["a.txt", "b.txt"]
    readers = [source.open(p, None) for p in range(2)]
    mixed = [stored for reader in readers for stored in reader.read()[1]]
    for reader in readers:
        reader.close()
    assert source.decode(mixed) == ["one", "two", "three", "four"]


def test_compressed_files(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.writelines(f"{i}\n" for i in range(40_000))
    source = isoscale.text_lines(tmp_path / "a.txt.gz")
    assert everything(source) == [str(i) for i in range(40_000)]
    check_positions(source)
    with pytest.raises(UserError, match="in the middle"):
        isoscale.text_lines(tmp_path / "a.txt.gz", partition_bytes=100)


def test_json_lines_pass_over_blank_ones(tmp_path: Path) -> None:
    rows = [{"id": i, "text": "é\n"} for i in range(50)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n \n")
    for partition_bytes in (None, 1, 7, 100):
        source = isoscale.json_lines([path], partition_bytes=partition_bytes)
        assert everything(source) == rows
    check_positions(source)


@pytest.mark.parametrize("partition_bytes", [None, 1, 9, 40, 1000])
def test_csv_rows(tmp_path: Path, partition_bytes: int | None) -> None:
    rows = [{"id": str(i), "name": f"é,{i}"} for i in range(700)]
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "name"])
        writer.writeheader()
        writer.writerows(rows)
        file.write("\n")
    source = isoscale.csv_rows(tmp_path / "a.csv", partition_bytes=partition_bytes)
    assert everything(source) == rows
    if partition_bytes != 1:
        check_positions(source)


def test_csv_values_with_newlines_need_whole_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,name\n1,"two\nlines"\n2,x\n' * 1)
    assert everything(isoscale.csv_rows(tmp_path / "a.csv")) == [
        {"id": "1", "name": "two\nlines"},
        {"id": "2", "name": "x"},
    ]
    with pytest.raises(UserError, match="leave partition_bytes out"):
        everything(isoscale.csv_rows(tmp_path / "a.csv", partition_bytes=3))


def shard(path: Path, count: int, mode: str = "w") -> list[dict[str, Any]]:
    samples = []
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        tar.addfile(tarfile.TarInfo("no-extension"))
        for i in range(count):
            key = f"{'long' * 30 if i % 3 == 0 else 'a'}/{i:04}"
            sample = {"__key__": key, "img.png": random.Random(i).randbytes(i * 37), "cls": b"%d" % i}
            for extension in ("img.png", "cls"):
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(sample[extension])
                tar.addfile(info, io.BytesIO(sample[extension]))
            samples.append(sample)
    return samples


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_shards_in_webdataset_layout(tmp_path: Path, mode: str) -> None:
    suffix = ".tar.gz" if mode == "w:gz" else ".tar"
    expected = shard(tmp_path / f"s-0{suffix}", 20, mode) + shard(tmp_path / f"s-1{suffix}", 3, mode)
    source = isoscale.tar_samples(tmp_path / f"s-*{suffix}")
    assert source.num_partitions == 2
    assert everything(source) == expected
    check_positions(source)


@pytest.mark.parametrize("partition", ["group", "file"])
def test_parquet_rows(tmp_path: Path, partition: Any) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"id": i, "text": f"t{i}"} for i in range(1500)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=600)
    source = isoscale.parquet_rows(tmp_path / "a.parquet", partition=partition)
    assert source.num_partitions == (3 if partition == "group" else 1)
    assert everything(source) == rows
    check_positions(source)
    assert everything(isoscale.parquet_rows(tmp_path / "a.parquet", columns=["id"]))[3] == {"id": 3}


def test_fsspec_urls() -> None:
    fsspec = pytest.importorskip("fsspec")
    for i in range(3):
        with fsspec.open(f"memory://stream-test/{i}.txt", "wb") as file:
            file.write(f"{i}-a\n{i}-b\n".encode())
    source = isoscale.text_lines("memory://stream-test/*.txt", partition_bytes=4)
    assert source.num_partitions == 6
    assert everything(source) == ["0-a", "0-b", "1-a", "1-b", "2-a", "2-b"]


def test_local_files_as_urls(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "a.txt").write_text("".join(f"{i}\n" for i in range(100)))
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("x\ny\n")
    source = isoscale.text_lines(f"file://{tmp_path}/a.txt", partition_bytes=50)
    assert everything(source) == [str(i) for i in range(100)]
    check_positions(source)
    assert everything(isoscale.text_lines(f"file://{tmp_path}/*.gz")) == ["x", "y"]


def test_map_style_data_in_ranges() -> None:
    source = isoscale.samples(TensorDataset(torch.arange(2500.0)), partition_samples=1100)
    assert [source.label(p) for p in range(source.num_partitions)][-1] == "samples 2200 to 2499"
    assert [x.item() for (x,) in everything(source)] == list(range(2500))
    check_positions(source)


@pytest.mark.parametrize("path", ["nothing-here.txt", "nothing-*.txt"])
def test_missing_files_are_refused(path: str) -> None:
    with pytest.raises(UserError, match="nothing-"):
        isoscale.text_lines(path)


def test_identity_follows_names_sizes_and_cuts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("one\ntwo\n")
    here = isoscale.text_lines(tmp_path / "a.txt").identity
    assert isoscale.text_lines(tmp_path / "b" / "a.txt").identity == here
    assert isoscale.text_lines(tmp_path / "a.txt", partition_bytes=4).identity != here
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    assert isoscale.text_lines(tmp_path / "a.txt").identity != here


# ---- iterable data sets ----


class Sharded(IterableDataset[int]):
    """Divides itself as the torch documentation says."""

    def __init__(self, size: int = 400) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, self.size, info.num_workers))


class WithState(Sharded):
    def __init__(self) -> None:
        super().__init__()
        self.state = {"at": 0, "seen": (0, torch.zeros(2))}
        self.starts: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert isinstance(state["seen"], tuple)
        self.state = state

    def __iter__(self) -> Iterator[int]:
        samples = list(super().__iter__())
        while self.state["at"] < len(samples):
            self.state = {"at": self.state["at"] + 1, "seen": (1, torch.ones(2))}
            yield samples[self.state["at"] - 1]


class WithSeek(Sharded):
    at = 0

    def seek(self, n: int) -> None:
        self.at = n

    def __iter__(self) -> Iterator[int]:
        return iter(list(super().__iter__())[self.at :])


class IteratorState(Sharded):
    class Walk:
        def __init__(self, samples: list[int]) -> None:
            self.samples, self.at = samples, 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            if self.at == len(self.samples):
                raise StopIteration
            self.at += 1
            return self.samples[self.at - 1]

        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.at = state["at"]

    def __iter__(self) -> Any:
        return self.Walk(list(super().__iter__()))


@pytest.mark.parametrize("kind", [Sharded, WithState, WithSeek, IteratorState])
def test_iterable_data_sets_come_back_to_any_place(kind: type[Sharded], capsys: pytest.CaptureFixture[str]) -> None:
    source = isoscale.iterable(kind(), partitions=3)
    assert sorted(everything(source)) == list(range(400))
    check_positions(source)
    assert ("read 64 samples of partition 0 of Sharded again" in capsys.readouterr().err) == (kind is Sharded)
    assert get_worker_info() is None


class Forgetful(Sharded):
    """Its first samples repeat, later ones do not."""

    reads = 0

    def __iter__(self) -> Iterator[int]:
        for i, sample in enumerate(super().__iter__()):
            Forgetful.reads += i == 70
            yield sample + (1000 * Forgetful.reads if i >= 70 else 0)


class Fresh(Sharded):
    """Other samples every time."""

    reads = 0

    def __iter__(self) -> Iterator[int]:
        Fresh.reads += 1
        return iter([Fresh.reads, 2, 3])


class Drawing(Sharded):
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        for sample in super().__iter__():
            self.draw()
            yield sample


class WrongState(WithState):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = {**state, "at": state["at"] + 1}


def test_samples_that_change_when_read_again_are_refused() -> None:
    source = isoscale.iterable(Forgetful(), partitions=2)
    reader = source.open(0, None)
    for _ in range(2):
        reader.read()
    with pytest.raises(UserError, match="the first 128 samples are others when they are read again"):
        source.open(0, reader.position)


def test_a_data_set_with_hidden_state_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="the first samples are others"):
        isoscale.iterable(Fresh(), partitions=1).open(0, None)


@pytest.mark.parametrize("draw", [lambda: random.random(), lambda: np.random.rand(), lambda: torch.rand(())])
def test_drawing_from_global_streams_is_refused(draw: Any) -> None:
    with pytest.raises(UserError, match="global random streams"):
        isoscale.iterable(Drawing(draw), partitions=1).open(0, None).read()


def test_a_state_that_leads_elsewhere_is_refused() -> None:
    source = isoscale.iterable(WrongState(), partitions=1)
    reader = source.open(0, None)
    reader.read()
    position, _ = reader.read()
    with pytest.raises(UserError, match="sample 64 is another one"):
        source.open(0, position).read()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (b"ab", b"ba"),
        ([b"a", b"b"], [b"ab", b""]),
        ([1, [2]], [[1], 2]),
        ({"x": 1}, {"x": 2}),
        (torch.zeros(2), torch.zeros(2, 1)),
        (1, "1"),
    ],
)
def test_content_hashes_tell_samples_apart(a: Any, b: Any) -> None:
    assert content_hash(a) == content_hash(a)
    assert content_hash(a) != content_hash(b)


def test_line_readers_read_many_lines_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n" * 1000)
    from isoscale.data.readers.files import File, Span

    reader = LineReader(Span(File(str(tmp_path / "a.txt"), 2000)), None, bytes.splitlines)
    assert len(reader.read()[1]) == 1000
    reader.close()
