"""Where the compiled kernel comes from: caches that are shared, damaged or not to be had, and no compiler at all."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from isoscale.recipes.balanced import kernel
from isoscale.recipes.balanced.packed import PackedMatrix

has_compiler = kernel.load() is not None
compiled = pytest.mark.skipif(not has_compiler, reason="no compiler")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another home directory, and a process that has not loaded a kernel yet."""
    monkeypatch.setattr(kernel.Path, "home", lambda: tmp_path)
    monkeypatch.setattr(kernel, "load", kernel.load.__wrapped__)
    return tmp_path


def ones(rows: int = 70) -> PackedMatrix:
    return PackedMatrix.pack(torch.ones(rows, 8), torch.ones(rows, 8, dtype=torch.bool), 4)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Compiles without optimization; the directories that it was done in."""
    done = []

    def compile_in(compiler: str, sources: dict[str, bytes], directory: Path) -> Path:
        done.append(directory)
        return true_compile(compiler, sources, directory)

    true_compile = kernel._compile
    monkeypatch.setattr(kernel, "_compile", compile_in)
    monkeypatch.setattr(kernel, "_OPTIONS", ("-O0", *kernel._OPTIONS[1:]))
    return done


@compiled
def test_a_library_is_built_once_and_a_damaged_one_again(tmp_path: Path, quickly: list[Path]) -> None:
    first = kernel.build(tmp_path / "cache")
    content = first.read_bytes()
    assert kernel.build(tmp_path / "cache") == first
    assert len(quickly) == 1
    assert list((tmp_path / "cache").iterdir()) == [first]
    # Too short for the loader; long enough for it, and deadly; the right length.
    for damaged in (b"", content[: len(content) // 2], content[:500] + b"?" + content[501:]):
        first.write_bytes(damaged)
        assert not kernel._is_whole(first)
    assert kernel.build(tmp_path / "cache") == first
    assert len(quickly) == 2
    assert kernel.Kernel(first).best_path >= kernel.PLAIN


@compiled
def test_two_at_once_leave_one_whole_library(tmp_path: Path, quickly: list[Path]) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(2) as pool:
        made = {future.result() for future in [pool.submit(kernel.build, cache) for _ in range(2)]}
    assert list(cache.iterdir()) == list(made)
    assert kernel._is_whole(made.pop())
    assert len(set(quickly)) == len(quickly)


@pytest.mark.parametrize("hindrance", ["a file", "others may write"])
def test_a_cache_that_cannot_be_used_is_not_needed(
    hindrance: str, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file in the place of the directory fails for every user, root included, as a read-only one does for others."""
    caplog.set_level("INFO")
    if hindrance == "a file":
        (home / ".cache").write_text("")
    else:
        (home / ".cache" / "isoscale").mkdir(parents=True)
        (home / ".cache" / "isoscale").chmod(0o777)
    built_in: list[Path] = []

    def build(cache: Path) -> Path:
        if cache.is_relative_to(home):
            return true_build(cache)
        built_in.append(cache)
        return cache / "balanced.so"

    true_build = kernel.build
    monkeypatch.setattr(kernel, "build", build)
    monkeypatch.setattr(kernel, "Kernel", lambda library: library)
    monkeypatch.setattr(kernel.shutil, "which", lambda name: "/usr/bin/true")
    assert kernel.load() == built_in[0] / "balanced.so"
    assert not built_in[0].exists()
    assert "compiling for this process" in caplog.text
    assert hindrance == "a file" or "is not this user's alone; chmod go-w" in caplog.text


def test_without_a_compiler_torch_does(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel.shutil, "which", lambda name: None)
    assert kernel.load() is None
    assert (
        "no compiled kernel, torch does instead: no compiler: none of c++, g++, clang++ is on the PATH" in caplog.text
    )
    assert ones().multiply(torch.ones(8)).tolist() == [8.0] * 70


def test_a_compiler_that_fails_is_no_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 0 if "--version" in command else 1, b"", b"no such target")

    monkeypatch.setattr(kernel.shutil, "which", lambda name: "/usr/bin/c++")
    monkeypatch.setattr(kernel.subprocess, "run", refuse)
    with pytest.raises(OSError, match="no such target"):
        kernel.build(home / "cache")
    assert list((home / "cache").iterdir()) == []
    assert kernel.load() is None


def test_a_compiler_that_hangs_is_no_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **options: object) -> subprocess.CompletedProcess[bytes]:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(kernel.subprocess, "run", hang)
    monkeypatch.setattr(kernel.shutil, "which", lambda name: "/usr/bin/c++")
    assert kernel.load() is None
