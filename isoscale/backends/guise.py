"""A forked process as `ps` and /proc show it: with the arguments and the environment that it really has.

Both are read from the memory in which the program began, and a fork shows its parent's. Whoever looks for a run's
processes by their environment (`backends.leftovers`) must find this one, too, and those that it forks. Linux only;
where the system refuses, the process simply keeps its parent's guise.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["show_as"]

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
#: of /proc/self/stat: its fields from the state on, by the numbers that proc(5) gives them
_STAT = {
    "start_code": 26,
    "end_code": 27,
    "start_stack": 28,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
    "arg_start": 48,
    "arg_end": 49,
    "env_start": 50,
    "env_end": 51,
}

#: what is shown lies here, as long as the process runs
_kept: list[mmap.mmap] = []


class _Map(ctypes.Structure):
    """The kernel's `struct prctl_mm_map`."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk")),
        *((name, ctypes.c_uint64) for name in ("brk", "start_stack", "arg_start", "arg_end", "env_start", "env_end")),
        ("auxv", ctypes.c_uint64),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_int32),
    )


def show_as(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the system took it."""
    shown = [_block(arguments), _block(f"{name}={value}" for name, value in environment.items())]
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # Private: the system shows no shared pages.
        memory = mmap.mmap(-1, max(1, sum(map(len, shown))), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[: sum(map(len, shown))] = b"".join(shown)
        layout = _layout(libc)
    except (OSError, AttributeError, ValueError, IndexError):
        return False
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    layout.arg_start, layout.arg_end = start, start + len(shown[0])
    layout.env_start, layout.env_end = layout.arg_end, layout.arg_end + len(shown[1])
    size = ctypes.c_ulong(ctypes.sizeof(layout))
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(layout), size, ctypes.c_ulong(0)):
        return False
    _kept.append(memory)
    return True


def _block(strings: Iterable[str]) -> bytes:
    return b"".join(one.encode(errors="surrogateescape") + b"\0" for one in strings)


def _layout(libc: ctypes.CDLL) -> _Map:
    """As it is; only what is changed in it will be another one."""
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    layout = _Map(**{name: int(fields[number - 3]) for name, number in _STAT.items()}, exe_fd=-1)
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_long]
    layout.brk = libc.sbrk(0)
    return layout
