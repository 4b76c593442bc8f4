"""Every command and example of the README and of the docs runs as written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE_BY_MAKE = {"make demo", "make test"}  # the Makefile's own; what they run is tested elsewhere

# What the pages in docs/ take as given: a problem, two posteriors of it, their symmetry.
GIVEN = """
import jax
import jax.numpy as jnp
import onebasin as ob

key = jax.random.key(0)
data = ob.load_dataset("digits")
problem = ob.Problem.from_network(ob.networks.MLP(widths=(8,)), data, prior_variance=0.1)
apply, x = problem.apply, data.train.x[:16]
means = [problem.init(k) for k in jax.random.split(key)]
q0, q1 = (ob.MeanField(m, jax.tree.map(lambda a: 0.1 + 0 * a, m)) for m in means)
sym = ob.find_symmetry(apply, q0.mean, x)
samples = ob.Samples(q0.sample(80, key=key), jnp.arange(80) // 20)
"""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def run(command: list[str], folder: Path) -> str:
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", [pytest.param(p, id=p.stem) for p in PAGES])
def test_commands(page, tmp_path):
    for block in blocks(page, "sh"):
        for line in block.strip().splitlines():
            if line.strip() and line not in MADE_BY_MAKE:
                run(shlex.split(line, comments=True), tmp_path)


def test_python_example_of_the_readme(tmp_path):
    run([sys.executable, "-W", "error", "-c", "\n".join(blocks(PAGES[0], "python"))], tmp_path)


def test_python_examples_of_the_docs(tmp_path):
    """The blocks of one page run one after another, as a reader would type them.

    Every page starts from what is given, in one process, which then compiles each thing once.
    """
    (tmp_path / "given.py").write_text(GIVEN)
    program = "import given, runpy, sys\n"
    program += "for page in sys.argv[1:]: runpy.run_path(page, init_globals=vars(given))"
    pages = []
    for page in PAGES[1:]:
        pages.append(tmp_path / f"{page.stem}.py")
        pages[-1].write_text("\n".join(blocks(page, "python")))
    run([sys.executable, "-W", "error", "-c", program, *map(str, pages)], tmp_path)


def test_links_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_test_command_is_the_one_that_is_checked():
    assert "\nmake test\n" in (ROOT / "README.md").read_text()
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make test")
