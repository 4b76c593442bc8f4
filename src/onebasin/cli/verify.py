"""`onebasin verify`: what files are, and whether they are whole."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from onebasin.cli.shared import JsonOption, print_result


@dataclass(frozen=True)
class Verify(JsonOption):
    """Say what each file is and check every number in it against its checksum.

    The exit code is 2 if a file is damaged.

    Example: onebasin verify q0.safetensors hmc.safetensors
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Posteriors, sparse files, checkpoints, symmetries, records, histories, published data."""


COMMAND = Verify


def run(config: Verify) -> None:
    from onebasin.experiments.integrity import verify_file

    if not config.files:
        raise ValueError("name at least one file to verify")
    found = [verify_file(path) for path in config.files]
    files = {"files": [one.summary() for one in found]}
    print_result(files, "\n".join(map(str, found)), as_json=config.json)
    if not all(one.whole for one in found):
        sys.exit(2)
