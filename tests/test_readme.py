"""Every command and example in the README and in docs/ runs as written.

Tutorials are tested with their outputs and figures elsewhere.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, *(page for page in DOCS if page.parent.name != "tutorials")]
BY_MAKE = {"make demo", "make test"}  # what they run is tested elsewhere

# What pages in docs/ assume: a problem, two posteriors of it, and their symmetry.
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


def with_code(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


@pytest.mark.parametrize("page", with_code("sh"), ids=name)
def test_commands(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and line not in BY_MAKE:
                run(shlex.split(line, comments=True), tmp_path)


def test_python_example_of_the_readme(tmp_path: Path) -> None:
    assert README in with_code("python")
    run([sys.executable, "-W", "error", "-c", "\n".join(blocks(README, "python"))], tmp_path)


def test_python_examples_of_the_docs(tmp_path: Path) -> None:
    """The blocks of a page run one after another, as a reader would type them.

    Every page starts from `GIVEN`, in one process, which then compiles each thing once.
    """
    (tmp_path / "given.py").write_text(GIVEN)
    program = "import given, runpy, sys\n"
    program += "for page in sys.argv[1:]: runpy.run_path(page, init_globals=vars(given))"
    pages = []
    for page in with_code("python"):
        if page != README and page.stem != "pytorch":  # tests/pytorch runs the page on PyTorch
            pages.append(tmp_path / f"{name(page).replace('/', '-')}.py")
            pages[-1].write_text("\n".join(blocks(page, "python")))
    assert pages
    run([sys.executable, "-W", "error", "-c", program, *map(str, pages)], tmp_path)


def test_links_lead_somewhere() -> None:
    for page in [README, ROOT / "CONTRIBUTING.md", *DOCS]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_the_documented_test_command_is_the_one_that_ci_runs() -> None:
    assert "\nmake test\n" in README.read_text()
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()
