"""The pure parts of the McMisP study: when a curve reaches a value, intervals, pairs, who is held out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.recipes.mcmisp import summary as study
from benchmarks.recipes.mcmisp import table
from benchmarks.recipes.mcmisp import text as texts


def test_a_value_is_reached_between_examinations() -> None:
    every = study.EXAMINE_EVERY
    assert study.reached([4.0, 3.0, 2.0], 2.5) == 2.5 * every
    assert study.reached([4.0, 3.0, 3.5, 2.0], 3.0) == 2 * every
    assert study.reached([4.0, 3.0], 5.0) == every
    assert study.reached([4.0, 3.0], 2.9) is None


def test_the_interval_is_students() -> None:
    found = study.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found["mean"] == 3.0
    assert found["half_width"] == pytest.approx(2.776 * 2.5**0.5 / 5**0.5, abs=1e-3)
    assert study.interval([2.0])["half_width"] is None


def test_arms_are_compared_seed_by_seed() -> None:
    runs = {}
    for seed in (0, 1, 2):
        for weight, gain in ((0.0, 0.0), (study.GUIDANCE["bert"], 0.25)):
            curve = [0.0, 0.125 * seed + gain]
            runs[study.key("planted", "bert", weight, seed)] = {"cue_accuracy": curve, "accuracy": 0.5}
    del runs[study.key("planted", "bert", 0.0, 2)]  # half a pair is none
    rows = {row["measure"]: row for row in study.summary(runs)}
    assert set(rows) == {"cue_accuracy", "cue_accuracy_so_far", "cue_accuracy_midway", "accuracy"}
    difference = rows["cue_accuracy"]["difference"]
    assert (difference["mean"], difference["half_width"], difference["n"]) == (0.25, 0.0, 2)
    assert rows["cue_accuracy"]["plain"]["mean"] == 0.0625
    assert rows["cue_accuracy_so_far"]["difference"]["mean"] == 0.125


def test_midway_is_where_the_plain_arm_says() -> None:
    runs = {}
    for seed, plain, guided in ((0, [0.0, 0.5, 1.0], [0.5, 0.75, 1.0]), (1, [0.0, 0.25, 1.0], [0.5, 0.75, 1.0])):
        runs[study.key("planted", "bert", 0.0, seed)] = {"cue_accuracy": plain, "accuracy": 1.0}
        runs[study.key("planted", "bert", study.GUIDANCE["bert"], seed)] = {"cue_accuracy": guided, "accuracy": 1.0}
    row = next(row for row in study.summary(runs) if row["measure"] == "cue_accuracy_midway")
    assert row["step"] == 2 * study.EXAMINE_EVERY
    assert (row["plain"]["mean"], row["guided"]["mean"], row["difference"]["mean"]) == (0.375, 0.75, 0.375)


def text_runs(backbone: str, *curves: tuple[list[float], list[float]]) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}
    for seed, (plain, guided) in enumerate(curves):
        more = {"party_of_address": 0.5, "trivial": {"party": 0.625}}
        runs[study.key("text", backbone, 0.0, seed)] = {"validation_loss": plain, "party": 0.5, **more}
        weight = study.GUIDANCE[backbone]
        runs[study.key("text", backbone, weight, seed)] = {"validation_loss": guided, "party": 0.75, **more}
    return runs


def test_steps_to_the_plain_loss_say_who_never_reached_it() -> None:
    runs = text_runs(
        "electra",
        ([3.0, 2.0], [3.0, 1.0]),
        ([3.0, 2.0], [3.0, 2.9]),
        ([3.0, 1.0, 2.0], [3.0, 2.5, 2.0]),  # plain was at its last loss before
    )
    row = next(row for row in study.summary(runs) if row["measure"] == "steps_to_plain_loss")
    every = study.EXAMINE_EVERY
    assert row["guided_steps"] == [1.5 * every, None, 3 * every]
    assert row["plain_steps"] == [2 * every, 2 * every, 1.5 * every]
    assert (row["reached"], row["of"]) == (2, 3)
    assert row["difference"]["mean"] == 0.5 * every
    assert row["plain"]["n"] == row["guided"]["n"] == row["difference"]["n"] == 2


def test_a_verdict_needs_the_whole_interval() -> None:
    assert table.verdict({"mean": 0.2, "half_width": 0.1}, 1) == "better"
    assert table.verdict({"mean": 0.2, "half_width": 0.1}, -1) == "worse"
    assert table.verdict({"mean": -0.2, "half_width": 0.3}, -1) == "no difference shown"
    assert table.verdict({"mean": -0.2, "half_width": None}, -1) == "too few seeds"


def test_the_table_has_a_line_per_measure() -> None:
    runs = text_runs("bert", ([3.0, 2.0], [3.0, 1.0]), ([3.0, 2.0], [3.0, 2.9]))
    lines = table.mcmisp(study.summary(runs)).splitlines()[2:]
    assert len(lines) == 4
    assert lines[1].endswith("| 2 | 0.625 | 0.500 +- 0.000 | 0.750 +- 0.000 | 0.250 +- 0.000 | better |")
    every = study.EXAMINE_EVERY
    numbers = [f"{value:.0f}" for value in (2 * every, 1.5 * every, -0.5 * every)]
    assert lines[3].endswith(f"| 1 of 2 reach it |  | {' | '.join(numbers)} | not always reached |")


def test_if_nobody_reaches_it_the_table_says_so() -> None:
    runs = text_runs("bert", ([3.0, 2.0], [3.0, 2.5]))
    assert (
        table.mcmisp(study.summary(runs))
        .splitlines()[-1]
        .endswith("| 0 of 1 reach it |  |  |  |  | not always reached |")
    )


def test_held_out_addresses_are_nowhere_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "VALIDATION_ROWS", 64)
    monkeypatch.setattr(texts, "TEST_PASSAGES", 8)
    for i in range(10):
        party = "d" if i % 2 else "r"
        only = f"only{chr(ord('a') + i)}"
        (tmp_path / f"{1900 + i}_somebody_{party}.txt").write_text(
            f"{only} the people of the states " * 4 * texts.ROWS * texts.LENGTH
        )
    (tmp_path / "1850_nobody_w.txt").write_text("the people of the states " * 4 * texts.ROWS * texts.LENGTH)
    data = texts.addresses(tmp_path)
    # By year the fifth and the tenth are held out: 1903 and 1908, whose own words are therefore unknown.
    unknown = 1
    assert (data.validation == unknown).any()
    assert not (data.train == unknown).any()
    assert not (data.party_train.rows == unknown).any()
    assert (data.party_test.rows == unknown).any((1, 2)).all()
    assert set(data.party_test.party.tolist()) == {0.0, 1.0}
    assert data.party_train.party.double().mean() == 0.5
    assert len(data.validation) == 64
    assert data.party_test.majority == {"party": 0.5, "party_of_address": 0.5}


def test_fine_tuning_learns_what_can_be_learned() -> None:
    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)

        def features(self, words: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.embed(words)
            return out

    party = torch.arange(64) % 2
    rows = (5 + party)[:, None, None].expand(64, texts.ROWS, texts.LENGTH)
    passages = texts.Passages(
        rows, party.float(), torch.arange(64) // 4 * 2 + party
    )  # all of one address are of one party
    data = texts.Addresses(10, rows[0], rows[0], passages, passages)
    torch.manual_seed(0)
    found = texts.fine_tune(Tokens(), 4, data, steps=100, seed=0, rate=0.05)
    assert found == {"party": 1.0, "party_of_address": 1.0}


def test_an_address_is_judged_by_all_its_passages() -> None:
    address = torch.tensor([7, 7, 7, 3, 9, 9])
    party = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    passages = texts.Passages(torch.zeros(6, texts.ROWS, texts.LENGTH), party, address)
    assert passages.by_address(torch.tensor([1.0, -2.0, 4.0, -1.0, 0.5, 1.5])).tolist() == [-1.0, 1.0, 1.0]
    assert passages.majority == {"party": 0.5, "party_of_address": pytest.approx(2 / 3)}
