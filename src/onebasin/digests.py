"""JSON that shows when it has been changed: an object with a digest of its other fields.

The digest is the SHA-256 of the object as canonical JSON: without the digest, names sorted, no
spaces. It does not depend on how the file is laid out. Files of earlier versions, and those that
people write, have none.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGEST = "digest"


class Damaged(ValueError):
    """What is wrong with a file, as a sentence without its subject."""


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of everything in an object but its digest.

    >>> digest_of({"a": 1, "b": 0.5}) == digest_of({"b": 0.5, "a": 1, "digest": "of anything"})
    True
    """
    rest = {name: value for name, value in content.items() if name != DIGEST}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """An object as plain JSON values, with its digest as the last field.

    >>> sealed({"loss": 0.5})["loss"]
    0.5
    """
    found = json.loads(json.dumps(content, allow_nan=False, default=plain))
    found.pop(DIGEST, None)
    return {**found, DIGEST: digest_of(found)}


def sealed_text(content: Mapping[str, Any]) -> str:
    """The text of a JSON file that holds an object and its digest."""
    return json.dumps(sealed(content), indent=1, allow_nan=False) + "\n"


def unsealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """An object without its digest; one whose digest is not that of the rest is damaged.

    >>> unsealed({**sealed({"loss": 0.5}), "loss": 0.7})
    Traceback (most recent call last):
        ...
    onebasin.digests.Damaged: does not have the content that its digest was computed from
    """
    if DIGEST in content and content[DIGEST] != digest_of(content):
        raise Damaged("does not have the content that its digest was computed from")
    return {name: value for name, value in content.items() if name != DIGEST}


def plain(value: Any) -> Any:
    """What JSON has no form for, as lists and numbers."""
    if hasattr(value, "tolist"):  # an array of NumPy or JAX
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
