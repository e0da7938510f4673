"""The parts of the benchmarks over recipes that need no processes: plans, what is kept, plain accumulation, tables."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.recipes import claims, kept, page, proof, quality, sides, step_cost
from isoscale.recipes.balanced.schedule import Schedule
from isoscale.recipes.catalogue import RECIPES, Recipe, find

# ---- proofs ----


def test_every_recipe_goes_through_all_sizes_at_both_levels_and_is_killed() -> None:
    for recipe in RECIPES:
        found = {one.part: one for one in proof.proofs(recipe)[:3]}
        assert set(found) == {"elastic", "heterogeneous", "chaos"}
        assert ("0:1,2:3,4:2,6:4" in found["elastic"].asked) == (not recipe.own_state_at)
        assert "heterogeneous" in found["heterogeneous"].asked
        assert found["elastic"].asked[-len(recipe.proof) :] == recipe.proof


def test_a_variant_is_proven_in_all_parts_too() -> None:
    found = {one.part: one for one in proof.proofs(find("mcmisp"))}
    for part in ("elastic", "heterogeneous", "chaos"):
        assert found[f"{part} --backbone electra"].asked == (*found[part].asked, "--backbone", "electra")
    rows = [row("mcmisp", one, equal=True, digest="d", seconds=1.0) for one in found]
    assert proof.not_proven(rows) == []
    rows[-1]["digest"] = "e"
    assert proof.not_proven(rows) == ["mcmisp --backbone electra (chaos is not stock DDP)"]
    assert proof.table(rows[:3], ["mcmisp"]).splitlines()[-1].split() == [
        *("mcmisp", "--backbone", "electra", "-", "-", "-", "0")
    ]


@pytest.mark.parametrize("recipe", [one for one in RECIPES if one.own_state_at], ids=lambda recipe: recipe.name)
def test_own_state_changes_after_the_step_that_executors_change_around(recipe: Recipe) -> None:
    """And is not in the process of changing at every step, or there would be no before and after."""
    given = dict(zip(recipe.proof[::2], recipe.proof[1::2], strict=True))
    at = recipe.own_state_at
    if recipe.name == "mcmisp":
        every = int(given["--merge-every"])
        changes = [step % every == 0 for step in (at - 1, at, at + 1)]
        assert int(given["--warmup"]) < at, "counts are used when executors change"
    else:
        begin, every, stages = (int(given[f"--prune-{name}"]) for name in ("begin", "every", "stages"))
        schedule = Schedule(target=Fraction(1, 2), begin=begin, every=every, stages=stages)
        changes = [schedule.stage(step) != schedule.stage(step - 1) for step in (at - 1, at, at + 1)]
    assert changes == [False, True, False]


def test_recipes_with_state_of_their_own_are_among_them() -> None:
    assert {recipe.name for recipe in RECIPES if recipe.own_state_at} == {"mcmisp", "balanced_lstm", "balanced_cnn"}


def test_executors_change_before_at_and_after_a_step() -> None:
    recipe = dataclasses.replace(find("digits"), own_state_at=5)
    elastic, mixed, _ = proof.proofs(recipe)
    assert "0:1,4:3,5:2,6:4" in elastic.asked
    assert "0:cpu*1,4:cpu*1+cpu-avx2*1+cpu-sse*1,5:cpu-avx2*1+cpu-sse*1,6:cpu*1+cpu-avx2*2+cpu-sse*1" in mixed.asked
    with pytest.raises(ValueError, match="no room"):
        proof.around(1)


@pytest.mark.parametrize(
    ("code", "sizes", "problem"),
    [(0, [1, 3, 2, 4], None), (1, [1, 3, 2, 4], "bits differ"), (0, [1, 3, 2], "went through [1, 3, 2] executors")],
)
def test_a_proof_holds_only_if_bits_agree_and_the_plan_was_carried_out(
    code: int, sizes: list[int], problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [{"event": "generation", "members": list(range(size))} for size in sizes]
    events += [{"event": "step", "step": 8}, {"event": "finished", "step": 8, "digest": "d"}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps({"t": 0.0, **event}) + "\n" for event in events))
    done = subprocess.CompletedProcess([], code, "bits differ", "")
    monkeypatch.setattr(proof.subprocess, "run", lambda *args, **options: done)
    found = proof.verified(find("digits"), [], tmp_path)
    assert found["equal"] == (problem is None)
    assert (problem or "") in found.get("problem", "")
    assert (found["steps"], found["digest"]) == (8, "d")


def test_a_killed_run_must_end_where_stock_ddp_ended() -> None:
    not_proven = proof.not_proven
    parts = {"elastic": "d", "heterogeneous": "e", "chaos": "d"}
    rows = [row("digits", part, equal=True, digest=digest) for part, digest in parts.items()]
    assert not_proven(rows) == []
    assert len(not_proven([*rows[:2], row("digits", "chaos", equal=True, digest="f")])) == 1
    assert not_proven([*rows[:2], row("digits", "chaos", equal=False, digest="")]) == ["digits (chaos)"]


# ---- what is kept ----


def row(recipe: str, part: str = "elastic", **more: Any) -> dict[str, Any]:
    return {"recipe": recipe, "part": part, "code": "c", **more}


def test_results_of_two_processes_end_up_in_one_file_in_the_catalogues_order(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    first, second = kept.Kept("recipes_proof", path), kept.Kept("recipes_proof", path)
    second.put(row("resnet", value=1))
    first.put(row("digits", value=2))
    second.put(row("resnet", value=3))
    written = json.loads(path.read_text())["rows"]
    assert [(one["recipe"], one["value"]) for one in written] == [("digits", 2), ("resnet", 3)]
    assert kept.Kept("recipes_proof", path).find("resnet", "elastic", "c")["value"] == 3
    assert kept.Kept("recipes_proof", path).find("resnet", "elastic", "other code") is None


def test_a_row_of_a_recipe_that_is_gone_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"rows": [row("no such recipe"), row("digits")]}))
    assert [one["recipe"] for one in kept.Kept("recipes_proof", path).rows()] == ["digits"]


def test_code_covers_what_a_script_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {path.name for path in kept._sources(kept.path_of(find("resnet")))}
    assert names == {"resnet.py", "images.py"}
    monkeypatch.setattr(kept, "path_of", lambda recipe: tmp_path / "script.py")
    (tmp_path / "script.py").write_text("a = 1\n")
    before = kept.code_of(find("digits"), ("--plan",))
    assert kept.code_of(find("digits"), ("--other",)) != before
    (tmp_path / "script.py").write_text("a = 2\n")
    assert kept.code_of(find("digits"), ("--plan",)) != before


# ---- plain accumulation ----


def tiny_training(ends: list[torch.Tensor]) -> Any:
    def train(job: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        data = TensorDataset(*(torch.randn(24, size, generator=generator) for size in (3, 1)))
        model = job.model(nn.Linear(3, 1))
        optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in job.epochs(1):
            for step in job.loader(data, batch_size=4):
                for x, y in step:
                    loss = (model(x) - y).square().mean()
                    loss.backward()
                    step.log(loss=loss)
                    step.sum(seen=len(x))
                optimizer.step()
                optimizer.zero_grad()
                assert step.totals["seen"] == 8
                ends.append(model.weight.detach().clone())

    return train


def test_plain_accumulation_takes_the_same_steps() -> None:
    """Not the same bits (another order of sums), and the same samples in every step."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, start in {"plain": sides.accumulating, "isoscale": sides.under_isoscale}.items():
        training = start(tiny_training(found.setdefault(name, [])), 2)
        training()
        assert len(found[name]) == 1  # and then it rests
        training()
        training.close()
    assert len(found["plain"]) == 2
    for plain, ours in zip(found["plain"], found["isoscale"], strict=True):
        torch.testing.assert_close(plain, ours)
    assert not torch.equal(found["plain"][0], found["plain"][1])


def test_trainings_of_one_process_take_turns_and_leave_nothing_behind() -> None:
    backward = torch.Tensor.backward
    found: list[list[torch.Tensor]] = [[], [], []]
    starts = (sides.accumulating, sides.under_isoscale, sides.accumulating)
    trainings = [start(tiny_training(ends), 2) for start, ends in zip(starts, found, strict=True)]
    for _ in range(2):
        for training in trainings:
            training()
    for training in trainings:
        training.close()
    assert [len(ends) for ends in found] == [2, 2, 2]
    assert torch.equal(found[0][1], found[2][1])
    assert torch.Tensor.backward is backward


def test_a_training_that_ends_says_so() -> None:
    training = sides.accumulating(tiny_training([]), 2)
    for _ in range(2):
        training()
    with pytest.raises(RuntimeError, match="ended"):
        training()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_recipe_can_be_measured(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps under isoscale and two of plain accumulation, by the script itself."""
    for package in recipe.needs:
        pytest.importorskip(package)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sides, "_SLOW", {})
    train = sides.training_function(recipe, recipe.proof)
    for start in (sides.accumulating, sides.under_isoscale):
        training = start(train, 2)
        training()
        training()
        training.close()


def test_levels_are_compared_with_off(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"a": 0.1, "control": 0.101, "elastic": 0.11, "avx2": 0.12, "sse": 0.2}
    assert [one.name for one in step_cost.configurations()] == list(times)
    asked: list[str] = []

    def steps(name: str, count: int) -> list[float]:
        asked.append(name)
        # The first step after a rest is slow and must not count.
        return [9.0, *[times[name]] * (count - 1)]

    fake = {name: functools.partial(steps, name) for name in times}
    monkeypatch.setattr(step_cost, "level_processes", lambda recipe, wanted: contextlib.nullcontext(fake))
    found = step_cost.levels(find("digits"), 1.0)
    assert [found[name]["ratio"] for name in ("elastic", "avx2", "sse")] == [1.1, 1.2, 2.0]
    assert (found["off_ms"], found["control"], found["half_width"]) == (100.0, 1.01, 0.01)
    assert len(set(map(tuple, zip(*[iter(asked[5:])] * 5, strict=True)))) > 1, "rounds come in different orders"


# ---- tables ----


def switch_row(ratio: float, ms: float) -> dict[str, Any]:
    sides = {"a_ms": ms, "b_ms": ms * ratio, "half_width": 0.01}
    return {"switch": [{"k": k, "ratio": ratio, **sides} for k in (1, 2, 4, 8)]}


def levels_row(ratio: float) -> dict[str, Any]:
    return {"half_width": 0.01, **{name: {"ratio": ratio, "ms": 1.0} for name in ("elastic", "avx2", "sse")}}


@pytest.mark.parametrize(("ratio", "ms", "is_marked"), [(1.04, 60, True), (1.029, 60, False), (1.5, 20, False)])
def test_only_long_steps_over_the_bound_are_marked(ratio: float, ms: float, is_marked: bool) -> None:
    table = page.speed({"resnet": {"switch": switch_row(ratio, ms), "levels": levels_row(1.0)}})
    line = table.splitlines()[-1]
    assert line.startswith("| resnet | ")
    assert ("**" in line) == is_marked
    assert line.count("|") == table.splitlines()[0].count("|")


def test_costs_above_the_published_ones_are_marked() -> None:
    speed = page.speed
    figures = find("resnet").paper_gpu
    assert figures is not None
    for ratio, marks in ((max(figures.heterogeneous) + 0.1, 2), (max(figures.heterogeneous), 0)):
        line = speed({"resnet": {"switch": switch_row(1, 9), "levels": levels_row(ratio)}}).splitlines()[-1]
        assert line.count("(above)") == marks


def test_quality_is_judged_by_the_direction_of_the_metric() -> None:
    judged = quality.judged
    up: Recipe = dataclasses.replace(find("digits"), better="higher")
    down: Recipe = dataclasses.replace(find("digits"), better="lower")
    runs = [{"value": value, "baseline": 5.0} for value in (6.0, 7.0, 8.0)]
    assert judged(up, runs) | {"margin": 2.0, "learns": True, "spread": 1.0} == judged(up, runs)
    assert judged(down, runs) | {"margin": -2.0, "learns": False} == judged(down, runs)
    assert not judged(up, [*runs, {"value": 5.0, "baseline": 5.0}])["learns"]


# ---- claims ----


def test_claims_count_what_is_missing_as_missed() -> None:
    rows = [row(one.name, proven.part, equal=True, seconds=10.0) for one in RECIPES for proven in proof.proofs(one)]
    assert [claim[3] for claim in claims.recipes_proof({"rows": rows})] == ["met", "met"]
    for wrong in (rows[1:], [{**rows[0], "equal": False}, *rows[1:]]):
        assert next(claims.recipes_proof({"rows": wrong}))[3] == "**missed**"
    slow = [{**one, "seconds": 600.0} for one in rows]
    assert [claim[3] for claim in claims.recipes_proof({"rows": slow})] == ["met", "**missed**"]


def test_claims_of_switches_are_of_long_steps_only() -> None:
    rows = [row("resnet", "switch", **switch_row(1.04, 60.0)), row("digits", "switch", **switch_row(1.5, 20.0))]
    rows.append(row("resnet", "levels", **levels_row(1.5)))
    found = list(claims.recipes_table({"rows": rows}))
    assert [(claim[0].split(":")[0], claim[3]) for claim in found] == [
        ("resnet", "**missed**"),
        ("resnet", "met"),
        ("resnet", "met"),
    ]
