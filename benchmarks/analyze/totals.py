"""Published totals of public traces against what `isoscale analyze` finds in their shipped tables.

Philly's jobs as the Pollux simulator has them (82,247: submission, duration, devices, VC), ten clusters of ITP, and
Philly's machine lists. Totals are those that others published or that were counted from the files by other means.
`--data DIR` names a directory with the public files, as for benchmarks.simulate.

    python -m benchmarks.analyze.totals --data DATA
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.result import save
from isoscale.analysis.study.analysis import analyse, as_json
from isoscale.analysis.study.formats import open_trace, sources
from isoscale.analysis.study.reading import Reading

RESULT, MINUTES = "analyze_totals", 1
#: minutes, median and mean by size, rounded as noted down. Tails were noted by another rule (the next sample above).
_PHILLY_MINUTES = {"1": (18.6, 138), "2-4": (6.1, 920), "5-8": (395, 2163), ">8": (352, 1589)}
_PHILLY_SIZES = {1: 76_627, 2: 1_818, 4: 1_870, 8: 1_643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3}
_PHILLY_MONTHS = {"2017-09": 5_657, "2017-10": 47_192, "2017-11": 21_318, "2017-12": 8_080}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--data", type=Path, help="directory of the public traces; --smoke makes its own")
    options = parsed(made)
    if options.smoke:
        with tempfile.TemporaryDirectory() as directory:
            _compare(_tiny(Path(directory)), options)
        return
    if options.data is None or not options.data.is_dir():
        made.error(f"--data {options.data or 'DIR'}: no such directory")
    # The recorded command keeps no path of this machine.
    sys.argv = [word if word != str(options.data) else "DATA" for word in sys.argv]
    _compare(options.data, options)


def _compare(data: Path, options: Options) -> None:
    rows = [
        {"what": what, "published": published, "found": rounded(found), "meets": _same(published, found)}
        for what, published, found in [*_philly(data), *_itp(data), *_machines(data)]
    ]
    for row in rows:
        differs = "" if row["meets"] else "  DIFFERS"
        print(f"{row['what']}: published {row['published']}, found {row['found']}{differs}", flush=True)
    save(RESULT, rows, options)


def _same(published: float, found: float) -> bool:
    """As exact as it was published: the last digit that is shown may be rounded."""
    text = f"{published:g}" if isinstance(published, float) else str(published)
    decimals = len(text.partition(".")[2])
    return abs(found - published) <= 0.5 * 10**-decimals + 1e-9


def _document(path: Path) -> dict[str, Any]:
    return as_json(analyse(open_trace(sources(str(path))[0], Reading(strict=True)), simulate_jobs=0))


def _philly(data: Path) -> Iterator[tuple[str, float, float]]:
    found = _document(data / "pollux" / "traces" / "philly.csv")
    yield "Philly: jobs", 82_247, found["jobs"]
    device_h = sum(one["device_s"] for one in found["sizes"]["classes"].values()) / 3600
    yield "Philly: GPU-hours", 978_078, device_h
    for size, jobs in _PHILLY_SIZES.items():
        yield f"Philly: jobs of {size} GPUs", jobs, found["sizes"]["exact"].get(str(size), 0)
    for month, jobs in _PHILLY_MONTHS.items():
        yield f"Philly: jobs of {month}", jobs, found["load"]["by_month"].get(month, {"jobs": 0})["jobs"]
    for name, minutes in _PHILLY_MINUTES.items():
        for level, published in zip(("p50", "mean"), minutes, strict=True):
            yield (
                f"Philly: run time in minutes, {name} GPUs, {level}",
                published,
                (found["run_s"][name][level] or 0) / 60,
            )
    yield "Philly: percent of jobs over a week", 0.29, 100 * found["run_over_a_week"]


def _itp(data: Path) -> Iterator[tuple[str, float, float]]:
    documents = [_document(path) for path in sorted((data / "elasticflow-itp" / "raw").glob("cluster*.csv"))]
    yield "ITP: jobs of ten clusters", 69_351, sum(document["jobs"] for document in documents)
    device_s = sum(one["device_s"] for document in documents for one in document["sizes"]["classes"].values())
    yield "ITP: GPU-hours, millions", 1.63, device_s / 3600 / 1e6


def _machines(data: Path) -> Iterator[tuple[str, float, float]]:
    """A job log of one job, so that the list of machines is what is read."""
    job = {
        "status": "Pass",
        "vc": "v",
        "jobid": "application_0_0",
        "submitted_time": "2017-10-01 00:00:00",
        "attempts": [
            {
                "start_time": "2017-10-01 00:00:00",
                "end_time": "2017-10-01 01:00:00",
                "detail": [{"ip": "m0", "gpus": ["gpu0"]}],
            }
        ],
    }
    lists = data / "philly-machines" / "data"
    for name, published in (("cluster_machine_list", 2_490), ("revised_machine_list.csv", 3_205)):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "cluster_job_log").write_text(json.dumps([job]))
            (Path(directory) / "cluster_machine_list").write_bytes((lists / name).read_bytes())
            trace = open_trace(sources(directory)[0], Reading(strict=True))
        yield f"Philly: GPUs of {name}", published, trace.capacity.most if trace.capacity else 0


def _tiny(directory: Path) -> Path:
    """The same files in the same places, with a few jobs: nothing agrees, everything is read."""
    texts = {
        "pollux/traces/philly.csv": "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,c\n",
        "elasticflow-itp/raw/cluster01.csv": "job_id,submission_time,duration,num_gpu\na,0,60,1\n",
        "philly-machines/data/cluster_machine_list": "machineId, number of GPUs, single GPU mem\nm0,2, 12GB\n",
        "philly-machines/data/revised_machine_list.csv": ",machineId,number of GPUs\n0,m0,8\n",
    }
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


if __name__ == "__main__":
    main()
