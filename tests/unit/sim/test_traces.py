"""Readers of traces: what they understand, and what they say when they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isoscale.errors import UserError
from isoscale.sim.builtin import BUILTIN, builtin_trace
from isoscale.sim.traces import TraceJob, detect_format, read_trace
from isoscale.sim.traces.own import write_own
from isoscale.sim.traces.philly import read_philly_jobs


def write(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


SAMPLES = {
    "pollux": "name,time,application,num_replicas,batch_size\nbert-4,735,bert,8,384\n",
    "gavel": "LM (batch size 5)\tpython main.py\t--steps\t1\t4726\t3362.000000\t2\n",
    "philly-csv": "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n",
    "itp": "job_id,submission_time,duration,num_gpu\n965d,1932025,2429,64\n",
    "elasticflow": "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n0,5,128,vgg,771,8,1,97\n",
    "tiresias": "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n1,8,30,133,vgg11,147,23\n",
    "isoscale": "# a comment\nname,submit_s,devices,duration_s,turn_s\na,1,4,10,V100=0.5|T4=1\n",
}


@pytest.mark.parametrize("format", SAMPLES)
def test_format_is_found_by_the_header(tmp_path: Path, format: str) -> None:
    path = write(tmp_path, SAMPLES[format])
    assert detect_format(path) == format
    assert read_trace(path) == read_trace(path, format)


def test_fields_of_each_format(tmp_path: Path) -> None:
    found = {format: read_trace(write(tmp_path, text))[0] for format, text in SAMPLES.items()}
    assert found["pollux"] == TraceJob(name="bert-4", submit_s=735, devices=8, steps=0, application="bert", batch=384)
    assert found["gavel"] == TraceJob(
        name="job-1", submit_s=3362, devices=2, steps=4726, application="LM (batch size 5)", batch=5
    )
    assert found["philly-csv"] == TraceJob(name="job-1", submit_s=0, devices=1, duration_s=66, tenant="11cb48")
    assert found["itp"] == TraceJob(name="965d", submit_s=1932025, devices=64, duration_s=2429)
    assert (found["elasticflow"].steps, found["elasticflow"].deadline_s) == (128, 771)
    assert (found["tiresias"].duration_s, found["tiresias"].devices) == (147, 8)
    assert found["isoscale"].turn_s == {"V100": 0.5, "T4": 1.0}


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("job_id,submission_time,duration,num_gpu\na,1,2,3\nb,1,2,x\n", ":3 num_gpu=x", "is not a number"),
        ("job_id,submission_time,duration,num_gpu\na,1,2,0\n", ":2 num_gpu=0", "is too small"),
        ("job_id,submission_time,duration,num_gpu\na,1,2,1.5\n", ":2 num_gpu=1.5", "is not a whole number"),
        ("job_id,submission_time,duration,num_gpu\na,-1,2,1\n", ":2 submission_time=-1", "is too small"),
        ("job_id,submission_time,duration,num_gpu\na,nan,2,1\n", ":2 submission_time=nan", "is not a number"),
        ("job_id,submission_time,duration,num_gpu\na,1\n", ":2 duration", "the line is too short"),
        ("name,submit_s,devices\na,1,1\n", ":2 duration_s", "neither duration_s nor steps"),
        ("name,submit_s,devices,duration_s\na,1,1,-5\n", ":2 duration_s=-5", "is too small"),
        ("#\nname,submit_s,devices,steps,turn_s\na,1,1,5,V100\n", ":3 turn_s=V100", "is not KIND=SECONDS"),
        ("timestamp,duration,num_gpus,cluster\nyesterday,1,1,vc\n", ":2 timestamp=yesterday", "is not a time"),
        ("job_id,submission_time,duration,num_gpu\na,1,2,1\na,1,2,1\n", " name=a", "two jobs have this name"),
        ("job_id,submission_time,duration,num_gpu\n", "--trace", "holds no job"),
        ("a,b,c\n1,2,3\n", "--trace", "of no known format"),
        ("", "--trace", "of no known format"),
    ],
)
def test_errors_name_file_line_and_field(tmp_path: Path, text: str, where: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_trace(path)
    assert where in str(caught.value)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gavel_lines_of_another_width_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, SAMPLES["gavel"] + "LM\tpython\t1\n")
    with pytest.raises(UserError, match=r":2 line=.*has 3 fields"):
        read_trace(path)


def test_a_file_that_is_not_there_and_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--trace=.*cannot be read"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(UserError, match="--format=xls"):
        read_trace(write(tmp_path, SAMPLES["itp"]), "xls")


def philly_log() -> list[dict[str, object]]:
    attempt = {
        "start_time": "2017-10-09 07:05:00",
        "end_time": "2017-10-09 08:05:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
    }
    again = {**attempt, "start_time": "2017-10-09 09:00:00", "end_time": "2017-10-09 09:10:00"}
    job = {"status": "Pass", "vc": "v", "jobid": "application_1_1", "user": "u"}
    return [
        {**job, "attempts": [attempt, again], "submitted_time": "2017-10-09 07:00:00"},
        {**job, "jobid": "application_1_2", "attempts": [], "submitted_time": "2017-10-09 06:00:00"},
        {
            **job,
            "jobid": "application_1_3",
            "status": "Killed",
            "attempts": [attempt],
            "submitted_time": "2017-10-09 06:30:00",
        },
        {
            **job,
            "jobid": "application_1_4",
            "attempts": [{**attempt, "end_time": None}],
            "submitted_time": "2017-10-09 06:40:00",
        },
    ]


def test_philly_log_gives_the_jobs_that_ran(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(philly_log()), "cluster_job_log")
    assert detect_format(path) == "philly-log"
    first, second = read_trace(path)
    assert (first.name, first.submit_s, first.status, first.duration_s) == ("application_1_3", 0, "killed", 3600)
    # From the first start to the last end; devices of the first attempt.
    assert (second.submit_s, second.devices, second.duration_s) == (1800, 3, 7500)
    assert len(read_philly_jobs(path)) == 4


def test_philly_log_errors_name_the_element(tmp_path: Path) -> None:
    jobs = philly_log()
    jobs[2]["status"] = "Fine"
    with pytest.raises(UserError, match=r"cluster_job_log \$\[2\]\.status"):
        read_trace(write(tmp_path, json.dumps(jobs), "cluster_job_log"))
    jobs[2] |= {"status": "Pass", "submitted_time": "noon"}
    with pytest.raises(UserError, match=r"\$\[2\]\.submitted_time=noon: is not a time"):
        read_trace(write(tmp_path, json.dumps(jobs), "cluster_job_log"))
    with pytest.raises(UserError, match=r"malformed|truncated"):
        read_trace(write(tmp_path, "[{", "cluster_job_log"))


def test_own_format_comes_back_as_it_was_written(tmp_path: Path) -> None:
    jobs = [
        TraceJob(name="a", submit_s=0.0, devices=1, duration_s=1.5, tenant="t", deadline_s=9.25),
        TraceJob(
            name="b",
            submit_s=2.125,
            devices=8,
            steps=27.7003125,
            workers=16,
            min_devices=2,
            max_devices=12,
            application="bert",
            batch=384,
            kind="V100",
            kinds=("V100", "T4"),
            turn_s={"V100": 0.1, "T4": 1 / 3},
            priority=2,
            status="passed",
        ),
    ]
    write_own(tmp_path / "own.csv", jobs, comment="two\nlines")
    assert read_trace(tmp_path / "own.csv") == jobs


@pytest.mark.parametrize("name", BUILTIN)
def test_the_easyscale_trace_is_the_one_of_the_paper(name: str) -> None:
    jobs = builtin_trace(name)
    assert len(jobs) == 62
    assert min(job.submit_s for job in jobs) == 115
    assert {job.devices for job in jobs} == {4, 8, 16, 32}
    assert all(job.turn_s.keys() == {"V100", "P100", "T4"} and job.kind in job.kinds for job in jobs)
    # Conv models keep to one kind: their deterministic kernels differ between kinds.
    assert {job.application for job in jobs if len(job.kinds) == 3} == {"bert", "electra", "swintransformer", "ncf"}
