"""Run work on small files, then on large ones with little more memory: `limited_process.py WORK`.

`WORK` is a JSON object: `room`, the bytes that the second run may take beyond the first, and either
`commands`, two command lines of `onebasin`, or `predict`, two files of inputs.
"""

import json
import resource
import sys
from pathlib import Path

import numpy as np


def data_bytes() -> int:
    """The private memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("this system does not tell the memory of a process")


def predict(path: str, columns: int) -> None:
    import jax

    import onebasin as ob

    x = np.memmap(path, np.float32, "r").reshape(-1, columns)
    params = {"w": jax.numpy.linspace(0, 1, 4 * columns).reshape(columns, 4)}
    q = ob.MeanField(params, params | {"w": params["w"] + 1})
    found = ob.predictive(
        q, lambda p, x: x @ p["w"], x, key=jax.random.key(0), num_samples=2, progress="silent"
    )
    assert isinstance(found, ob.Predictive)
    np.save(f"{path}.npy", found.log_probs)


def main() -> None:
    work = json.loads(sys.argv[1])
    for number in range(2):
        if number == 1:
            limit = data_bytes() + work["room"]
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            try:
                np.ones(2 * work["room"], np.uint8)
            except MemoryError:
                pass
            else:
                raise RuntimeError("the limit of memory has no effect")
        if "predict" in work:
            predict(work["predict"][number], work["columns"])
        else:
            from onebasin.cli.main import main as onebasin

            onebasin(work["commands"][number])


if __name__ == "__main__":
    main()
