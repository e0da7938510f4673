"""Failure classes: one log per class, the specific cause before its consequences, retries by class."""

from __future__ import annotations

import pytest

from isoscale.analysis.failures import CLASSES, NO_SIGNATURE, classify, should_retry

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'

LOGS = {
    "job preempted": "container killed: preempted by a job of higher priority",
    "GPU ECC error": TRACEBACK + "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "CUDA version mismatch": "CUDA driver version is insufficient for CUDA runtime version",
    "CUDA init failed": TRACEBACK + "RuntimeError: No CUDA-capable device is detected",
    "GPU out of memory": TRACEBACK + "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "invalid memory access": TRACEBACK + "RuntimeError: CUDA error: an illegal memory access was encountered",
    "CUDA failure": TRACEBACK + "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "MPI runtime failure": "ORTE has lost communication with its daemon located on node m12",
    "MPI error": "MPI_ERR_TRUNCATE: message truncated",
    "model checkpoint error": "writing snapshot model.ckpt failed: Stale file handle",
    "CPU out of memory": TRACEBACK + "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory",
    "permission error": TRACEBACK + "PermissionError: [Errno 13] Permission denied: '/data'",
    "cannot load libraries": "libcudart.so.9: cannot open shared object file: No such file or directory",
    "import error": TRACEBACK + "ModuleNotFoundError: No module named 'apex'",
    "syntax error": '  File "train.py", line 3\n    fro x in y:\nSyntaxError: invalid syntax',
    "model diverged": "step 340: loss is nan, giving up",
    "output node error": "criterion: no output node of this name",
    "incorrect inputs": TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: 'train.tsv'",
    "semantic error": TRACEBACK + "ValueError: expected 10 classes, got 12",
    "core dump": "Segmentation fault (core dumped)",
    "traceback from crash": TRACEBACK + "SomeLibrarysOwnProblem: it is broken",
}


@pytest.mark.parametrize(("name", "log"), LOGS.items())
def test_each_class_has_its_log(name: str, log: str) -> None:
    assert classify(log).name == name


def test_every_class_of_the_study_is_there() -> None:
    assert [one.name for one in CLASSES] == list(LOGS)
    assert classify("epoch 3 done\n") is NO_SIGNATURE


def test_the_end_of_a_long_log_decides_in_time() -> None:
    assert classify("epoch done\n" * 200_000 + LOGS["import error"]).name == "import error"


def test_what_no_retry_cures_is_not_tried_again() -> None:
    for hopeless in ("syntax error", "import error", "incorrect inputs", "GPU out of memory", "semantic error"):
        assert not should_retry(hopeless, 1)
    assert should_retry("job preempted", 100)
    assert should_retry("CUDA init failed", 5)
    assert not should_retry("CUDA init failed", 6)
    assert should_retry("never heard of", 1)
    assert not should_retry("never heard of", 2)
