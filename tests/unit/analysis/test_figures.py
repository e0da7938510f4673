"""Figures: that they hold what the timeline holds, in few and in many rows. How they look is for eyes."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import pytest
from matplotlib.collections import PolyCollection

from isoscale.analysis.figures import draw_timeline, render
from isoscale.analysis.palette import worker_colours
from isoscale.analysis.profile_figure import draw_profile, profile_points
from isoscale.errors import UserError
from isoscale.timelines.timeline import timeline
from tests.unit.analysis.logs import Event, Writer, crowd, old, simulated, story


def words(figure: Any) -> list[str]:
    drawn = [text.get_text() for axes in figure.axes for text in axes.texts] + [t.get_text() for t in figure.texts]
    legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return drawn + legend + [tick.get_text() for tick in figure.axes[0].get_yticklabels()]


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_the_story_is_drawn_whole() -> None:
    figure = draw_timeline(timeline(story(), job="digits.py"))
    shown = words(figure)
    assert "digits.py: 1 → 3 → 2 → 4 → 3 → 4 executors" in shown
    assert {"1→3", "3→2", "2→4", "4→3", "3→4", "moved"} <= set(shown)
    assert {"rescale", "executor lost", "straggler", "notice to leave", "new coordinator", "checkpoint"} <= set(shown)
    assert "executor 5, cpu-sse" in shown
    assert {"0-7", "3-5", "7"} <= set(shown)
    assert "43% idle" in shown
    stripes = next(drawn for drawn in figure.axes[0].collections if isinstance(drawn, PolyCollection))
    stays = [stay for life in timeline(story()).lives for stay in life.stays]
    assert len(stripes.get_paths()) == sum(stay.last - stay.first + 1 for stay in stays)  # type: ignore[operator]


@pytest.mark.parametrize("executors", [1, 2, 5, 16, 64])
def test_a_row_per_executor_in_a_picture_of_reasonable_size(executors: int) -> None:
    figure = draw_timeline(timeline(crowd(executors, changes=4)))
    width, height = size_of(render(figure, dpi=100))
    assert width == 1100
    assert 450 < height < 1700
    ticks = figure.axes[0].get_yticklabels()
    assert len(ticks) == executors
    inches = [axes.get_position().height * figure.get_figheight() for axes in figure.axes]
    assert inches[0] / executors > 0.14, "labels of 8 points do not overlap"


def test_executors_that_never_hosted_anything_have_no_row() -> None:
    w = Writer(workers=4)
    w.start(0, 1, 2, 3)
    w.place([0, 1], "start")
    w.train(10)
    w.kill(3)  # a spare, whose end is marked all the same
    w.train(10)
    w.finish()
    figure = draw_timeline(timeline(w.events))
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["executor 0", "executor 1"]
    assert "executor lost" in words(figure)


def test_before_anybody_hosts_anything_all_processes_are_drawn() -> None:
    w = Writer(workers=4)
    w.start(0, 1)
    figure = draw_timeline(timeline(w.events))
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["executor 0", "executor 1"]


def test_thousands_of_executors_have_fewer_labels() -> None:
    w = Writer(workers=3000)
    w.start(*range(3000))
    w.place(list(range(3000)), "start")
    figure = draw_timeline(timeline(w.events))
    assert figure.get_figheight() < 26
    assert len(figure.axes[0].get_yticklabels()) < 200


@pytest.mark.parametrize(
    "events",
    [[], story()[:1], story()[:4], story(until="rescale"), old(), simulated(), [{"event": "step"}], [{"event": "hm"}]],
    ids=["empty", "coordinator", "started", "one", "old", "simulated", "bare step", "unknown"],
)
@pytest.mark.parametrize("form", ["png", "svg"])
def test_anything_can_be_drawn(events: list[Event], form: Any) -> None:
    assert len(render(draw_timeline(timeline(events)), form, dpi=50)) > 1000


def test_thousands_of_rescales_and_warnings_are_few_objects() -> None:
    w = Writer(workers=4)
    w.start(0, 1)
    for change in range(2000):
        w.place([0, 1] if change % 2 else [0], "scale")
        w.write("warning", message="again")
    figure = draw_timeline(timeline(w.events))
    assert sum(len(axes.get_children()) for axes in figure.axes) < 400
    render(figure, dpi=50)


def test_where_no_executor_is_known_their_number_is_drawn() -> None:
    assert "executors" in words(draw_timeline(timeline(simulated())))


@pytest.mark.parametrize("form", ["png", "svg"])
def test_the_same_log_gives_the_same_bytes(form: Any) -> None:
    first, second = (render(draw_timeline(timeline(story(until="rescale"))), form, dpi=50) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["$x_{", "ジョブ.py", "a\nb", "^_\\"])
def test_any_name_can_be_a_title(name: str) -> None:
    render(draw_timeline(timeline(story(until="rescale"), job=name)), dpi=50)


@pytest.mark.parametrize("losses", [[1.0, 1e300, 1.7e308], [0.0, 0.0], [-1e308, 1e308], [1e-320, 1e-310]])
def test_extreme_losses_can_be_drawn(losses: list[float]) -> None:
    events = [{"t": i, "event": "step", "step": i, "loss": loss} for i, loss in enumerate(losses * 3)]
    render(draw_timeline(timeline(events)), dpi=50)


def test_an_exploding_loss_is_drawn_on_a_log_scale() -> None:
    events = [{"t": i, "event": "step", "step": i, "loss": 1.0 if i < 90 else 1e6} for i in range(100)]
    assert draw_timeline(timeline(events)).axes[1].get_yscale() == "log"
    assert draw_timeline(timeline(story())).axes[1].get_yscale() == "linear"


def test_a_start_that_took_long_is_cut_off() -> None:
    w = Writer()
    w.start(0)
    w.t += 60.0
    w.place([0], "start")
    w.train(50)
    begin, end = draw_timeline(timeline(w.events)).axes[0].get_xlim()
    assert begin > 55
    assert end - begin < 15


def test_logical_workers_have_colours_of_their_own() -> None:
    for number in (1, 2, 8, 9, 64, 200):
        assert len(set(worker_colours(number))) == number


def test_importing_needs_no_matplotlib() -> None:
    code = "import sys, isoscale.analysis.report, isoscale.analysis.profile_figure, isoscale.cli.report\n"
    code += "print(*{'matplotlib', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


def point(executors: int, batch: int = 32, **other: Any) -> dict[str, Any]:
    fields = {"step_s": 0.1 / executors, "exchange_s": 0.01, "samples_per_s": 320.0 * executors}
    return {"devices": {"cpu": executors}, "split": [1] * executors, "batch": batch, **fields, **other}


def test_a_profile_has_a_line_per_batch_size() -> None:
    points = [point(e, b) for b in (16, 32, 64) for e in (1, 2, 4)]
    figure = draw_profile({"format": 1, "workers": 4, "points": points}, "digits.py")
    assert size_of(render(figure, dpi=100)) == (1100, 460)
    assert words(figure)[0:2] == ["samples per second", "milliseconds a step"]
    assert {"batch 16", "batch 32", "batch 64", "linear"} <= set(words(figure))


def test_the_line_joins_the_best_split() -> None:
    points = [point(1), point(2, samples_per_s=500.0, split=[3, 1]), point(2, samples_per_s=600.0)]
    figure = draw_profile({"format": 1, "workers": 4, "points": points})
    assert list(figure.axes[0].lines[0].get_ydata()) == [320.0, 600.0]
    assert "slower split or kinds" in words(figure)


def test_points_of_a_profile_are_sorted_and_broken_ones_passed_over() -> None:
    broken = [{}, {"devices": {"cpu": 1}}, 3, point(1, step_s="x"), {"devices": 2, "step_s": 1.0}]
    points = profile_points({"format": 1, "points": [point(4), *broken, point(2)]})
    assert [p.num_executors for p in points] == [2, 4]
    assert points[0].devices == "cpu*2"


@pytest.mark.parametrize("profile", [{}, {"format": 2, "points": [point(1)]}, {"format": 1, "points": []}])
def test_what_is_no_profile_is_refused(profile: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"not a profile of format 1"):
        draw_profile(profile)


@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_profile_of_few_points_can_be_drawn(number: int) -> None:
    render(draw_profile({"format": 1, "points": [point(2, batch) for batch in range(1, number + 1)]}), dpi=50)
