"""Readers of public formats on small files: what they tell, their traps, and every malformed line by file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isoscale.analysis.study.analysis import analyse, as_json
from isoscale.analysis.study.formats import FORMATS, open_trace, sources
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import STATUSES, Trace
from isoscale.errors import UserError

HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
ACME = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"


def opened(path: object, *, strict: bool = False, format: str = "auto") -> Trace:
    (source,) = sources(str(path))
    return open_trace(source, Reading(strict=strict), format)


def document(trace: Trace) -> dict[str, Any]:
    return as_json(analyse(trace, simulate_jobs=0))


def statuses(trace: Trace) -> list[str]:
    return [STATUSES[code] for code in trace.jobs.status]


def test_helios(tmp_path: Path) -> None:
    (tmp_path / "cluster_log.csv").write_text(
        HELIOS
        + "j1,u1,vcA,8,32,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:05:00,2020-04-01 01:05:00,3600,300\n"
        + "j2,u1,vcA,16,64,2,TIMEOUT,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:10:00,600,0\n"
        + "j3,u2,vcB,0,4,1,CANCELLED,2020-04-02 00:00:00,,,0,0\n"
        + "j4,u2,vcB,4,4,1,EXPLODED,2020-04-02 00:00:00,,,0,0\n"
        + "j5,u2,vcB,4\n"
        + "j6,u2,vcB,4,4,1,FAILED,2020-04-02 00:00:00,2020-04-02 00:09:00,2020-04-02 00:01:00,0,0\n"
    )
    (tmp_path / "cluster_gpu_number.csv").write_text(
        "date,vcA,vcB,total\n2020-04-01,16,8,24\n2020-04-02,16,8,32\nyesterday,1,1,2\n"
    )
    trace = opened(tmp_path)
    found = document(trace)
    assert found["format"] == "helios"
    assert list(trace.jobs.names) == ["j1", "j2", "j3"]
    assert statuses(trace) == ["passed", "failed", "killed"]
    assert found["run_s"]["all"]["mean"] == 2100
    assert found["queue_s"]["5-8"]["mean"] == 300
    assert found["status"]["by_device_time"] == {"passed": 8 * 3600.0, "failed": 16 * 600.0, "killed": 0.0}
    assert list(found["failures"]["classes"]) == ["time limit"]
    assert trace.quotas == {"vcA": 16.0, "vcB": 8.0}
    assert trace.capacity is not None
    assert trace.capacity.devices.tolist() == [24.0, 32.0]
    assert found["sizes"]["without_devices"] == 1
    # j1 waits while j2 holds all devices of its tenant.
    assert found["queue_causes"]["all"]["fair share"] == {"jobs": 1, "wait_s": 300.0}
    assert [(one.file, one.line, one.field) for one in trace.account.first] == [
        ("cluster_log.csv", 5, "state"),
        ("cluster_log.csv", 6, "cpu_num"),
        ("cluster_log.csv", 7, "end_time"),
        ("cluster_gpu_number.csv", 4, "date"),
    ]
    assert "not published" in found["missing"]["utilisation"]
    with pytest.raises(UserError, match=r"cluster_log.csv:5 state=EXPLODED: is not a state"):
        opened(tmp_path, strict=True)


def test_acme_run_time_is_end_less_start(tmp_path: Path) -> None:
    path = tmp_path / "trace_kalos.csv"
    # In Kalos, duration is end less submission in places.
    path.write_text(
        ACME
        + "a,u1,4,32,64,Pretrain,COMPLETED,2023-05-01 00:00:00+08:00,2023-05-01 01:00:00+08:00,"
        + "2023-05-01 02:00:00+08:00,7200,3600,1\n"
        + "b,u2,1,8,64,Evaluation,NODE_FAIL,2023-05-01 00:00:00+08:00,2023-05-01 00:00:30+08:00,"
        + "2023-05-01 00:01:00+08:00,60,30,1\n"
    )
    for given in (path, tmp_path):
        trace = opened(given, strict=True)
        found = document(trace)
        assert found["format"] == "acme"
        assert trace.jobs.run_s.tolist() == [3600.0, 30.0]
        assert trace.jobs.queue_s.tolist() == [3600.0, 30.0]
        assert list(found["kinds"]) == ["Pretrain", "Evaluation"]
        assert found["kinds"]["Pretrain"]["run_s"]["p50"] == 3600
        assert found["kinds"]["Pretrain"]["device_s"] == 32 * 3600
        assert found["kinds"]["Evaluation"]["passed"] == 0.0
        assert list(found["failures"]["classes"]) == ["node failure"]
        assert "VC" in found["missing"]["queue_causes.fair share"]


def test_a_directory_of_acme_is_both_clusters(tmp_path: Path) -> None:
    line = "a,u1,1,8,64,Other,COMPLETED,2023-05-01 00:00:00,2023-05-01 00:00:00,2023-05-01 02:00:00,1,1,1\n"
    for name in ("trace_seren.csv", "trace_kalos.csv"):
        (tmp_path / name).write_text(ACME + line)
    both = sources(str(tmp_path))
    assert [source.label for source in both] == ["trace_seren.csv", "trace_kalos.csv"]
    assert [open_trace(source, Reading()).format for source in both] == ["acme", "acme"]


def pai(home: Path) -> Path:
    (home / "pai_job_table.csv").write_text(
        "a,i1,u1,Terminated,1000,5000\nb,i2,u1,Failed,2000,2500\nc,i3,u2,Running,3000,\nd,i4,u2,Interrupted,1,2\n"
    )
    (home / "pai_job_table.header").write_text("job_name,inst_id,user,status,start_time,end_time")
    (home / "pai_task_table.csv").write_text(
        "a,worker,4,Terminated,1000,5000,600,30,50,T4\na,ps,1,Terminated,1000,5000,600,30,,\n"
        "b,worker,2,Failed,2000,2500,600,30,100,V100\nc,worker,1,Running,0,,600,30,25,T4\nx,worker,1,Failed,1,2,1,1,1,T4\n"
    )
    (home / "pai_task_table.header").write_text(
        "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
    )
    (home / "pai_instance_table.csv").write_text(
        "a,worker,n1,w1,i1,Terminated,1100,5000,m1\na,worker,n2,w2,i1,Terminated,1200,4000,m2\n"
        "b,worker,n3,w3,i2,Failed,2060,2500,m1\nb,worker,n3,w3,i2,Failed,0,2500,m1\nb,worker,n3,w3,i2,Failed,soon,2500,m1\n"
    )
    (home / "pai_sensor_table.csv").write_text(
        "a,worker,w1,i1,m1,/dev/nvidia0,100,30.5,1,1,1,1,1,1,1,1\na,worker,w2,i1,m2,/dev/nvidia0,100,250,1,1,1,1,1,1,1,1\n"
        "b,worker,w3,i2,m1,/dev/nvidia0,100,,1,1,1,1,1,1,1,1\n"
    )
    (home / "pai_machine_spec.csv").write_text("m1,T4,96,512,2\nm2,V100,96,512,8\nm3,CPU,96,512,0\n")
    (home / "pai_group_tag_table.csv").write_text("i1,u1,,g,bert\ni2,u1,,g,\n")
    (home / "pai_machine_metric.csv").write_text(
        "w1,m1,1100,5000,1,2,3,40,5,6,2,35.5\nw3,m1,1100,5000,1,2,3,40,5,6,2,64.5\n"
    )
    return home


def test_pai(tmp_path: Path) -> None:
    trace = opened(pai(tmp_path))
    found = document(trace)
    assert found["format"] == "pai"
    # Only Terminated is success; half devices count as such; 0 is no time.
    assert statuses(trace) == ["passed", "failed", "unfinished"]
    assert trace.jobs.devices.tolist() == [2.0, 2.0, 0.25]
    assert trace.jobs.queue_s[:2].tolist() == [100.0, 60.0]
    assert trace.jobs.run_s[:2].tolist() == [3900.0, 440.0]
    assert found["run_s"]["all"]["count"] == 2
    assert trace.jobs.machines.tolist() == [2, 1, 0]
    assert found["utilisation"]["held"]["count"] == 2
    assert found["utilisation"]["held"]["mean"] == pytest.approx((30.5 + 100) / 2)
    assert found["host"]["processor"]["mean"] == pytest.approx(50.0)
    assert trace.capacity is not None
    assert trace.capacity.most == 10
    assert set(found["kinds"]) == {"bert", "V100", "T4"}
    assert trace.account.left_out == {"tasks of jobs that the job table does not have": 1}
    assert [(one.file, one.line, one.field) for one in trace.account.first] == [
        ("pai_job_table.csv", 4, "status"),
        ("pai_instance_table.csv", 5, "start_time"),
    ]
    # Without the instances nobody knows when a job began to run.
    (tmp_path / "pai_instance_table.csv").unlink()
    found = document(opened(tmp_path))
    assert found["queue_s"]["all"]["count"] == 0
    assert "pai_instance_table" in found["missing"]["queue_s"]
    assert found["run_s"]["all"]["count"] == 2


PHILLY = {
    "status": "Pass",
    "vc": "v",
    "jobid": "application_1_1",
    "attempts": [
        {
            "start_time": "2017-10-09 07:02:00",
            "end_time": "2017-10-09 08:02:00",
            "detail": [{"ip": "m1", "gpus": ["gpu6", "gpu7"]}],
        }
    ],
    "submitted_time": "2017-10-09 07:01:00",
    "user": "u",
}


def changed(**fields: object) -> dict[str, object]:
    return {**PHILLY, **fields}


def test_philly_jobs_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    attempt = PHILLY["attempts"][0]
    bad = {
        "status": changed(status="Exploded"),
        "vc": {key: value for key, value in PHILLY.items() if key != "vc"},
        "submitted_time": changed(submitted_time="yesterday"),
        "start_time": changed(attempts=[{**attempt, "start_time": "2017-10-09"}]),
        "attempts[0].detail[0].gpus": changed(attempts=[{**attempt, "detail": [{"ip": "m1", "gpus": 3}]}]),
        "gpus": changed(attempts=[{**attempt, "detail": [{"ip": "m1", "gpus": ["cpu0"]}]}]),
    }
    log = tmp_path / "cluster_job_log"
    lines = [json.dumps(PHILLY), *(json.dumps(job) for job in bad.values()), '{"jobid": 1,, }', json.dumps(PHILLY)]
    log.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    trace = opened(log)
    assert len(trace.jobs) == 2
    told = [(one.line, one.field) for one in trace.account.first]
    # Object `required` fields are missing in are named by what is missing.
    assert [line for line, _ in told] == list(range(3, 10))
    assert [field for _, field in told[2:6]] == list(bad)[2:]
    assert told[0][1] == "status"
    assert "vc" in str(trace.account.first[1])
    assert trace.account.lines == {"cluster_job_log": 9}
    with pytest.raises(UserError, match="cluster_job_log:3 status"):
        opened(log, strict=True)


def test_philly_traps(tmp_path: Path) -> None:
    attempt = PHILLY["attempts"][0]
    jobs = [
        changed(jobid="none", attempts=[]),
        changed(jobid="None", attempts=[{**attempt, "start_time": "None", "end_time": None}]),
        changed(jobid="backwards", attempts=[{**attempt, "end_time": "2017-10-09 07:00:00"}]),
        changed(jobid="twice", attempts=[{**attempt}, {**attempt, "end_time": "2017-10-09 09:02:00"}]),
    ]
    (tmp_path / "cluster_job_log").write_text(json.dumps(jobs))
    # The list says 2 devices, jobs hold gpu7.
    (tmp_path / "cluster_machine_list").write_text(
        "machineId, number of GPUs, single GPU mem\nm1,2, 12GB\nm2,2, 12GB\n"
    )
    trace = opened(tmp_path, strict=True)
    assert trace.jobs.devices.tolist() == [0, 2, 2, 2]
    assert trace.jobs.run_s[3] == 7200.0
    assert [value != value for value in trace.jobs.run_s[:3].tolist()] == [True] * 3
    assert trace.capacity is not None
    assert trace.capacity.most == 10
    assert "6 devices that only the job log knows" in trace.capacity.source
    assert trace.account.left_out == {"jobs that end before they start: no run time": 1}


def test_monitors_of_odd_shape_are_read_and_broken_lines_counted(tmp_path: Path) -> None:
    (tmp_path / "cluster_job_log").write_text(json.dumps([PHILLY]))
    head = "time,machineId," + ",".join(f"gpu{i}_util" for i in range(8)) + ",\n"
    eight = "1,2,3,4,5,6,7,8"
    lines = [
        f"2017-10-09 07:03:00 PDT,m1,{eight},",
        f"2017-10-09 07:04:00 PDT,m1,{eight}",
        "2017-10-09 07:05:00,m1, 1 ,2,3,4,5,6,NA,1e1,",
        "2017-10-09 07:06:00 PST,m1,,NA,3,4,5,6,7.123456789,80,\r",
        "",
        f"2017-10-09 07:07:00 PDT,m1,{eight},9,",
        f"2017-13-09 07:07:00 PDT,m1,{eight},",
        f"2017-10-09 07:07:00 PDT,,{eight},",
        "2017-10-09 07:07:00 PDT,m1,1,2,3,4,5,6,7,101,",
        "2017-10-09 07:07:00 PDT,m1,1,2,3,4,5,6,7,-8,",
        "2017-10-09 07:07:00 PDT,m1,1,2,3,4,5,6,7,x,",
        f"2017-02-30 07:07:00 PDT,m1,{eight},",
    ]
    (tmp_path / "cluster_gpu_util").write_text(head + "\n".join(lines))
    trace = opened(tmp_path)
    found = document(trace)
    # gpu6 and gpu7 of m1 are the job's.
    assert found["utilisation"]["held"]["count"] == 7
    assert found["utilisation"]["held"]["mean"] == pytest.approx((7 + 8 + 7 + 8 + 10 + 7.123 + 80) / 7)
    assert found["utilisation"]["all"]["count"] == 29
    assert found["utilisation"]["exact"] is False
    assert trace.account.malformed == {"cluster_gpu_util": 7}
    assert trace.account.lines["cluster_gpu_util"] == 11
    assert [(one.line, one.field) for one in trace.account.first] == [
        (7, "line"),
        (8, "time"),
        (9, "machineId"),
        (10, "gpu7_util"),
        (11, "gpu7_util"),
        (12, "gpu7_util"),
        (13, "time"),
    ]


def test_job_lists_count_malformed_lines(tmp_path: Path) -> None:
    path = tmp_path / "itp.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\na,0,10,1\nb,1,x,2\nc,2\nd,3,30,4\n")
    trace = opened(path)
    assert trace.format == "itp"
    assert trace.jobs.run_s.tolist() == [10.0, 30.0]
    assert [(one.line, one.field) for one in trace.account.first] == [(3, "duration"), (4, "duration")]
    with pytest.raises(UserError, match=r"itp.csv:3 duration=x"):
        opened(path, strict=True)
    assert opened(path, format="itp").format == "itp"


def test_what_is_shown_of_a_line_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "g.trace"
    path.write_text("a\x85b\x1b[31m\tc\n")
    with pytest.raises(UserError) as error:
        opened(path, format="gavel")
    assert str(error.value).isprintable()
    assert "g.trace:1 line=a?b?[31m" in str(error.value)


def test_gavel_lines_are_counted_too(tmp_path: Path) -> None:
    path = tmp_path / "g.trace"
    good = "ResNet-18 (batch size 32)\tpython\t-n\t0\t1000\t5.0\t2"
    path.write_text(f"{good}\nbroken\ttoo\n{good}\n")
    trace = opened(path, format="gavel")
    assert len(trace.jobs) == 2
    assert [(one.line, one.field) for one in trace.account.first] == [(2, "line")]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("empty.csv", "", "no known format"),
        ("other.csv", "a,b\n1,2\n", "no known format"),
        ("cluster_job_log", "[]", "holds no job"),
        ("cluster_job_log", '[{"a": 1}]', "1 lines are malformed, the first: cluster_job_log:1"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, name: str, text: str, problem: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=problem):
        opened(path)


def test_a_damaged_state_of_a_service_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.sqlite").touch()
    with pytest.raises(UserError, match=r"cluster\.sqlite cannot be read \(no such table: jobs\)"):
        opened(tmp_path)


@pytest.mark.parametrize("text", ["x@2017-13", "x@soon", "x@2017-10-03..2017-10-01", "nothing"])
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match=f"TRACE={text}: "):
        sources(text)


def test_a_window_needs_dates(tmp_path: Path) -> None:
    path = tmp_path / "itp.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\na,0,10,1\n")
    with pytest.raises(UserError, match="has no dates"):
        open_trace(sources(f"{path}@2017-10")[0], Reading())


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--format=csv: unknown format"):
        opened(tmp_path, format="csv")
    assert {"philly", "helios", "pai", "acme", "isoscale-simulated", "isoscale-run", "itp"} <= set(FORMATS)
