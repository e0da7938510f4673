"""Reading a stream against plain Python iterators over the same files, in the same number of processes, by the clock.

Both make batches of the same samples: the plain side opens file after file, decodes, shuffles with the usual buffer
where the stream has one, transforms, collates. The stream's side does all that a job does at a step but for the model
and the seal: it gives partitions out, reads ahead, takes places down for other executors, packs what rides with the
step and takes over what others say. One call is one epoch.

- One process: one executor, one plain iterator.
- Two processes: two executors with half of the logical workers each, which hear of each other what they would hear in
  seals (worked out beforehand: waiting for a network is not reading); two plain iterators with half of the files each.
- Two loader processes: `num_workers=2`, against a stock DataLoader with `num_workers=2` over an iterable data set whose
  copies divide the files among them; from the first batch to the last.

Every row is kept when it is measured; a run that was broken off goes on with the next.

    python -m benchmarks.data.stream
"""

from __future__ import annotations

import io
import json
import multiprocessing
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

import isoscale
from benchmarks.lib import measure
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import Rows
from isoscale.data.readers import Source
from isoscale.data.stream import LogicalStream
from isoscale.data.stream_batches import StreamBatches
from isoscale.data.stream_rule import Rule
from isoscale.data.virtual import WorkerOptions

RESULT, MINUTES = "stream", 6
TARGET = 0.9
BATCH = 32
FILES = 8
#: with loader processes files are read so many times over, or there would be nothing to see
AGAIN = {"text lines": 4, "json lines to tensors": 8, "tar shards to tensors": 40}

Read = Callable[[Sequence[Path]], Iterator[Any]]
#: what the other executor says in each seal of an epoch: (logical rank, changes)
Heard = list[list[tuple[int, bytes]]]
#: one epoch
Epoch = Callable[[], None]


def as_list(samples: list[Any]) -> Any:
    return samples


def plain_batches(samples: Iterator[Any], transform: Any, collate: Any) -> Iterator[Any]:
    batch: list[Any] = []
    for sample in samples:
        batch.append(sample if transform is None else transform(sample))
        if len(batch) == BATCH:
            yield collate(batch)
            batch = []


def shuffled(samples: Iterator[Any], size: int) -> Iterator[Any]:
    """The usual shuffle buffer: a random one of `size` samples goes, the next one takes its place."""
    if not size:
        yield from samples
        return
    held: list[Any] = []
    for sample in samples:
        if len(held) < size:
            held.append(sample)
            continue
        at = int(random.random() * size)
        held[at], sample = sample, held[at]
        yield sample
    random.shuffle(held)
    yield from held


class Case:
    """One kind of file."""

    def __init__(self, name: str, source: Any, read: Read, paths: list[Path], transform: Any, collate: Any) -> None:
        self.name, self._source, self._read, self.paths = name, source, read, paths
        self._transform, self._collate = transform, collate

    def source(self, paths: Sequence[Path]) -> Source:
        made: Source = self._source([str(path) for path in paths])
        return made

    def plain(self, paths: Sequence[Path], buffer: int) -> Iterator[Any]:
        return plain_batches(shuffled(self._read(paths), buffer), self._transform, self._collate)

    def plain_epoch(self, paths: Sequence[Path], buffer: int) -> Epoch:
        def epoch() -> None:
            for _ in self.plain(paths, buffer):
                pass

        return epoch

    def batches(self, paths: Sequence[Path], workers: int, buffer: int, processes: int = 0) -> StreamBatches:
        options = WorkerOptions(num_workers=processes) if processes else None
        prefetch = options.ahead if options is not None else 0
        rule = Rule(num_logical_workers=workers, batch_size=BATCH, shuffle_buffer=buffer, prefetch=prefetch)
        return StreamBatches(
            LogicalStream(self.source(paths), rule),
            self._transform,
            self._collate,
            options,
            num_logical_workers=workers,
        )


def seals(batches: StreamBatches, ranks: range, heard: Heard | None = None) -> Iterator[list[tuple[int, bytes]]]:
    """One epoch of one executor, seal by seal: gives what it tells, and takes over what it hears."""
    stream, carried, index = batches.stream, batches.carried, 0
    batches.begin(0, list(range(64)))
    others = iter(()) if heard is None else iter(heard)
    while (move := stream.next_move()) != "end":
        carried.mark()
        if move == "step":
            batches.open(ranks, index)
            for rank in ranks:
                batches.fetch(rank, index, None, here=True)
            index += 1
        elif move == "hand out":
            stream.hand_out()
        else:
            batches.count()
        told = [(rank, carried.changes_of(rank)) for rank in ranks]
        yield told
        for rank, changes in told:
            if changes:
                carried.adopt(rank, changes, here=True)
        for rank, changes in next(others, ()):
            if changes:
                carried.adopt(rank, changes, here=False)
        (stream.end_step if move == "step" else stream.end_round)()


def stream_epoch(batches: StreamBatches, ranks: range, heard: Heard | None = None) -> Epoch:
    def epoch() -> None:
        for _ in seals(batches, ranks, heard):
            pass
        batches.stop()

    return epoch


def what_they_hear(first: StreamBatches, second: StreamBatches, shares: tuple[range, range]) -> tuple[Heard, Heard]:
    """Two executors in one process, in step: what the first hears of the second, and the other way round."""
    of_second: Heard = []
    of_first: Heard = []
    for told, also_told in zip(seals(first, shares[0], of_second), seals(second, shares[1], of_first), strict=True):
        of_first.append(told)
        of_second.append(also_told)
    return of_second, of_first


class Pair:
    """Two processes that each do their part when they are told to; a call ends when both are done."""

    def __init__(self, parts: tuple[dict[str, Epoch], dict[str, Epoch]]) -> None:
        context = multiprocessing.get_context("fork")
        self._ends = []
        for part in parts:
            here, there = context.Pipe()
            context.Process(target=self._serve, args=(part, there), daemon=True).start()
            self._ends.append(here)

    @staticmethod
    def _serve(part: dict[str, Epoch], end: Any) -> None:
        torch.set_num_threads(1)
        while name := end.recv():
            part[name]()
            end.send(None)

    def epoch(self, name: str) -> Epoch:
        def both() -> None:
            for end in self._ends:
                end.send(name)
            for end in self._ends:
                end.recv()

        return both

    def close(self) -> None:
        for end in self._ends:
            end.send("")


def one_process(case: Case, workers: int, buffer: int, *, blocks: int, pairs: int) -> measure.Ratio:
    def ours() -> Epoch:
        return stream_epoch(case.batches(case.paths, workers, buffer), range(workers))

    return measure.interleave(lambda: case.plain_epoch(case.paths, buffer), ours, blocks=blocks, pairs=pairs)


def two_processes(case: Case, buffer: int, *, blocks: int, pairs: int) -> measure.Ratio:
    shares = (range(4), range(4, 8))
    heard = what_they_hear(case.batches(case.paths, 8, buffer), case.batches(case.paths, 8, buffer), shares)
    parts = tuple(
        {
            "a": case.plain_epoch(case.paths[i::2], buffer),
            "b": stream_epoch(case.batches(case.paths, 8, buffer), shares[i], heard[i]),
        }
        for i in range(2)
    )
    pair = Pair(parts)  # type: ignore[arg-type]
    try:
        return measure.interleave(lambda: pair.epoch("a"), lambda: pair.epoch("b"), blocks=blocks, pairs=pairs)
    finally:
        pair.close()


class Divided(IterableDataset[Any]):
    """As such data sets divide themselves: every loader process reads its part of the files."""

    def __init__(self, case: Case, paths: Sequence[Path], buffer: int) -> None:
        self._case, self._paths, self._buffer = case, paths, buffer

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        return self._case.plain(self._paths[info.id :: info.num_workers], self._buffer)


def two_loaders(case: Case, buffer: int, *, rounds: int, again: int) -> measure.Ratio:
    paths = case.paths * again

    def stock() -> tuple[int, float]:
        return from_the_first(iter(DataLoader(Divided(case, paths, buffer), batch_size=None, num_workers=2)))

    def ours() -> tuple[int, float]:
        batches = case.batches(paths, 8, buffer, processes=2)
        steps = seals(batches, range(8))
        count, seconds = from_the_first(told for told in steps if any(changes for _, changes in told))
        batches.stop()
        return count * 8, seconds

    order = random.Random(0)
    times: dict[str, list[list[float]]] = {name: [] for name in ("a", "b", "control")}
    sides = {"a": stock, "b": ours, "control": stock}
    for _ in range(rounds):
        for name in order.sample(list(sides), len(sides)):
            count, seconds = sides[name]()
            times[name].append([seconds / count])
    return measure.ratio_of(times)


def from_the_first(batches: Iterator[Any]) -> tuple[int, float]:
    """How many came after the first, in how many seconds."""
    next(batches)
    start, count = time.perf_counter(), sum(1 for _ in batches)
    return count, time.perf_counter() - start


def lines(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n")


def values(paths: Sequence[Path]) -> Iterator[Any]:
    decode = msgspec.json.Decoder().decode
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield decode(line)


def members(paths: Sequence[Path]) -> Iterator[Any]:
    for path in paths:
        with tarfile.open(path) as tar:
            sample: dict[str, Any] = {}
            for member in tar:
                key, _, extension = member.name.partition(".")
                if sample and sample["__key__"] != key:
                    yield sample
                    sample = {}
                file = tar.extractfile(member)
                assert file is not None
                sample |= {"__key__": key, extension: file.read()}
            yield sample


def to_tensor(row: Any) -> Any:
    return torch.tensor(row["x"]), row["y"]


def image(sample: Any) -> Any:
    return torch.frombuffer(bytearray(sample["bin"]), dtype=torch.uint8).float() / 255, int(sample["cls"])


def make_files(directory: Path, part: int) -> dict[str, list[Path]]:
    """One of so many parts of the usual number of samples."""
    made: dict[str, list[Path]] = {"txt": [], "jsonl": [], "tar": []}
    for i in range(FILES):
        for kind in made:
            made[kind].append(directory / f"{i}.{kind}")
        text = "".join(
            f"{k} the quick brown fox jumps over the lazy dog {'and again ' * (k % 7)}\n" for k in range(8000 // part)
        )
        made["txt"][-1].write_text(text)
        rows = ({"x": [k % 17 / 3] * 16, "y": k % 2} for k in range(1500 // part))
        made["jsonl"][-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
        with tarfile.open(made["tar"][-1], "w") as tar:
            for k in range(120 // part if part == 1 else 64):
                for extension, data in (("bin", bytes(3 * 32 * 32)), ("cls", b"%d" % (k % 10))):
                    info = tarfile.TarInfo(f"{i}-{k:04}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return made


def main() -> None:
    options = chosen(__doc__)
    measure.as_executor()
    torch.set_num_threads(1)
    blocks, pairs, rounds = options.pick(smoke=(1, 1, 1), quick=(2, 4, 3), full=(3, 3, 4))
    rows = Rows(RESULT, options, ("case", "processes", "workers", "buffer"))

    def row(case: Case, how: str, workers: int, buffer: int, measured: Callable[[], measure.Ratio]) -> None:
        key = {"case": case.name, "processes": how, "workers": workers, "buffer": buffer}
        if rows.find(**key) is not None:
            return
        ratio = measured()
        speed, meets = 1 / ratio.ratio, 1 / (ratio.ratio - ratio.half_width) >= TARGET
        print(
            f"{case.name:22} {how:20} {workers} workers  buffer {buffer:3}  {speed:.2f} of plain iterators "
            f"(control {ratio.control:.2f} +- {ratio.half_width:.2f})  {'met' if meets else 'MISSED'}",
            flush=True,
        )
        rows.put({**key, "speed": round(speed, 3), **asdict(ratio)})

    with tempfile.TemporaryDirectory() as directory:
        files = make_files(Path(directory), options.pick(smoke=20, quick=1, full=1))
        cases = [
            Case("text lines", isoscale.text_lines, lines, files["txt"], None, as_list),
            Case("json lines to tensors", isoscale.json_lines, values, files["jsonl"], to_tensor, default_collate),
            Case("tar shards to tensors", isoscale.tar_samples, members, files["tar"], image, default_collate),
        ]
        for case in cases:
            for workers, buffer in ((1, 0), (8, 0), (8, 100)):
                alone = partial(one_process, case, workers, buffer, blocks=blocks, pairs=pairs)
                row(case, "one process", workers, buffer, alone)
            for buffer in (0,) if options.smoke else (0, 100):
                row(case, "two processes", 8, buffer, partial(two_processes, case, buffer, blocks=blocks, pairs=pairs))
                again = options.pick(smoke=1, quick=AGAIN[case.name], full=AGAIN[case.name])
                loaders = partial(two_loaders, case, buffer, rounds=rounds, again=again)
                row(case, "two loader processes", 8, buffer, loaders)
    rows.finish(target=TARGET, batch=BATCH)


if __name__ == "__main__":
    main()
