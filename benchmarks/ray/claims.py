"""isoscale on Ray beside Ray Train: its part of docs/claims.md."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict


def against_ray_train(result: Result) -> Iterator[Row]:
    for target in result["targets"]:
        yield target["what"], target["target"], f"{target['value']:.3f}", verdict(target["meets"])
    for row in result["rows"]:
        if "failed" in row:
            yield f"{row['system']}, {row['scenario']}, {row['model']}", "", "", "did not come through"
        elif "gap_s" in row:
            bits = "the digest of" if row.get("same_digest") else "not the digest of"
            yield (
                f"{row['system']}, {row['scenario']}, {row['model']}",
                "",
                f"gap {row['gap_s']:.2f} s, a step {row['step_before_s']:.3f} s; {row['lost_steps']} committed steps "
                f"lost; {bits} the undisturbed run",
                "",
            )


PARTS: Parts = {"against_ray_train": against_ray_train}
