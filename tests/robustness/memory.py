"""The memory that a call takes, of whatever library: NumPy, JAX, PyTorch, Arrow."""

from pathlib import Path
from types import TracebackType

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """The growth of the resident memory at its highest, in bytes: `with Peak() as peak: ...`."""

    def __enter__(self) -> "Peak":
        CLEAR.write_text("5")  # the peak starts anew from what is used now
        self._before = _field("VmRSS")
        self.bytes = 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bytes = _field("VmHWM") - self._before


def _field(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("this system does not tell the memory of a process")
