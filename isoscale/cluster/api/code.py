"""Code: sent once, named by its digest, before the jobs that run it."""

from __future__ import annotations

from dataclasses import dataclass

from isoscale.cluster.api.route import Call, Route
from isoscale.cluster.auth import NotFoundError
from isoscale.cluster.bundle import MAX_BYTES
from isoscale.cluster.service import Service

__all__ = ["code_routes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeKept:
    id: str
    files: int
    bytes: int


def code_routes(service: Service) -> tuple[Route, ...]:
    codes = service.desk.codes

    def look(call: Call) -> CodeKept:
        code = call.path["code"]
        if code not in codes:
            raise NotFoundError(f"code={code[:70]}: was not sent; send it with PUT")
        manifest = codes.manifest(code)
        return CodeKept(id=code, files=len(manifest.files), bytes=manifest.total_bytes)

    def put(call: Call) -> CodeKept:
        code = call.path["code"]
        manifest = codes.receive(code, call.body)
        return CodeKept(id=code, files=len(manifest.files), bytes=manifest.total_bytes)

    return (
        Route(
            method="GET",
            path="/api/code/{code}",
            role="user",
            summary="Whether this code was sent",
            handler=look,
            answer=CodeKept,
            errors=(404,),
        ),
        Route(
            method="PUT",
            path="/api/code/{code}",
            role="user",
            summary="Send code: 8 bytes length of the manifest, manifest, archive",
            handler=put,
            answer=CodeKept,
            max_body=MAX_BYTES,
        ),
    )
