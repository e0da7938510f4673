"""Runs blocks of Python in one process, for the tests: reads them as JSON from a file, answers in another.

    python run_blocks.py REQUESTS ANSWERS

Every block is {"text": ..., "raises": bool}; the answer is the error that it raised as one line, or "". A block that
should raise is the body of a training function whose first lines are given here, as `train.py`.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import sys
import textwrap
import traceback
from pathlib import Path

BEFORE = """\
def train(job):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(32, 2, generator=generator), torch.randint(0, 3, (32,), generator=generator))
    model = job.model(nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = job.loader(data, batch_size=4, shuffle=True)
"""


def run(text: str, *, raises: bool) -> str:
    # Not `__main__`: its names must not be seen by the next block.
    names: dict[str, object] = {"__name__": "block"}
    source = BEFORE + textwrap.indent(text, "    ") + "\n" if raises else text
    linecache.cache["train.py"] = (len(source), None, source.splitlines(keepends=True), "train.py")
    try:
        if raises:
            exec("import torch, torch.nn.functional as F\nfrom torch import nn\n", names)
            exec("from torch.utils.data import TensorDataset\n", names)
        with contextlib.redirect_stderr(io.StringIO()):
            exec(compile(source, "train.py", "exec"), names)
            if raises:
                import isoscale

                isoscale.run(names["train"], workers=2)  # type: ignore[arg-type]
    except Exception as error:
        return str(error) if raises else traceback.format_exc()
    return ""


if __name__ == "__main__":
    requests, answers = map(Path, sys.argv[1:])
    found = [run(request["text"], raises=request["raises"]) for request in json.loads(requests.read_text())]
    answers.write_text(json.dumps(found))
