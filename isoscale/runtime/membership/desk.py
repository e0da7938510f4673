"""Where those who want something of a running job are served: clients, signals, and the job itself when it must end.

A job is stopped after a checkpoint at which the first executor waits, so no committed step is lost. The wish for one is
state of the coordinator: it is told again and again to whoever is the first executor, until it is fulfilled, and an
executor that does not hear it for some seconds forgets it. Pure: requests and news in, instructions out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.protocol.status import RequestStatus, Sort
from isoscale.runtime.membership.instructions import Ask, Emit, Instruction, Stop, Tell
from isoscale.runtime.membership.progress import Progress
from isoscale.runtime.membership.reclaim import Reclaim
from isoscale.runtime.membership.requests import Request, Requests, Standing
from isoscale.runtime.membership.scale_request import check_batch, check_scale, parse_target
from isoscale.runtime.membership.state_machine import Membership

__all__ = ["Desk"]

#: how often an executor is told that a checkpoint is wanted
_REMIND_S = 1.0
#: the exit code of `isoscale stop`, and of whatever else ends a job that goes on later
_STOPPED = 130
#: and of one that its service has paused: it is started again when it gets devices
_PAUSED = 75


class Desk:
    def __init__(self, membership: Membership, progress: Callable[[], Progress], go_on: str) -> None:
        """`progress`: how far the job is, and what of it is saved; `go_on`: the command by which it goes on later."""
        self._membership = membership
        self._progress = progress
        self._go_on = go_on
        self._requests = Requests()
        #: to whom the wish for a checkpoint was told, which, and when
        self._told: tuple[int, int] = (-1, -1)
        self._told_at = 0.0
        #: who was told of which request for a batch size, and when
        self._told_batch: tuple[tuple[int, ...], int, int] = ((), -1, -1)
        self._told_batch_at = 0.0
        #: by stop request that did not come from a client: its exit code
        self._codes: dict[int, int] = {}
        #: monotonic seconds at which the job ends, checkpoint or not, and whose wish that was
        self._deadline: tuple[float, str, int] | None = None
        self._has_ended = False
        #: all devices are wanted back by then, and whether the open step was given up for it
        self._reclaim: Reclaim | None = None
        self._is_abandoned = False
        #: seconds of training that were given up so that devices were free in time
        self.abandoned_s = 0.0
        #: nothing runs on devices that were taken away
        self.lets_go: Callable[[], bool] = lambda: True
        #: False as long as it is not clear who trains; what is asked for meanwhile is done then
        self.is_ready = True
        self._later: list[Callable[[], list[Instruction]]] = []

    def adopt(self, events: Iterable[Mapping[str, Any]], last: int, now: float) -> list[Instruction]:
        """Requests that an earlier coordinator left open. Its successor knows which devices are wanted; whoever started
        it wants the job to go on."""
        self._requests.last = max(self._requests.last, last)
        self._requests.adopt(events, now)
        for one in self._requests.open_of("scale", "migrate"):
            self._later.append(functools.partial(self._send_away, one))
        why = "another coordinator goes on with the job; ask again"
        return self._requests.answer_all("overtaken", why, "checkpoint", "stop", "grant", "pause")

    def _send_away(self, one: Request) -> list[Instruction]:
        goal = self._membership.goal
        return self._membership.on_request(goal.target, one.away, one.reason) if one.away else []

    # ---- somebody asks ----

    def on_request(self, request: m.FromClient, now: float) -> tuple[int | None, list[Instruction]]:
        """The id of what was accepted, None for a mere question. Raises UserError."""
        match request:
            case m.Scale():
                return self._scale(request, now)
            case m.TakeCheckpoint():
                return self._checkpoint(request.reason, now)
            case m.Stop():
                return self._stop(request.reason, now, at_once=request.now)
        return None, []

    def on_grant(
        self, target: DeviceSet, away: tuple[int, ...], reason: str, now: float, batch: int | None = None
    ) -> tuple[int, list[Instruction]]:
        """The service that runs the job has given it other devices; `away` are executors on those that it took. A batch
        size that the job cannot have costs a warning: the devices count in any case."""
        refused: list[Instruction] = []
        if batch is not None:
            try:
                self._check_batch(batch)
            except UserError as error:
                batch, refused = None, [Emit("warning", {"message": f"the grant's batch size is not used: {error}"})]
        one, instructions = self._accept("grant", now, target=str(target), away=away, reason=reason, batch=batch)
        instructions = [*refused, *instructions]
        self._wish()
        # Whoever took part in giving a target up may be wanted again.
        work = functools.partial(self._membership.on_request, target, away, reason)
        if not self.is_ready:
            self._later.append(work)
            return one.id, instructions
        return one.id, [*instructions, *work(), *self._look()]

    def on_granted_batch(self, size: int, reason: str, now: float) -> list[Instruction]:
        """The script has said which sizes it allows, and the grant by which this coordinator began names one."""
        if (wish := self._requests.wish()) is not None and wish.batch == size:
            return []
        try:
            self._check_batch(size)
        except UserError as error:
            return [Emit("warning", {"message": f"the grant's batch size is not used: {error}"})]
        _, instructions = self._accept("batch", now, reason=reason, batch=size)
        return [*instructions, *self._tell_wish(now)]

    def on_pause(self, reason: str, now: float, within_s: float | None = None) -> tuple[int, list[Instruction]]:
        """The service wants all devices: end after a checkpoint, by a certain time if one is given."""
        one, instructions = self._accept("pause", now, reason=reason)
        if within_s is not None:
            self._reclaim = Reclaim(now + within_s, writes=True)
        return one.id, [*instructions, *self._begin_stop(now), *self._keep_time(now)]

    def on_cancel(self, reason: str, now: float) -> tuple[int, list[Instruction]]:
        """The service ends the job for good."""
        return self._stop(reason, now, at_once=True)

    def on_ask(self, ask: Ask, now: float) -> list[Instruction]:
        """The job itself wants something. Once is enough."""
        if self._requests.open_of(ask.request):
            return []
        if ask.request == "checkpoint":
            return self._checkpoint(ask.reason, now)[1]
        return self._stop(ask.reason, now)[1]

    def on_signal(self, name: str, code: int, now: float, limit_s: float | None = None) -> list[Instruction]:
        """Ctrl-C or SIGTERM of the coordinator: the first one stops the job, within `limit_s` if that is given; the
        next one ends it at once."""
        if self._has_ended or self._is_over:
            return []
        if self._codes:
            return self._end(name, code)
        one, instructions = self._accept("stop", now, reason=name)
        self._codes[one.id] = code
        if limit_s is not None:
            self._deadline = (now + limit_s, name, code)
        return [*instructions, *self._begin_stop(now)]

    def _scale(self, request: m.Scale, now: float) -> tuple[int, list[Instruction]]:
        check_scale(request)
        membership = self._membership
        if request.batch is not None:
            self._check_batch(request.batch)
            if not request.target and not request.away:
                return self._rebatch(request, now)
        present = membership.goal.target
        target = parse_target(request.target, present, membership.spec) if request.target else present
        self._check_away(request.away)
        sort, wanted = ("scale", str(target)) if request.target else ("migrate", "")
        one, instructions = self._accept(
            sort, now, target=wanted, away=request.away, reason=request.reason, batch=request.batch
        )
        self._wish()
        work = functools.partial(membership.on_request, target, request.away, request.reason)
        if not self.is_ready:
            self._later.append(work)
            return one.id, instructions
        return one.id, [*instructions, *work(), *self._look()]

    # ---- the batch size ----

    def _rebatch(self, request: m.Scale, now: float) -> tuple[int, list[Instruction]]:
        one, instructions = self._accept("batch", now, reason=request.reason, batch=request.batch)
        return one.id, [*instructions, *self._tell_wish(now)]

    def _check_batch(self, size: int) -> None:
        membership = self._membership
        is_known = self.is_ready and membership.has_stepped
        check_batch(size, membership.spec, membership.declared, is_known=is_known)

    def _wish(self) -> Request | None:
        """The request for a batch size that counts; the next switch makes it, too."""
        one = self._requests.wish()
        self._membership.rebatch = None
        if one is not None and one.batch is not None:
            self._membership.rebatch = m.Rebatch(id=one.id, size=one.batch, reason=one.reason)
        return one

    def _tell_wish(self, now: float) -> list[Instruction]:
        """Tell all who train, now and then. Where devices are asked for too, it goes with their switch."""
        one, membership = self._wish(), self._membership
        if one is None or one.batch is None or not self.is_ready or membership.phase != "training":
            return []
        try:
            self._check_batch(one.batch)
        except UserError as error:
            answer = self._requests.answer(one.id, "refused", str(error))
            self._wish()
            return answer
        if one.request != "batch" and not _standing(membership, lets_go=True).is_reached:
            return []
        told = (membership.members, membership.current, one.id)
        if told == self._told_batch and now - self._told_batch_at < _REMIND_S:
            return []
        self._told_batch, self._told_batch_at = told, now
        assert membership.rebatch is not None
        return [Tell(executor, membership.rebatch) for executor in membership.members]

    def on_rebatched(self, message: m.Rebatched) -> list[Instruction]:
        """What became of a change of the batch size."""
        if not message.request or message.awaited:
            return []
        overtaken = message.error == "overtaken by the plan"
        if overtaken:
            instructions = self._requests.answer(message.request, "overtaken", "by the batch plan")
        else:
            instructions = self._requests.on_rebatched(message.request, message.step, message.new, message.error)
        self._wish()
        return [*instructions, *self._look()]

    def _check_away(self, away: tuple[int, ...]) -> None:
        # One that was told to go may take a moment until its process has ended.
        there = {one.executor: None for one in self._membership.roster if one.state != "leaving"}
        for executor in away if self.is_ready else ():
            if executor not in there:
                remedy = f"give some of those that are: {', '.join(map(str, there)) or 'none'}"
                raise UserError(field="executor", value=executor, problem="is not there", remedy=remedy)

    def _checkpoint(self, reason: str, now: float) -> tuple[int, list[Instruction]]:
        progress = self._progress()
        if not progress.is_training:
            problem, remedy = ("training has not begun", "ask again when it has")
            if self._is_over:
                problem, remedy = ("training is over", "see final.pt")
            raise UserError(field="checkpoint", value=reason, problem=problem, remedy=remedy)
        one, instructions = self._accept("checkpoint", now, reason=reason)
        if 0 < progress.step <= progress.saved:
            instructions += self._requests.answer(one.id, "done", f"step {progress.saved}, already there")
        return one.id, [*instructions, *self._remind(now)]

    def _stop(self, reason: str, now: float, *, at_once: bool = False) -> tuple[int, list[Instruction]]:
        one, instructions = self._accept("stop", now, reason=reason)
        return one.id, [*instructions, *(self._end_at_once(one) if at_once else self._begin_stop(now))]

    def _accept(self, sort: Any, now: float, **fields: Any) -> tuple[Request, list[Instruction]]:
        return self._requests.accept(sort, step=self._progress().step, now=now, **fields)

    # ---- time, and what the executors do ----

    def tick(self, now: float) -> list[Instruction]:
        """Several times a second."""
        if self._has_ended or self._is_over:
            return []
        if self._deadline is not None and now >= self._deadline[0]:
            return self._end(*self._deadline[1:])
        if not self.is_ready:
            return self._keep_time(now)
        later, self._later = self._later, []
        instructions = [instruction for work in later for instruction in work()]
        if self._requests.open_of(*_ENDS) and self._progress().is_saved:
            return [*instructions, *self._stopped()]
        return [*instructions, *self._look(), *self._tell_wish(now), *self._remind(now), *self._keep_time(now)]

    def _keep_time(self, now: float) -> list[Instruction]:
        """All devices are wanted back by a certain time: what does not end by then is given up."""
        if self._reclaim is None or self._has_ended or self._is_over or not self._requests.open_of("pause"):
            return []
        progress = self._progress()
        if self._reclaim.is_over(now):
            self.abandoned_s += progress.since_step_s
            return self._stopped(f", {progress.lost}") if progress.step > progress.saved else self._stopped()
        if self._is_abandoned or not self._reclaim.is_hopeless(progress, now):
            return []
        self._is_abandoned = True
        if progress.step <= progress.saved:
            self.abandoned_s += progress.since_step_s
            return self._stopped()
        newest = max(one.id for one in self._requests.open_of("pause"))
        return [Tell(executor, m.Abandon(id=newest)) for executor in self._membership.members[:1]]

    def on_checkpoint(self, executor: int, message: m.CheckpointWritten, path: str) -> list[Instruction]:
        """It has its name now. At a final one this executor waits, and so do all."""
        instructions = self._requests.on_checkpoint(message.step, path)
        if message.final:
            wanted = bool(self._requests.open_of(*_ENDS))
            if wanted and self._is_abandoned:
                self.abandoned_s += self._progress().since_step_s
            instructions += self._stopped(f", checkpoint {path}") if wanted else [Tell(executor, m.GoOn())]
        return instructions

    def on_no_checkpoint(self, executor: int, reason: str) -> list[Instruction]:
        """It cannot be written, or cannot be given its name: the job trains on."""
        if self._reclaim is not None and self._requests.open_of("pause"):
            return []  # the devices go all the same, when the time is over
        if self._requests.open_of(*_ENDS):
            way_out = "isoscale stop --now, or Ctrl-C, ends it without a checkpoint"
            message = f"the job is not stopped but trains on, since its checkpoint failed; {way_out}"
            instructions: list[Instruction] = [Emit("warning", {"message": message})]
            instructions += self._membership.on_stopping(False)
        else:
            instructions = []
        answers = self._requests.answer_all("failed", reason, "checkpoint", *_ENDS)
        return [*answers, *instructions, Tell(executor, m.GoOn())]

    def close(self, how: str) -> list[Instruction]:
        """The job has ended: whatever is open will not come."""
        self._has_ended = True
        return self._requests.answer_all("ended", how)

    def _look(self) -> list[Instruction]:
        return self._requests.on_standing(_standing(self._membership, lets_go=self.lets_go()))

    def _remind(self, now: float) -> list[Instruction]:
        """Tell whoever is the first executor now that a checkpoint is wanted."""
        wanted = self._requests.open_of("checkpoint", *_ENDS) if self.is_ready else []
        if not wanted or not self._membership.members:
            return []
        newest = max(one.id for one in wanted)
        told = (self._membership.members[0], newest)
        if told == self._told and now - self._told_at < _REMIND_S:
            return []
        self._told, self._told_at = told, now
        final = any(one.request in _ENDS for one in wanted)
        return [Tell(told[0], m.TakeCheckpoint(id=newest, final=final))]

    # ---- the end ----

    @property
    def _is_over(self) -> bool:
        """It has come to its end by itself, and will say so: whatever is open is answered by that."""
        return self._membership.phase in ("done", "failed")

    def _begin_stop(self, now: float) -> list[Instruction]:
        progress = self._progress()
        if self._is_over:
            return []
        if self.is_ready and progress.is_saved:
            if self._reclaim is not None and progress.is_training:
                self.abandoned_s += progress.since_step_s
            return self._stopped()
        again = "Ctrl-C again" if any(one.reason == "Ctrl-C" for one in self._requests.open_of("stop")) else "Ctrl-C"
        told = f"stopping after a checkpoint, {self._awaited('stop')}; {again} ends it at once: {progress.lost}"
        news = Emit("stopping", {"step": progress.step, "saved": progress.saved, "message": told})
        return [news, *self._membership.on_stopping(True), *self._remind(now)]

    def _stopped(self, path: str = "") -> list[Instruction]:
        """Nothing that was committed is lost."""
        progress, wishes = self._progress(), self._requests.open_of(*_ENDS)
        paused = all(one.request == "pause" for one in wishes)
        first, code = wishes[0], max((self._codes.get(one.id, _STOPPED) for one in wishes), default=_STOPPED)
        saved = f"the checkpoint of step {progress.saved}" if progress.saved else "the beginning"
        detail = f"step {progress.step}{path or f', {saved} holds all of it'}"
        if not progress.step:
            detail = "no step was trained"
        if self.abandoned_s:
            detail += f"; {self.abandoned_s:.1f} s of the open step are given up"
        instructions = self._requests.answer_all("done", detail, *_ENDS)
        self._has_ended = True
        where = f"at step {progress.step}, after a checkpoint" if progress.step else "before the first step"
        how = _HOW.get(first.reason)
        told = f"{how} {where}" if how else f"stopped: {first.reason} ({where})"
        if paused:
            where = f"at step {progress.step}: {progress.lost}" if progress.step > progress.saved else where
            told = f"paused by its service {where}"
            return [*instructions, Stop(told=told, exit_code=_PAUSED, saved=progress.saved, paused=True)]
        return [*instructions, Stop(told=f"{told}; {self._go_on} goes on", exit_code=code, saved=progress.saved)]

    def _end_at_once(self, one: Request) -> list[Instruction]:
        detail = f"without a checkpoint: {self._progress().lost}"
        return [*self._requests.answer(one.id, "done", detail), *self._leave("ended on request")]

    def _end(self, name: str, code: int) -> list[Instruction]:
        """Somebody cannot wait any longer."""
        lost = self._progress().lost
        answers = self._requests.answer_all("failed", f"ended by {name} without a checkpoint: {lost}", "stop")
        return [*answers, *self._leave(f"ended by {name}", code)]

    def _leave(self, how: str, code: int = _STOPPED) -> list[Instruction]:
        progress = self._progress()
        self._has_ended = True
        told = f"{how} at step {progress.step} without a checkpoint: {progress.lost}; {self._go_on} goes on"
        return [Stop(told=told, exit_code=code, saved=progress.saved)]

    # ---- what is shown ----

    def shown(self, now: float) -> list[RequestStatus]:
        """Open requests and the last answers, for `status`; of open ones also what they wait for."""
        shown = self._requests.shown(now)
        for one in shown:
            if one["outcome"] is None:
                one["waits_for"] = self._awaited(one["request"])
        return shown

    def _awaited(self, request: str) -> str:
        membership, progress = self._membership, self._progress()
        if not progress.is_training:
            return "waiting for executors to start"
        if request == "batch":
            return f"waiting for step {progress.step + 1} to end"
        if request in ("scale", "migrate", "grant"):
            return "waiting for newcomers" if membership.attempt is None else "going over to others"
        first = membership.roster.get(membership.members[0]) if membership.members else None
        beat = first.beat if first is not None else None
        # The code after its inner loop is part of a step.
        is_after = beat is not None and beat.place == "outside" and beat.step >= progress.step > 0
        return f"waiting for step {progress.step + (not is_after)} to end"


#: requests that end the job after a checkpoint
_ENDS: tuple[Sort, ...] = ("stop", "pause")
#: how a stop is told of, by the reason of the wish
_HOW = {"asked": "stopped on request", "Ctrl-C": "stopped by Ctrl-C", "SIGTERM": "stopped by SIGTERM"}


def _standing(membership: Membership, *, lets_go: bool) -> Standing:
    present = [one for e in membership.members if (one := membership.roster.get(e)) is not None]
    return Standing(
        members=membership.members,
        kinds=tuple(sorted(one.kind for one in present)),
        settled=membership.phase == "training" and membership.sealed and membership.attempt is None,
        target=str(membership.goal.target),
        wanted=tuple(sorted(membership.goal.devices)),
        set_aside=tuple(one.executor for one in membership.goal.aside),
        refused=membership.goal.refused,
        lets_go=lets_go,
    )
