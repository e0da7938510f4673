"""Do all executors hold the same state, and does the script keep all the state it has?

Executors compare digests in the seal of a step; where they differ, the first tensor or value that does is named.
Between steps the variables of the training function are searched for state that changes but is not kept. When that is
due is decided by `runtime.training.loop`.
"""

from __future__ import annotations

import json
import sys
from types import CodeType

from isoscale.core.reduction.exchange import Exchange
from isoscale.core.seal import Sealed, short_hash
from isoscale.core.unkept import VariableWatch, script_variables
from isoscale.errors import AuditError
from isoscale.runtime.training.state import JobState

__all__ = ["StateAudit"]


class StateAudit:
    """The audits of one job's state. Everything between two seals is about the same step."""

    def __init__(self, state: JobState, train_code: CodeType | None) -> None:
        self._state = state
        self._train_code = train_code
        self._watch: VariableWatch | None = None
        #: name and digest of everything that must be equal on all executors, for the next seal; "" if none is due
        self.digests = ""
        #: the digest to be told once all agree. Of the place of the audit: by then turns have changed buffers
        self.whole = ""

    def take(self, *, compare: bool, whole: bool) -> None:
        """Before a seal: the state as it is now, for a comparison of all executors, and as one digest."""
        self.digests = json.dumps(list(self._state.audited())) if compare else ""
        self.whole = self._state.digest() if whole else ""

    def check(self, sealed: Sealed, exchange: Exchange) -> None:
        """After the seal: raises AuditError if some executor's digests were others. All of them come here then."""
        if not sealed.differing:
            return
        mine = [(name, short_hash(value)) for name, value in json.loads(self.digests or "[]")]
        lists = [dict(json.loads(text)) for text in exchange.gather_text(json.dumps(mine))]
        names = list(dict.fromkeys(name for one in lists for name in one))
        first = next((n for n in names if len({one.get(n) for one in lists}) > 1), "the kept state")
        raise AuditError(
            tensor=first,
            executors=(0, *sealed.differing),
            remedy="something that is neither kept nor averaged decides what the script does outside turns: "
            "keep it (job.keep, job.state) or compute it from step.totals",
        )

    def check_variables(self, *, renew: bool) -> None:
        """Between two steps, under the training function: does a variable of the script hold state that has changed
        since the last call and is not kept? With `renew` the next call compares with what is there now."""
        if self._watch is None and not renew:
            return
        variables = script_variables(sys._getframe(), self._train_code)
        kept = list(self._state.tensors())
        name = self._watch.changed(variables, kept) if self._watch is not None else None
        self._watch = VariableWatch(variables, kept) if renew else None
        if name is not None:
            raise AuditError(
                tensor=f"variable {name!r}",
                executors=(),
                problem="changes from step to step but is not kept, so an executor that joins later would not have it",
                remedy=f"keep it: {name} = job.keep({name!r}, {name})"
                if hasattr(variables[name], "state_dict")
                else f"put it into job.state[{name!r}] and use it from there",
            )
