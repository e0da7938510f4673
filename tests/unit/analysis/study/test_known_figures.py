"""Every figure of the study on a generated cluster whose figures are counted the slow way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isoscale.analysis.study.analysis import Analysis, analyse, as_json
from isoscale.analysis.study.formats import open_trace, sources
from isoscale.analysis.study.quotas import with_quotas
from isoscale.analysis.study.reading import Reading
from tests.unit.analysis.study.made_cluster import (
    DEVICES,
    MACHINES,
    SIZES,
    STATUS,
    Cluster,
    figures,
    make,
    of_size,
    quantile,
)

QUOTAS = {"vc0": 6.0, "vc1": 12.0, "vc2": 40.0}
ALL = ("all", *SIZES)


@pytest.fixture(scope="module", params=[1, 2, 3])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return make(request.param)


@pytest.fixture(scope="module")
def analysis(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    home = cluster.write(tmp_path_factory.mktemp("made"))
    trace = open_trace(sources(str(home))[0], Reading(strict=True))
    return analyse(with_quotas(trace, QUOTAS), simulate_jobs=0)


@pytest.fixture(scope="module")
def found(analysis: Analysis) -> dict[str, Any]:
    return as_json(analysis)


def close(here: dict[str, Any], there: dict[str, Any]) -> None:
    """Every figure that was counted is the one found."""
    for name, value in there.items():
        assert here[name] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), name


@pytest.mark.parametrize("size", ALL)
def test_run_time_and_waiting_by_size(cluster: Cluster, found: dict[str, Any], size: str) -> None:
    chosen = [job for job in cluster.jobs if of_size(job.devices, size)]
    close(found["run_s"][size], figures(job.run for job in chosen if job.run is not None))
    close(found["queue_s"][size], figures(job.wait for job in chosen if job.wait is not None))
    long = [job.wait >= 600 for job in chosen if job.wait is not None]
    assert found["queue_over_10_min"][size] == (pytest.approx(sum(long) / len(long)) if long else None)


def test_final_status_by_jobs_and_by_device_time(cluster: Cluster, found: dict[str, Any]) -> None:
    assert found["jobs"] == len(cluster.jobs)
    for status, name in STATUS.items():
        jobs = [job for job in cluster.jobs if job.status == status]
        assert found["status"]["by_jobs"][name] == len(jobs)
        assert found["status"]["by_device_time"][name] == sum(job.device_s for job in jobs)
        for size in SIZES:
            assert found["status"]["by_size"][size][name] == sum(of_size(job.devices, size) for job in jobs)


def test_waiting_again_between_attempts(cluster: Cluster, found: dict[str, Any]) -> None:
    gaps = [
        after.start - before.end
        for job in cluster.jobs
        for before, after in zip(job.tries, job.tries[1:], strict=False)
        if after.start is not None and before.end is not None
    ]
    close(found["requeue_s"], figures(gaps))


@pytest.mark.parametrize("size", ALL)
def test_what_jobs_waited_for(cluster: Cluster, found: dict[str, Any], size: str) -> None:
    counted = {cause: {"jobs": 0, "wait_s": 0.0} for cause in ("fair share", "full", "fragmentation")}
    for job in cluster.jobs:
        if not job.wait or not of_size(job.devices, size):
            continue
        votes = dict.fromkeys(counted, 0)
        for look in range(8):
            at = job.submit + job.wait * (look + 0.5) / 8
            if cluster.in_use(at, job.vc) + job.devices > QUOTAS[job.vc]:
                votes["fair share"] += 1
            elif cluster.in_use(at) + job.devices > MACHINES * DEVICES:
                votes["full"] += 1
            else:
                votes["fragmentation"] += 1
        for cause, number in votes.items():
            counted[cause]["wait_s"] += job.wait * number / 8
        counted[max(votes, key=lambda cause: votes[cause])]["jobs"] += 1
    for cause, one in counted.items():
        close(found["queue_causes"][size][cause], one)


def test_all_causes_occur(found: dict[str, Any]) -> None:
    causes = found["queue_causes"]["all"]
    assert causes["fair share"]["jobs"]
    assert causes["fragmentation"]["jobs"]


def test_locality(cluster: Cluster, found: dict[str, Any]) -> None:
    chosen = [job for job in cluster.jobs if job.devices >= 5]
    for machines in {len(job.tries[0].held) for job in chosen}:
        waits = [job.wait for job in chosen if len(job.tries[0].held) == machines and job.wait is not None]
        close(found["locality"]["queue_s_by_machines"][str(machines)], figures(waits))


@pytest.mark.parametrize("size", ALL)
@pytest.mark.parametrize("status", ["Pass", "Killed", "Failed", "all"])
def test_use_by_size_and_status(cluster: Cluster, found: dict[str, Any], size: str, status: str) -> None:
    values = sorted(
        value for job, one, value in cluster.held_values if of_size(one.devices, size) and status in ("all", job.status)
    )
    here = found["utilisation"]["by_size"][size][STATUS.get(status, "all")]
    close(here, figures(values))
    if values:
        assert here["p95"] == pytest.approx(quantile(values, 95), abs=1e-9)


def test_use_by_machines_company_and_nobody(cluster: Cluster, found: dict[str, Any]) -> None:
    held = cluster.held_values
    use = found["utilisation"]
    known = [value for values in cluster.samples.values() for value in values if value is not None]
    close(use["all"], figures(known))
    close(use["held"], figures(value for _, _, value in held))
    assert use["nobody's"]["count"] == len(known) - len(held)
    assert use["offline_samples"] == MACHINES * DEVICES * len({m for m, _ in cluster.samples}) - len(known)
    assert use["exact"] is True
    for machines in {len(one.held) for _, one, _ in held if one.devices == 16}:
        values = [value for _, one, value in held if one.devices == 16 and len(one.held) == machines]
        close(use["by_machines_of_16"][str(machines)], figures(values))
    shared = {id(one): cluster.shared(one) for _, one, _ in held}
    close(use["by_company"]["shared with other jobs"], figures(v for _, one, v in held if shared[id(one)]))
    close(use["by_company"]["alone on its machines"], figures(v for _, one, v in held if not shared[id(one)]))


def test_use_by_hour(cluster: Cluster, found: dict[str, Any]) -> None:
    hours = found["utilisation"]["by_hour"]["mean"]
    assert len(hours) == 5
    for hour, mean in enumerate(hours):
        values = [
            value
            for (minute, _), values in cluster.samples.items()
            if minute // 60 == hour
            for value in values
            if value is not None
        ]
        assert mean == pytest.approx(sum(values) / len(values), abs=1e-3)


def test_hosts(cluster: Cluster, found: dict[str, Any]) -> None:
    close(found["host"]["processor"], figures(cluster.processors))
    used = [100 * (total - free) / total for total, free in cluster.memory]
    close(found["host"]["memory"], figures(used))


def test_failures_without_logs_and_retries(cluster: Cluster, found: dict[str, Any]) -> None:
    failed = [
        (job, one)
        for job in cluster.jobs
        for number, one in enumerate(job.tries)
        if number < len(job.tries) - 1 or job.status == "Failed"
    ]
    failures = found["failures"]
    assert failures["trials"] == len(failed)
    assert failures["jobs"] == len({job.name for job, _ in failed})
    assert failures["device_s"] == sum((one.run or 0) * one.devices for _, one in failed)
    (one,) = failures["classes"].values()
    assert one["users"] == len({job.user for job, _ in failed})
    assert one["demand"] == {
        "1": sum(one.devices == 1 for _, one in failed),
        "2-4": sum(2 <= one.devices <= 4 for _, one in failed),
        ">4": sum(one.devices > 4 for _, one in failed),
    }
    runs = sorted(float(one.run) for _, one in failed if one.run is not None)
    assert one["rtf_s"] == {f"p{level}": pytest.approx(quantile(runs, level)) for level in (50, 90, 95)}
    assert "stderr" in found["missing"]["failures.classes"]
    retries = found["retries"]
    again = [job for job in cluster.jobs if len(job.tries) > 1]
    assert retries["jobs_retried"] == len(again)
    assert retries["retried_and_passed"] == sum(job.status == "Pass" for job in again)
    assert retries["device_s_before_last"] == sum((t.run or 0) * t.devices for job in again for t in job.tries[:-1])


def test_users_sizes_and_months(cluster: Cluster, found: dict[str, Any]) -> None:
    taken: dict[str, int] = {}
    for job in cluster.jobs:
        taken[job.user] = taken.get(job.user, 0) + job.device_s
    largest = found["users"]["largest"]
    assert {one["name"]: one["device_s"] for one in largest} == taken
    assert [one["device_s"] for one in largest] == sorted(taken.values(), reverse=True)
    for size in SIZES:
        chosen = [job for job in cluster.jobs if of_size(job.devices, size)]
        assert found["sizes"]["classes"][size] == {
            "jobs": len(chosen),
            "device_s": sum(job.device_s for job in chosen),
        }
    months = found["load"]["by_month"]
    assert sum(one["jobs"] for one in months.values()) == len(cluster.jobs)
    # October ends two hours after the first second.
    assert months["2017-10"]["jobs"] == sum(job.submit < 2 * 3600 for job in cluster.jobs)


def test_devices_in_use(cluster: Cluster, found: dict[str, Any]) -> None:
    tries = [one for job in cluster.jobs for one in job.tries if one.run]
    begin, end = min(one.start or 0 for one in tries), max(one.end or 0 for one in tries)
    load = found["load"]
    taken = sum((one.run or 0) * one.devices for one in tries)
    assert load["mean_in_use"] == pytest.approx(taken / (end - begin))
    assert load["peak_in_use"] == max(cluster.in_use(one.start + 0.5) for one in tries if one.start is not None)
    assert load["capacity"] == MACHINES * DEVICES
    assert sum(load["in_use"]) / len(load["in_use"]) == pytest.approx(load["mean_in_use"], abs=1e-3)


def test_advice(cluster: Cluster, found: dict[str, Any]) -> None:
    failed = [
        (number, one)
        for job in cluster.jobs
        for number, one in enumerate(job.tries)
        if number < len(job.tries) - 1 or job.status == "Failed"
    ]
    early = [one for _, one in failed if one.devices > 1 and one.run is not None and one.run <= 600]
    trial = found["advice"]["trial"]
    assert trial["caught"] == len(early)
    assert trial["saved_device_s"] == sum((one.run or 0) * (one.devices - 1) for one in early)
    hopeless = [one for job in cluster.jobs if job.status == "Failed" for one in job.tries[1:]]
    assert found["advice"]["hopeless"]["hopeless"] == len(hopeless)
    assert found["advice"]["hopeless"]["device_s"] == sum((one.run or 0) * one.devices for one in hopeless)
    held = cluster.held_values
    idle = found["advice"]["idle"]
    assert idle["idle_device_s"] == 60 * sum(value < 0.1 for _, _, value in held)
    assert idle["held_device_s"] == 60 * len(held)
    small = [(cluster.shared(one), value) for _, one, value in held if one.devices <= 4]
    dedicated = found["advice"]["dedicated"]
    for key, shared in (("use_shared", True), ("use_alone", False)):
        values = [value for is_shared, value in small if is_shared == shared]
        assert dedicated[key] == pytest.approx(sum(values) / len(values))


def test_locality_advice(cluster: Cluster, found: dict[str, Any]) -> None:
    """Of each size, those on the fewest machines against the others: waits, and use of the first attempt's devices."""
    held = cluster.held_values
    extra = saved = 0.0
    for size in {job.devices for job in cluster.jobs if job.tries and len(job.tries[0].held) > 1}:
        jobs = [job for job in cluster.jobs if job.devices == size]
        fewest = min(len(job.tries[0].held) for job in jobs)
        groups = [[j for j in jobs if (len(j.tries[0].held) == fewest) is packed] for packed in (True, False)]
        if not groups[1]:
            continue
        waits = [[j.wait for j in group if j.wait is not None] for group in groups]
        means = [sum(group) / len(group) for group in waits]
        extra += (means[0] - means[1]) * len(groups[1])
        uses = []
        for group in groups:
            firsts = {id(j.tries[0]) for j in group}
            values = [value for _, one, value in held if id(one) in firsts]
            uses.append(sum(values) / len(values) if values else None)
        if uses[0] and uses[1]:
            saved += sum((j.run or 0) * j.devices for j in groups[1]) * (1 - uses[1] / uses[0])
    locality = found["advice"]["locality"]
    assert locality["extra_wait_s"] == pytest.approx(extra)
    assert locality["saved_device_s"] == pytest.approx(saved)


def test_a_month_is_the_trace_of_that_month(cluster: Cluster, tmp_path: Path) -> None:
    home = cluster.write(tmp_path / "made")
    parts = []
    for month in ("2017-10", "2017-11"):
        (source,) = sources(f"{home}@{month}")
        assert source.label == f"made {month}"
        parts.append(as_json(analyse(open_trace(source, Reading(strict=True)), simulate_jobs=0)))
    assert parts[0]["jobs"] == sum(job.submit < 2 * 3600 for job in cluster.jobs)
    assert parts[0]["jobs"] + parts[1]["jobs"] == len(cluster.jobs)
    samples = [part["utilisation"].get("all", {}).get("count", 0) for part in parts]
    assert sum(samples) == sum(value is not None for values in cluster.samples.values() for value in values)
