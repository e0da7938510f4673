"""The OpenAPI document, made from the table of routes and the types that they name: it cannot drift from them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import msgspec

from isoscale.cluster.api.route import Route

__all__ = ["document"]

_REF = "#/components/schemas/{name}"
_TEXTS = {
    400: "bad input: field, problem and remedy",
    401: "no valid token",
    403: "the token's role does not allow it",
    404: "no such thing",
    409: "does not fit what is there now",
    413: "too large",
    429: "a limit is reached",
}


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    types = [one for route in routes for one in (route.answer, route.body) if one is not None and one is not Any]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = {_key(one): schema for one, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "isoscale cluster service", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    name = "_".join([route.method.lower(), *re.findall(r"[a-z]+", route.path)])
    errors = {400, 413, *route.errors} | (set() if route.role is None else {401, 403})
    answer = {} if route.answer is Any or route.answer is None else schema_of[_key(route.answer)]
    media = route.media.partition(";")[0]
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": route.summary,
        "description": f"Role: {route.role or 'none'}.",
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": {
            str(route.status): {"description": "done", "content": {media: {"schema": answer}}},
            **{str(code): {"description": _TEXTS[code], "content": _ERROR_CONTENT} for code in sorted(errors)},
        },
    }
    if route.role is None:
        operation["security"] = []
    if route.body is not None:
        content = {"application/json": {"schema": schema_of[_key(route.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.method == "PUT":
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    hints = get_type_hints(route.query)
    found = []
    for one in fields(route.query):
        schema = msgspec.json.schema(hints[one.name])
        if one.default is not MISSING and one.default is not None:
            schema = {**schema, "default": one.default}
        found.append({"name": one.name, "in": "query", "required": False, "schema": schema})
    return found


def _key(one: Any) -> str:
    return repr(one)


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["text"],
            "properties": {name: {"type": "string"} for name in ("text", "field", "problem", "remedy")},
        }
    },
}
_ERROR_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
