"""Processes that an executor forks: loader processes, and a copy that saves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: an executor that has gone over to another generation, and a fork of it that happens to collect garbage
FORKED = """
import gc, os, signal, sys
gc.disable()
from isoscale.runtime.transport.gloo import form_group


class Holder:
    pass


one = Holder()
one.group, one.itself = form_group(sys.argv[1], 0, 1, "127.0.0.1"), one
del one
child = os.fork()
if child == 0:
    signal.alarm(40)
    gc.collect()
    os._exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
gc.collect()
print(code)
"""


@pytest.mark.processes
def test_a_fork_does_not_wait_for_threads_of_groups_that_its_parent_has_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path / "meeting")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
