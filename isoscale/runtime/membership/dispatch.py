"""What executors say to the state machine, and who may say what: whoever holds none of the job's state cannot speak
for it.

Against mistakes, such as a spare that runs another script, not against malice: everybody with the token is trusted.
"""

from __future__ import annotations

from isoscale.protocol import messages as m
from isoscale.runtime.membership.instructions import Instruction
from isoscale.runtime.membership.state_machine import Membership

__all__ = ["dispatch", "may_say"]


def may_say(membership: Membership, executor: int, message: m.FromExecutor) -> bool:
    if isinstance(message, m.Hello | m.Rejoin):
        return True
    one = membership.roster.get(executor)
    if one is None:
        return False
    match message:
        case m.Beat() | m.Held() | m.Prepared() | m.Switched() | m.Received() | m.Landed() | m.Notice() | m.Left():
            return True  # of itself
        case m.Warned():
            return True
        case m.Failed() | m.Uses():
            return True
        case m.Broken():
            if one.state == "member":
                return True
            attempt = membership.attempt
            return (attempt is not None and executor in attempt.members) or executor in membership.members
    return one.state in ("member", "leaving")


def dispatch(membership: Membership, executor: int, message: m.FromExecutor, now: float) -> list[Instruction]:
    """Where an executor is in a change, or at the end. What else it may say does not concern the state machine."""
    match message:
        case m.Held():
            return membership.on_held(executor)
        case m.Prepared():
            return membership.on_prepared(executor, message.generation)
        case m.Switched():
            return membership.on_switched(executor, message)
        case m.Received():
            return membership.on_received(executor, message.generation)
        case m.Landed():
            return membership.on_landed(executor, message.generation)
        case m.Sealed():
            return membership.on_sealed(message.generation, message.step, message.members, message.shares)
        case m.Broken():
            return membership.on_broken(executor, message.generation, message.reason, now, message.unreachable)
        case m.Notice():
            return membership.on_notice(executor, message.reason)
        case m.Suspect():
            return membership.on_suspect(message.executor, message.reason)
        case m.Finished():
            return membership.on_finished(message)
        case m.Failed():
            return membership.on_failed(message)
    return []
