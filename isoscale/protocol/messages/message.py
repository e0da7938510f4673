"""What all messages have in common: tagged values that never change."""

from __future__ import annotations

import msgspec

__all__ = ["Message"]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Common options; the class name is the tag."""
