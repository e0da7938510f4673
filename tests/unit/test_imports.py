"""What needs no torch must not import it: schedulers and command lines start in milliseconds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

LIGHT = [
    "isoscale",
    "isoscale.types",
    "isoscale.errors",
    "isoscale.clock",
    "isoscale.env",
    "isoscale.kinds",
    "isoscale.protocol",
    "isoscale.protocol.messages",
    "isoscale.protocol.events",
    "isoscale.scheduling",
    "isoscale.sim",
    "isoscale.core.numerics.factors",
    "isoscale.runtime.coordinator.run",
]

CODE = """
import importlib, json, sys
heavy = {}
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
    heavy[name] = "torch" in sys.modules
print(json.dumps(heavy))
"""


def test_light_modules_do_not_import_torch() -> None:
    present = [name for name in LIGHT if importlib.util.find_spec(name) is not None]
    assert {"isoscale", "isoscale.types", "isoscale.kinds", "isoscale.protocol.messages"} <= set(present)
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(present)], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == dict.fromkeys(present, False)
