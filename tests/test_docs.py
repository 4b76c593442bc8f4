"""The documentation site is complete: names, layers, files, commands, and navigation."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import onebasin
from onebasin.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "onebasin"
ARCHITECTURE = (DOCS / "architecture.md").read_text()

pytestmark = pytest.mark.fast


def api_objects() -> list[object]:
    """What the pages of the API reference document, in `::: module.name` blocks."""
    pages = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
    found: list[object] = []
    for path in re.findall(r"^::: (\S+)$", pages, re.MULTILINE):
        module, _, name = path.rpartition(".")
        parent = import_module(module)
        found.append(getattr(parent, name) if hasattr(parent, name) else import_module(path))
    return found


def public_names() -> list[str]:
    """The names in the stub that lists the public API."""
    stub = (SOURCE / "__init__.pyi").read_text()
    return re.findall(r"^from \S+ import \w+ as (\w+)$", stub, re.MULTILINE)


def test_every_public_name_is_in_the_api_reference() -> None:
    documented = [id(value) for value in api_objects()]
    names = public_names()
    assert set(names) == set(dir(onebasin))
    for name in set(names) - {"networks", "likelihoods"}:
        assert id(getattr(onebasin, name)) in documented, f"{name} is on no page of docs/api"


@pytest.mark.parametrize("name", ["networks", "likelihoods"])
def test_modules_are_in_the_api_reference(name: str) -> None:
    module = getattr(onebasin, name).__name__
    modules = [getattr(value, "__module__", "") for value in api_objects()]
    assert any(found == module or found.startswith(f"{module}.") for found in modules)


def test_nothing_is_documented_twice() -> None:
    documented = [id(value) for value in api_objects()]
    assert len(set(documented)) == len(documented)


def test_layers_are_those_of_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = project["tool"]["importlinter"]["contracts"]
    shown = ARCHITECTURE.split("<!-- layers -->")[1].split("<!-- /layers -->")[0]
    layers = [re.findall(r"`([\w.]+)`", item) for item in re.split(r"\n\d+\. ", shown)[1:]]
    assert layers == [layer.split(" | ") for layer in contract["layers"]]


def test_the_tree_is_that_of_the_source() -> None:
    shown = ARCHITECTURE.split("src/onebasin/\n")[1].split("tests/")[0]
    names = [line.split()[0].rstrip("/") for line in shown.splitlines() if line.strip()]
    present = {
        p.name for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert set(names) - {"__init__.pyi"} == present - {"__init__.py", "__main__.py"}


def test_files_named_in_the_architecture_exist() -> None:
    named = re.findall(r"`([\w./*-]+\.pyi?)`", ARCHITECTURE)
    assert len(named) > 30
    folder = SOURCE
    for name in named:
        if "/" in name:
            folder = (SOURCE / name).parent
        places = [folder, SOURCE, ROOT]  # a bare name is in the folder that was named last
        bases = [base / Path(name).name if base == folder else base / name for base in places]
        assert any(list(path.parent.glob(path.name)) for path in bases), name


def test_files_named_on_the_pages_exist() -> None:
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for name in re.findall(r"`((?:[\w-]+/)+[\w*]+\.(?:pyi?|json|toml))`", page.read_text()):
            found = (
                any(list(base.glob(name)) for base in (SOURCE, SOURCE.parent, ROOT))
                or "runs/" in name
            )
            assert found, f"{page.relative_to(ROOT)} names {name}"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("alignment.objective", "OBJECTIVES"),
        ("likelihoods", "NAMED"),
        ("cli.main", "COMMANDS"),
        ("posterior.files", "TREES"),
        ("posterior.files", "KINDS"),
        ("inference.fitting", "BUILDERS"),
        ("cli.fit", "COMMAND"),
    ],
)
def test_tables_named_in_the_architecture_exist(module: str, name: str) -> None:
    assert f"`{name}`" in ARCHITECTURE
    assert hasattr(import_module(f"onebasin.{module}"), name)


def test_commands_are_listed() -> None:
    page = (DOCS / "command-line.md").read_text()
    assert re.findall(r"^\| `onebasin ([\w-]+)` \|", page, re.MULTILINE) == list(COMMANDS)


def navigation(entry: object) -> list[str]:
    """The pages below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    assert not isinstance(children, str)
    return [page for child in children for page in navigation(child)]  # pyright: ignore[reportGeneralTypeIssues]


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = navigation(config["nav"])
    assert sorted(listed) == sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))
    assert config["strict"] is True
    assert config["theme"]["font"] is False


def test_links_between_pages_lead_somewhere() -> None:
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[)#]", page.read_text()):
            path = (page.parent / target).resolve()
            assert path.exists(), f"{page.relative_to(ROOT)} links to {target}"
            assert path.is_relative_to(DOCS), (
                f"{page.relative_to(ROOT)} links to {target}, off-site"
            )


def test_the_changelog_has_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == onebasin.__version__
    assert f"\n## [{onebasin.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()
