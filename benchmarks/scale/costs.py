"""What a step, a seal, a change, a hand-over and a recovery would cost on 10 to 10,000 executors.

Computed, not measured: from the results of `constants` and `traffic` and the model in `network`; N = E logical workers,
one logged value.

    python -m benchmarks.scale.costs
"""

from __future__ import annotations

from typing import Any

from benchmarks.lib.result import save
from benchmarks.scale import network as n
from benchmarks.scale import options

RESULT, MINUTES = "scale_costs", 1

#: the transformer that other benchmarks train, and one of 250 million parameters; state is with momentum
GRADIENTS = {"26 MB": 26e6, "1 GB": 1e9}
#: a second of one job with a beat each, less what it takes to notice: five looks at all
TICKS_PER_S = 5
#: bytes of an `executor_speed` event, written for every fifth beat
SPEED_EVENT_BYTES, SPEED_EVERY = 190, 5


def row_of(c: n.Constants, executors: int, traffic: dict[str, Any]) -> dict[str, Any]:
    out = {name: n.coordinator_s(c, traffic[name]) for name in ("start", "scale out", "recover", "notice", "replace")}
    row: dict[str, Any] = {
        "executors": executors,
        "seal_s": n.seal_s(c, executors),
        "seal_two_level_s": n.seal_two_level_s(c, executors),
        "contexts_s": n.contexts_s(c, executors),
        "contexts_bytes": executors * c.context_bytes,
        "form_s": n.form_s(c, executors),
        "form_two_level_s": n.form_two_level_s(c, executors),
        "connections": executors - 1,
        "close_s": (executors - 1) * c.close_s,
        "change_coordinator_s": out["scale out"],
        "change_bytes": traffic["scale out"]["bytes_in"] + traffic["scale out"]["bytes_out"],
        "change_messages": traffic["scale out"]["messages_in"] + traffic["scale out"]["messages_out"],
        "recover_coordinator_s": out["recover"],
        "recover_s": out["recover"] + (executors - 1) * c.close_s + n.form_s(c, executors),
        "recover_two_level_s": _recover_two_level(c, executors, traffic["recover"]),
        "beats_share": executors * c.beat_s + TICKS_PER_S * c.watch_s[executors],
        "log_bytes_per_hour": executors * SPEED_EVENT_BYTES / SPEED_EVERY * 3600,
        "change_log_bytes": traffic["scale out"]["log_bytes"],
        "recover_log_bytes": traffic["recover"]["log_bytes"],
    }
    for name, size in GRADIENTS.items():
        row |= {
            f"ring_s {name}": n.ring_s(c, executors, size),
            f"direct_s {name}": n.direct_s(c, executors, size),
            f"two_level_s {name}": n.two_level_s(c, executors, size),
            f"hand_over_s {name}": n.hand_over_s(c, executors, 2 * size),
        }
    return {name: float(f"{v:.3g}") if isinstance(v, float) else v for name, v in row.items()}


def _recover_two_level(c: n.Constants, executors: int, traffic: dict[str, Any]) -> float:
    """Not built: one of about the square root of E coordinators tells its own group; orders name a group, not all."""
    group = n.around_root(executors)
    share = {name: traffic[name] * group / executors for name in ("messages_in", "messages_out", "decide_s")}
    share |= {"bytes_in": share["messages_in"] * 100, "bytes_out": traffic["bytes_out"] * (group / executors) ** 2}
    return n.coordinator_s(c, share) + 2 * group * c.close_s + n.form_two_level_s(c, executors)


def rows_from(constants: dict[str, Any], traffic: dict[str, Any]) -> list[dict[str, Any]]:
    c = n.Constants.of(constants)
    sizes = sorted(c.seal_s)
    found = {e: {row["section"]: row for row in traffic["rows"] if row["executors"] == e} for e in sizes}
    return [row_of(c, executors, found[executors]) for executors in sizes if found[executors]]


def main() -> None:
    chosen = options.parse(__doc__)
    rows = rows_from(options.kept("scale_constants"), options.kept("scale_traffic"))
    for row in rows:
        print(row)
    assumed = {"wire_s": n.WIRE_S, "wire_bytes_per_s": n.WIRE_BYTES_PER_S}
    save(RESULT, rows, chosen, assumed=assumed)


if __name__ == "__main__":
    main()
