"""Why a job failed, from what it wrote to stderr, and whether trying again can help.

The classes are those of the Philly study (Jeon et al., ATC 2019, the table of failure reasons); what a signature looks
like is ours, for today's PyTorch as well as for the MPI and Caffe jobs of the study. A log usually holds several
signatures: a CUDA error ends in a traceback, a traceback in a non-zero exit code. The most specific one wins, so
classes are tried in the order of `CLASSES`. Reads text that it is given; retries nothing by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["CLASSES", "NO_SIGNATURE", "FailureClass", "Origin", "class_named", "classify", "should_retry"]

#: who has to act: the cluster's operators, the framework's settings, or the job's owner
Origin = Literal["infrastructure", "framework", "user"]

# Only the end is read: causes stand near it, and logs run to gigabytes.
_TAIL_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass:
    """One reason to fail. `retries` is how often a job that failed for it is tried again."""

    name: str
    origin: Origin
    retries: int
    signatures: tuple[str, ...] = ()

    def matches(self, text: str) -> bool:
        return any(re.search(signature, text, re.IGNORECASE) for signature in self.signatures)


def _infrastructure(name: str, retries: int, *signatures: str) -> FailureClass:
    return FailureClass(name=name, origin="infrastructure", retries=retries, signatures=signatures)


def _framework(name: str, retries: int, *signatures: str) -> FailureClass:
    return FailureClass(name=name, origin="framework", retries=retries, signatures=signatures)


def _user(name: str, *signatures: str) -> FailureClass:
    return FailureClass(name=name, origin="user", retries=0, signatures=signatures)


NO_SIGNATURE = FailureClass(name="no signature", origin="user", retries=1)

#: most specific first; the order decides when a log matches several
CLASSES: tuple[FailureClass, ...] = (
    _infrastructure(
        "job preempted",
        1_000_000,
        r"\bpreempt(ed|ion)\b",
        r"spot (instance )?interruption",
        r"SIGTERM.*by the scheduler",
    ),
    _infrastructure(
        "GPU ECC error", 5, r"uncorrectable ECC", r"double.bit ECC", r"ECC error", r"Xid.{0,40}\b(48|63|64|94|95)\b"
    ),
    _framework(
        "CUDA version mismatch",
        0,
        r"driver version is insufficient",
        r"CUDA (driver )?version mismatch",
        r"no kernel image is available",
        r"compiled (with|for) (a different )?CUDA",
    ),
    _infrastructure(
        "CUDA init failed",
        5,
        r"(cuInit|CUDA initiali[sz]ation|cudaGetDeviceCount).{0,80}(fail|error|unknown)",
        r"no CUDA-capable device",
        r"CUDA driver initiali[sz]ation failed",
        r"all CUDA-capable devices are busy",
    ),
    _user(
        "GPU out of memory",
        r"CUDA:? (error: )?out of memory",
        r"OutOfMemoryError: CUDA",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"cudaErrorMemoryAllocation",
        r"RESOURCE_EXHAUSTED: OOM",
    ),
    _framework(
        "invalid memory access",
        1,
        r"illegal memory access",
        r"device-side assert",
        r"CUDA error: misaligned address",
        r"invalid device pointer",
    ),
    _framework(
        "CUDA failure",
        2,
        r"CUDNN_STATUS_\w+",
        r"CUBLAS_STATUS_\w+",
        r"CUDA (runtime )?error",
        r"cuda\w*Error\w*",
        r"unspecified launch failure",
    ),
    _framework(
        "MPI runtime failure",
        3,
        r"ORTE (was|has|daemon)",
        r"mpirun (noticed|has exited|detected)",
        r"lost connection to (the )?(remote )?daemon",
        r"NCCL.{0,60}(timeout|unhandled|remote process)",
        r"Watchdog caught collective",
        r"gloo.{0,80}(Connection (closed|reset)|timed? ?out)",
        r"Connection (closed|reset) by peer",
    ),
    _framework("MPI error", 1, r"MPI_ERR\w*", r"MPI_ABORT", r"MPI_Init.{0,40}fail"),
    _infrastructure(
        "model checkpoint error",
        3,
        r"(checkpoint|snapshot|model file).{0,80}(No space|Input/output error|Stale|fail|corrupt|not be written)",
        r"(No space left on device|Stale file handle|hdfs.{0,60}(fail|error|exception))",
        r"PytorchStreamWriter failed",
        r"CheckpointError",
    ),
    _user(
        "CPU out of memory",
        r"DefaultCPUAllocator: (can't|not enough)",
        r"^MemoryError\b",
        r"\bMemoryError\b",
        r"std::bad_alloc",
        r"Cannot allocate memory",
        r"oom[-_ ]?kill",
        r"Out of memory: Kill",
        r"exit(ed with)? (code )?137",
    ),
    _user("permission error", r"PermissionError", r"Permission denied", r"Access is denied"),
    _user(
        "cannot load libraries",
        r"cannot open shared object file",
        r"error while loading shared libraries",
        r"undefined symbol",
    ),
    _user("import error", r"ModuleNotFoundError", r"ImportError", r"No module named"),
    _user("syntax error", r"\bSyntaxError\b", r"\bIndentationError\b", r"\bTabError\b"),
    _user(
        "model diverged",
        r"loss (is|became|=|:) ?(nan|inf)",
        r"\b(NaN|Inf) (loss|detected)",
        r"training (has )?diverged",
    ),
    _user("output node error", r"output node", r"no output (layer|criterion|node)"),
    _user(
        "incorrect inputs",
        r"FileNotFoundError",
        r"No such file or directory",
        r"(could not|cannot|can't|failed to) (open|read|find|load|decode|parse) .{0,60}(file|data|input|record)",
        r"UnicodeDecodeError",
        r"JSONDecodeError",
        r"unrecognized arguments",
        r"IsADirectoryError",
        r"(corrupt|truncated) (input|image|record|data)",
        r"BadZipFile",
    ),
    _user(
        "semantic error",
        r"\b(Assertion|Type|Value|Key|Index|Attribute|Name|ZeroDivision|NotImplemented|UnboundLocal|TurnRule)Error\b",
        r"size mismatch",
        r"shapes? .{0,60}(cannot be multiplied|not aligned|mismatch)",
    ),
    _framework(
        "core dump",
        1,
        r"core dumped",
        r"Segmentation fault",
        r"\bSIGSEGV\b",
        r"\bSIGABRT\b",
        r"terminate called",
        r"Fatal Python error",
    ),
    _framework(
        "traceback from crash",
        1,
        r"Traceback \(most recent call last\)",
        r"\*\*\* stack trace",
        r"Stack trace returned",
    ),
)


def classify(stderr: str, classes: Sequence[FailureClass] = CLASSES) -> FailureClass:
    """The first of the classes whose signature the log shows; of ours, the most specific one.

    >>> classify("Traceback (most recent call last):\\n...\\nModuleNotFoundError: No module named 'apex'").name
    'import error'
    """
    tail = stderr[-_TAIL_CHARACTERS:]
    return next((one for one in classes if one.matches(tail)), NO_SIGNATURE)


def class_named(name: str) -> FailureClass:
    """One of `CLASSES`; an unknown name counts as having no signature."""
    return next((one for one in CLASSES if one.name == name), NO_SIGNATURE)


def should_retry(name: str, num_failures: int) -> bool:
    """Whether a job that has failed `num_failures` times, lately for the class of this name, is worth another try.

    Classes that no retry cures (a syntax error, memory that is too small) are never tried again: in the study they
    took most of the trials. An unknown name counts as having no signature.
    """
    return num_failures <= class_named(name).retries
