"""A service that nobody reaches over a network, and its app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from isoscale.cluster.api.app import make_app
from isoscale.cluster.api.guards import allowed_hosts
from isoscale.cluster.api.routes import make_routes
from isoscale.cluster.auth import new_token
from isoscale.cluster.bundle import Bundle, pack
from isoscale.cluster.service import Configuration, Service
from isoscale.runtime.code.collect import code_of_script
from tests.unit.cluster.asgi import Answer, call


@dataclass
class World:
    service: Service
    app: Any
    bundle: Bundle
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, who: str = "admin", **options: Any) -> Answer:
        return call(self.app, method, path, token=self.tokens.get(who, ""), **options)

    def submit(self, who: str = "user", **fields: Any) -> Answer:
        """Of a kind that is not there: so it waits, and no process starts."""
        body = {"code": self.bundle.id, "workers": 2, "kinds": ["cpu-sse"], **fields}
        return self.ask("POST", "/api/jobs", who, body=body)


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    opened: list[Service] = []

    def make(**options: Any) -> World:
        service = Service(Configuration(state=tmp_path / "state", devices="cpu*2", **options))
        opened.append(service)
        service.open()
        app = make_app(make_routes(service), service.authenticate, allowed_hosts("127.0.0.1"))
        script = tmp_path / "code" / "train.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text("print(1)\n")
        world = World(service, app, pack(code_of_script(str(script), module="", out="")))
        for role in ("viewer", "user", "operator", "admin"):
            tenant = "" if role in ("operator", "admin") else "team-a"
            _, world.tokens[role] = new_token(
                service.store, name=role, role=role, tenant=tenant, expires_s=None, now=service.now()
            )
        _, world.tokens["stranger"] = new_token(
            service.store, name="stranger", role="user", tenant="team-b", expires_s=None, now=service.now()
        )
        service.desk.codes.receive(world.bundle.id, world.bundle.data())
        return world

    yield make
    for service in opened:
        service.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
