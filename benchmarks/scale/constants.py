"""Constants of docs/scale.md that this machine can give: processor time per message, per connection, per member.

Processor times are the least of several, so that others on the machine disturb them little; latencies and rates between
threads suffer more.

    python -m benchmarks.scale.constants
"""

from __future__ import annotations

from typing import Any

from benchmarks.lib.result import save
from benchmarks.scale import options
from benchmarks.scale.groups import group_constants
from benchmarks.scale.processor import pack_rate, processor_row
from benchmarks.scale.socket_cost import socket_constants

RESULT, MINUTES = "scale_constants", 1


def rounded(value: Any) -> Any:
    """Three digits are more than these are worth."""
    if isinstance(value, float):
        return float(f"{value:.3g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    chosen = options.parse(__doc__)
    options.lift_limit()
    short = chosen.smoke or chosen.quick
    rows = []
    for size in options.sizes(chosen):
        rows.append(rounded(processor_row(size, 2 if short else 5)))
        print(rows[-1], flush=True)
    groups = rounded(group_constants(smoke=short))
    socket = rounded(socket_constants(smoke=short))
    pack = rounded(pack_rate(16 if short else 52))
    print(groups, socket, f"pack {pack:.3g} B/s", sep="\n")
    save(RESULT, rows, chosen, groups=groups, socket=socket, pack_bytes_per_s=pack)


if __name__ == "__main__":
    main()
