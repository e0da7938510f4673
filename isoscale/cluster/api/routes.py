"""The table of all routes, one module for each thing. A route that is not in it does not exist; tests go through it."""

from __future__ import annotations

from isoscale.cluster.api.about import about_routes
from isoscale.cluster.api.code import code_routes
from isoscale.cluster.api.devices import device_routes
from isoscale.cluster.api.events import event_routes
from isoscale.cluster.api.jobs import job_routes
from isoscale.cluster.api.overview import overview_routes
from isoscale.cluster.api.pages import page_routes
from isoscale.cluster.api.records import record_routes
from isoscale.cluster.api.route import Route
from isoscale.cluster.api.sessions import session_routes
from isoscale.cluster.api.settings import settings_routes
from isoscale.cluster.api.tokens import token_routes
from isoscale.cluster.api.whatif import whatif_routes
from isoscale.cluster.service import Service

__all__ = ["make_routes"]


def make_routes(service: Service) -> tuple[Route, ...]:
    table: list[Route] = []
    table += about_routes(service, lambda: table)
    table += overview_routes(service)
    table += job_routes(service)
    table += record_routes(service.desk)
    table += whatif_routes(service)
    table += device_routes(service)
    table += code_routes(service)
    table += token_routes(service)
    table += settings_routes(service)
    table += session_routes(service)
    table += event_routes(service)
    table += page_routes()
    return tuple(table)
