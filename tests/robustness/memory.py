"""The memory that a call takes, of whatever library: NumPy, JAX, PyTorch, Arrow."""

import ctypes
from pathlib import Path
from types import TracebackType

LIBC = ctypes.CDLL(None)
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """The growth of the resident memory at its highest, in bytes: `with Peak() as peak: ...`.

    It is 0 on systems other than Linux.
    """

    def __enter__(self) -> "Peak":
        self.bytes = self._before = 0
        if CLEAR.exists():
            # What was freed goes back to the system: using it again would not be seen.
            if hasattr(LIBC, "malloc_trim"):
                LIBC.malloc_trim(0)
            CLEAR.write_text("5")  # the peak starts anew from what is used now
            self._before = _field("VmRSS")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if CLEAR.exists():
            self.bytes = _field("VmHWM") - self._before


def _field(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("this system does not tell the memory of a process")
