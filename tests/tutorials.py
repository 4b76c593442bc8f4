"""Run the blocks of a tutorial page, in order, in this folder: Python and commands.

A Python block that begins with the name of a file, as `# net.py`, is written to it as well.
`python tests/tutorials.py docs/tutorials/PAGE.md` prints a JSON list: for every block that is
followed by a `text` block, what the page shows and what was printed. With `--write` the page is
rewritten to show what was printed; `make tutorials` does this for all pages.
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(
    r"```(?P<language>python|sh)\n(?P<code>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", re.DOTALL
)
FILE = re.compile(r"# (\S+\.py)\n")


def figures_of(page: Path) -> list[str]:
    """The names of the figures that the page shows."""
    return re.findall(r"!\[[^\]]*\]\(figures/([^)]+)\)", page.read_text())


def needs_torch(page: Path) -> bool:
    """Whether the page uses PyTorch, with which `make test` does not run."""
    return "import torch" in page.read_text()


def run(page: Path) -> list[tuple[re.Match[str], str]]:
    """Every block of the page with what it printed."""
    text, names, found = page.read_text(), {"__name__": "__main__"}, []
    for block in BLOCK.finditer(text):
        if block["language"] == "sh":
            found.append((block, shell(block["code"])))
            continue
        if file := FILE.match(block["code"]):
            Path(file[1]).write_text(block["code"])
        printed = io.StringIO()
        lines_before = text.count("\n", 0, block.start("code"))
        code = compile("\n" * lines_before + block["code"], str(page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        found.append((block, printed.getvalue()))
    return found


def shell(commands: str) -> str:
    """What commands print, in the environment of this Python."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": folders}
    done = subprocess.run(
        ["sh", "-e"], input=commands, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{commands}fails:\n{done.stderr}")
    return done.stdout


def rewritten(text: str, found: list[tuple[re.Match[str], str]]) -> str:
    """The page with what was printed in place of what it showed."""
    for block, printed in reversed(found):
        if block["shown"] is not None:
            text = text[: block.start("shown")] + printed + text[block.end("shown") :]
    return text


if __name__ == "__main__":
    path = Path(sys.argv[1])
    outputs = run(path)
    if "--write" in sys.argv[2:]:
        path.write_text(rewritten(path.read_text(), outputs))
    shown = [(block["shown"], printed) for block, printed in outputs if block["shown"] is not None]
    json.dump(shown, sys.stdout)
