"""Reading a stream against a plain Python iterator over the same files, in the same process.

Both make batches of the same samples: the plain side opens file after file, decodes, shuffles with the usual buffer
where the stream has one, transforms, collates.
The stream's side does all that a job does at a step but for the model and the seal: it gives partitions out, reads
ahead, takes places down for other executors, and packs what rides with the step. One call is one epoch.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import measure
import msgspec
import torch
from torch.utils.data import default_collate

import isoscale
from isoscale.data.readers import Source
from isoscale.data.stream import LogicalStream
from isoscale.data.stream_rule import Rule

TARGET = 0.9
BATCH = 32
FILES = 8


def as_list(samples: list[Any]) -> Any:
    return samples


def plain(samples: Callable[[], Iterator[Any]], transform: Any, collate: Any) -> measure.Make:
    def make() -> Callable[[], None]:
        def epoch() -> None:
            batch: list[Any] = []
            for sample in samples():
                batch.append(sample if transform is None else transform(sample))
                if len(batch) == BATCH:
                    collate(batch)
                    batch = []

        return epoch

    return make


def stream(source: Source, transform: Any, collate: Any, *, workers: int, buffer: int) -> measure.Make:
    def make() -> Callable[[], None]:
        rule = Rule(num_logical_workers=workers, batch_size=BATCH, shuffle_buffer=buffer)
        stream_, number = LogicalStream(source, rule), iter(range(1 << 30))
        ranks = range(workers)

        def epoch() -> None:
            stream_.begin(next(number))
            while (move := stream_.next_move()) != "end":
                stream_.mark()
                if move == "step":
                    stream_.open(ranks)
                    for rank in ranks:
                        batch = source.decode(stream_.fetch(rank, here=True))
                        collate(batch if transform is None else [transform(sample) for sample in batch])
                elif move == "hand out":
                    stream_.hand_out()
                else:
                    stream_.count()
                for rank in ranks:
                    stream_.changes_of(rank)
                (stream_.end_step if move == "step" else stream_.end_round)()

        return epoch

    return make


def lines(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n")


def values(paths: list[Path]) -> Iterator[Any]:
    decode = msgspec.json.Decoder().decode
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield decode(line)


def members(paths: list[Path]) -> Iterator[Any]:
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


def make_files(directory: Path) -> dict[str, list[Path]]:
    made: dict[str, list[Path]] = {"txt": [], "jsonl": [], "tar": []}
    for i in range(FILES):
        for kind in made:
            made[kind].append(directory / f"{i}.{kind}")
        text = "".join(
            f"{k} the quick brown fox jumps over the lazy dog {'and again ' * (k % 7)}\n" for k in range(8000)
        )
        made["txt"][-1].write_text(text)
        rows = ({"x": [k % 17 / 3] * 16, "y": k % 2} for k in range(1500))
        made["jsonl"][-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
        with tarfile.open(made["tar"][-1], "w") as tar:
            for k in range(120):
                for extension, data in (("bin", bytes(3 * 32 * 32)), ("cls", b"%d" % (k % 10))):
                    info = tarfile.TarInfo(f"{i}-{k:04}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return made


def interleave(make_a: measure.Make, make_b: measure.Make, *, blocks: int, pairs: int) -> measure.Ratio:
    """As `measure.interleave`, but in seconds of the processor: files are in memory, so reading is nothing else."""
    order, times = random.Random(0), {name: [] for name in ("a", "b", "control")}
    for _ in range(blocks):
        work = {"a": make_a(), "b": make_b(), "control": make_a()}
        block: dict[str, list[float]] = {name: [] for name in work}
        for warm in work.values():
            warm()
        for _ in range(pairs):
            for name in order.sample(list(work), len(work)):
                start = time.process_time()
                work[name]()
                block[name].append(time.process_time() - start)
        for name in work:
            times[name].append(block[name])
    return measure.ratio_of(times)


def shuffled(samples: Iterator[Any], size: int) -> Iterator[Any]:
    """The usual shuffle buffer: a random one of `size` samples goes, the next one takes its place."""
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


def main() -> None:
    options = measure.quick_option(__doc__)
    measure.as_executor()
    torch.set_num_threads(1)
    blocks, pairs = (2, 5) if options.quick else (5, 6)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        files = make_files(Path(directory))
        cases: list[tuple[str, Any, Any, Any, Any, Any]] = [
            ("text lines", isoscale.text_lines, lines, files["txt"], None, as_list),
            ("json lines to tensors", isoscale.json_lines, values, files["jsonl"], to_tensor, default_collate),
            ("tar shards to tensors", isoscale.tar_samples, members, files["tar"], image, default_collate),
        ]
        for name, source, read, paths, transform, collate in cases:
            for workers, buffer in ((1, 0), (8, 0), (8, 100)):
                a = plain(
                    lambda read=read, paths=paths, size=buffer: shuffled(read(paths), size) if size else read(paths),
                    transform,
                    collate,
                )
                b = stream(source([str(path) for path in paths]), transform, collate, workers=workers, buffer=buffer)
                ratio = interleave(a, b, blocks=blocks, pairs=pairs)
                speed = 1 / ratio.ratio
                meets = 1 / (ratio.ratio - ratio.half_width) >= TARGET
                print(
                    f"{name:24} {workers} workers  buffer {buffer:4}  {speed:.2f} of a plain iterator "
                    f"(control {ratio.control:.2f} +- {ratio.half_width:.2f})  {'met' if meets else 'MISSED'}",
                    flush=True,
                )
                rows.append(
                    {"case": name, "workers": workers, "buffer": buffer, "speed": round(speed, 3)} | asdict(ratio)
                )
    if not options.quick:
        measure.save("stream", rows, target=TARGET, batch=BATCH)


if __name__ == "__main__":
    main()
