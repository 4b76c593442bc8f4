"""Checks on the headers of several posterior files, before any array is read."""

from collections.abc import Mapping
from typing import Any

from onebasin.posterior.files import Header


def check_same_params(headers: Mapping[Any, Header]) -> None:
    """Refuse files whose params differ in names or shapes; the keys are their paths."""
    (first, reference), *others = headers.items()
    expected = reference.params_shapes()
    for path, header in others:
        given = header.params_shapes()
        for leaf in sorted(expected.keys() | given.keys()):
            if expected.get(leaf) != given.get(leaf):
                shapes = [str(s.get(leaf, "absent")) for s in (given, expected)]
                raise ValueError(
                    f"{path} and {first} are of different networks: leaf '{leaf}' is {shapes[0]} "
                    f"in one and {shapes[1]} in the other; give files of one network"
                )


def check_same_network(headers: Mapping[Any, Header]) -> None:
    """Refuse files whose params or network configs differ; the keys are their paths.

    The source file of a network may have changed in between: whoever opens it is told so.
    """
    check_same_params(headers)
    (first, reference), *others = headers.items()
    for path, header in others:
        a, b = reference.network or {}, header.network or {}
        fields = sorted((a.keys() | b.keys()) - {"digest"})
        field = next((k for k in fields if a.get(k) != b.get(k)), None)
        if field is not None:
            raise ValueError(
                f"{path} and {first} are of different networks: '{field}' differs; give "
                "files of one network"
            )
