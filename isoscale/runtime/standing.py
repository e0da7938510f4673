"""What an executor may say, by its standing in the job: who holds none of its state cannot speak for it.

Against mistakes, such as a spare that runs another script, not against malice: everybody with the token is trusted.
"""

from __future__ import annotations

from isoscale.protocol import messages as m
from isoscale.runtime.rescale import Membership

__all__ = ["may_say"]


def may_say(membership: Membership, executor: int, message: m.FromExecutor) -> bool:
    if isinstance(message, m.Hello | m.Rejoin):
        return True
    one = membership.roster.get(executor)
    if one is None:
        return False
    match message:
        case m.Beat() | m.Held() | m.Prepared() | m.Switched() | m.Landed() | m.Notice() | m.Left() | m.Warned():
            return True  # of itself
        case m.Failed():
            return True
        case m.Broken():
            attempt = membership.attempt
            forming = attempt is not None and executor in attempt.members
            return forming or executor in membership.members or one.state == "member"
    return one.state in ("member", "leaving")
