"""`onebasin data`: which data sets are found, and what a data file of one's own holds."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from onebasin.cli import shared


@dataclass(frozen=True)
class Data(shared.DataOptions):
    """Show which data sets are on this machine, or what a data file of your own holds.

    Wherever a command takes --data, it may be a .npz file or a folder of .npy files with x_train,
    y_train, x_test and y_test (or x and y, which are split), or a .csv or .parquet table with a
    --target column. The split, the labels and the standardisation are kept in the file of the fit,
    and later commands repeat them.

    Example: onebasin data --root ~/data

    Example: onebasin data houses.csv --target price --drop id
    """

    file: Annotated[str | None, tyro.conf.Positional] = None
    """Data file to describe, as other commands would read it."""


COMMAND = Data


def run(config: Data) -> None:
    from onebasin.data import describe, render

    if config.file is None:
        found = describe(config.root)
        rows = {"data": [vars(one) for one in found]}
        shared.print_result(rows, render(found), as_json=config.json)
        return
    data = shared.read_data(config, config.file, config.root)
    record = data.record or {}
    lines = [str(data)]
    if columns := record.get("columns"):
        lines.append(f"features: {', '.join(columns)}")
    if labels := record.get("labels"):
        lines.append(f"labels: {', '.join(map(str, labels))}")
    for name, what in (("x", "features"), ("y", "targets")):
        if name in record.get("scaling", {}):
            lines.append(f"{what} are standardised by the training examples")
    shared.print_result(record, "\n".join(lines), as_json=config.json)
