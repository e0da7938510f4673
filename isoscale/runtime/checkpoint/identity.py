"""Which job a checkpoint belongs to, and whether another start of it may go on from there. Torch-free.

The rule, for a start that differs from the checkpoint in:

    workers, seed, order, determinism, script arguments    refused: another job
    kinds                                                  refused if one was not declared when the job began
    threads, numeric profile, torch, fingerprint           refused, as they change bits; at level `off` a warning
    the script's contents                                  a warning: comments change too, and bugs get fixed

`accept_changes` makes warnings of the refusals of script arguments, threads, profile, torch and fingerprint, for those
who would rather go on than have the bits of an undisturbed run. The number of executors is not part of an identity.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from isoscale.errors import UserError
from isoscale.types import JobSpec, Level, Order

__all__ = ["Identity", "check_identity"]

_OPTIONS = {
    "workers": "--workers",
    "seed": "--seed",
    "order": "--order",
    "determinism": "--determinism",
    "script_args": "SCRIPT_ARGS",
    "threads": "--threads",
    "profile": "numeric profile",
    "torch": "torch",
    "fingerprint": "numeric fingerprint",
}
_ANOTHER_JOB = ("workers", "seed", "order", "determinism")
_OTHER_BITS = ("threads", "profile", "torch", "fingerprint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a job is, as far as its result depends on it."""

    workers: int
    seed: int
    order: Order
    determinism: Level
    threads: int
    kinds: tuple[str, ...]
    profile: str
    #: version of torch with its build, such as "2.13.0+cpu"
    torch: str
    #: of the script's bytes; "" if there is no such file
    script_sha256: str
    script_args: tuple[str, ...]
    #: what the executors computed; "" if the writer did not know it, and then it is not compared
    fingerprint: str = ""

    @classmethod
    def of(cls, spec: JobSpec, *, fingerprint: str = "") -> Identity:
        """The identity of a job that starts now, in this environment. Reads the script, if it is not kept."""
        return cls(
            workers=spec.workers,
            seed=spec.seed,
            order=spec.order,
            determinism=spec.determinism,
            threads=spec.threads,
            kinds=spec.kinds,
            profile=spec.profile,
            torch=metadata.version("torch"),
            script_sha256=spec.script_sha256 or _sha256(spec.script),
            script_args=spec.script_args,
            fingerprint=fingerprint,
        )


def check_identity(saved: Identity, now: Identity, *, accept_changes: bool = False) -> list[str]:
    """Warnings, one per difference that is let through. Raises UserError at the first that is not."""
    for name in _ANOTHER_JOB:
        if _differs(name, saved, now):
            raise _refusal(name, saved, now)
    foreign = [kind for kind in now.kinds if kind not in saved.kinds]
    if foreign:
        raise UserError(
            field="--kinds",
            value=",".join(now.kinds),
            problem=f"{', '.join(foreign)} was not declared when the job began (it was {','.join(saved.kinds)})",
            remedy="use the declared kinds, or begin anew with all of them in another --out",
        )
    warnings = []
    for name in ("script_args", *_OTHER_BITS):
        if not _differs(name, saved, now):
            continue
        if not accept_changes and not (name in _OTHER_BITS and now.determinism == "off"):
            raise _refusal(name, saved, now)
        warnings.append(f"{_OPTIONS[name]}={_text(now, name)}: the checkpoint was written with {_text(saved, name)}")
    if saved.script_sha256 != now.script_sha256:
        warnings.append("the script has changed since the checkpoint was written")
    return warnings


def _differs(name: str, saved: Identity, now: Identity) -> bool:
    if name == "fingerprint" and not (saved.fingerprint and now.fingerprint):
        return False
    return bool(getattr(saved, name) != getattr(now, name))


def _refusal(name: str, saved: Identity, now: Identity) -> UserError:
    before = _text(saved, name)
    remedy = "resume where it was written" if name in ("profile", "fingerprint") else f"resume with {before}"
    return UserError(
        field=_OPTIONS[name],
        value=_text(now, name),
        problem=f"the checkpoint was written with {before}",
        remedy=f"{remedy}, or begin anew in another --out",
    )


def _text(identity: Identity, name: str) -> str:
    value = getattr(identity, name)
    return (" ".join(value) if isinstance(value, tuple) else str(value)) or "none"


def _sha256(script: str) -> str:
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()
    except OSError:
        return ""
