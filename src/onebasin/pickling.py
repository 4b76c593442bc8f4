"""Dataclasses that are pickled as values, for other processes of a user's own program."""

from dataclasses import fields
from typing import Any


class PickledByFields:
    """A base of dataclasses whose pickle holds the fields, and not what was computed from them.

    What is cached can be large, or true in one process only, such as the hash of a text.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {own.name: getattr(self, own.name) for own in fields(self)}  # pyright: ignore[reportArgumentType]
