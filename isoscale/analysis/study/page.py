"""The study on one HTML page (`templates/study.html`) that a manager can read and that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isoscale.analysis.study.analysis import Analysis
from isoscale.analysis.study.compare import comparison_table
from isoscale.analysis.study.figures import FIGURES
from isoscale.analysis.study.finding import Table
from isoscale.analysis.words import count
from isoscale.pages import Image, environment

__all__ = ["study_page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    key: str
    title: str
    says: str
    image: Image | None
    tables: Sequence[Table]
    missing: Sequence[tuple[str, str]]


def study_page(
    analyses: Sequence[Analysis], documents: Mapping[str, Mapping[str, Any]], pngs: Mapping[str, bytes]
) -> str:
    """One trace in full; of several, a comparison first and each one's tables below."""
    single = len(analyses) == 1
    return (
        environment("isoscale.analysis")
        .get_template("study.html")
        .render(
            title=analyses[0].trace.name if single else " and ".join(documents),
            about=[_about(analysis, document) for analysis, document in zip(analyses, documents.values(), strict=True)],
            comparison=None if single else comparison_table(documents),
            elasticity=_image("elasticity", pngs),
            images=[]
            if single
            else [image for name in FIGURES if (image := _image(name, pngs)) and name != "elasticity"],
            traces=[
                {
                    "name": analysis.trace.name,
                    "heading": not single,
                    "checks": analysis.checks,
                    "sections": [_section(finding, pngs if single else {}) for finding in analysis.findings],
                    "missing": list(analysis.missing.items()),
                    "account": analysis.trace.account,
                    "malformed": [str(one) for one in analysis.trace.account.first],
                }
                for analysis in analyses
            ],
        )
    )


def _about(analysis: Analysis, document: Mapping[str, Any]) -> str:
    trace, period = analysis.trace, document["period"]
    parts = [f"{trace.name}: {count(len(trace.jobs), 'job')}"]
    if period.get("first"):
        parts.append(f"{period['first'][:10]} to {period['last'][:10]}")
    elif period["days"] is not None:
        parts.append(f"{period['days']:,.1f} days")
    if trace.capacity is not None:
        parts.append(count(round(trace.capacity.most), "device"))
    parts.append(f"format {trace.format}")
    return ", ".join(parts)


def _section(finding: Any, pngs: Mapping[str, bytes]) -> _Section:
    return _Section(
        key=finding.key,
        title=finding.title,
        says=finding.says,
        image=_image(finding.key, pngs),
        tables=finding.tables,
        missing=list(finding.missing.items()),
    )


def _image(name: str, pngs: Mapping[str, bytes]) -> Image | None:
    return Image(png=pngs[name], words=FIGURES[name][0]) if name in pngs else None
