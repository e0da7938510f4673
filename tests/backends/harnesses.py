"""The backends that are held against the seam's checks."""

from __future__ import annotations

import os
from pathlib import Path

from isoscale.backends.host_id import machine_id
from isoscale.backends.local import LocalBackend
from isoscale.backends.seam import Backend, Device
from isoscale.backends.warm import WarmParents
from isoscale.backends.warm_sharing import Lender, sharing_directory
from isoscale.runtime.coordinator.run import WARM_UP

__all__ = ["Cold", "Light", "Shared", "Warm"]


class Cold:
    """Every process afresh."""

    def make(self) -> LocalBackend:
        return LocalBackend(devices=self.devices())

    def devices(self) -> list[Device]:
        return [Device(id=f"cpu/{number}", kind="cpu", node=machine_id()) for number in range(3)]

    def kind(self) -> str:
        return "cpu"

    async def vanish(self, backend: Backend, device: Device) -> None:
        assert isinstance(backend, LocalBackend)
        await backend.withdraw(device.id, within_s=0.0, reason="a test")


class Warm(Cold):
    """Forked from warm parents of its own."""

    def make(self) -> LocalBackend:
        return LocalBackend(warm=WarmParents(WARM_UP, Path(os.devnull)), devices=self.devices())


class Light(Cold):
    """Forked from warm parents of its own that have imported nothing: for what has nothing to do with torch."""

    def make(self) -> LocalBackend:
        return LocalBackend(warm=WarmParents("gc:collect", Path(os.devnull)), devices=self.devices())


class Shared(Cold):
    """Forked from warm parents that somebody else keeps."""

    def make(self) -> LocalBackend:
        parents = WarmParents(WARM_UP, Path(os.devnull), Lender(sharing_directory()))
        return LocalBackend(warm=parents, devices=self.devices())
