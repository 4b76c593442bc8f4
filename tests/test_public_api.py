"""Every public name is documented as it is: an example that runs, arguments as in the signature."""

import inspect
import re

import pytest
from docstring_parser import DocstringStyle, parse

import onebasin

MODULES = {"networks", "likelihoods"}
NAMES = sorted(set(dir(onebasin)) - MODULES - {"__version__"})
UNDERSTOOD = {"self", "cls", "args", "kwargs", "options", "provenance"}


def public(name):
    return getattr(onebasin, name)


def parameters(value):
    """The parameters that a caller gives, by name."""
    found = inspect.signature(value).parameters
    return [p for p in found if p not in UNDERSTOOD and not p.startswith("_")]


@pytest.mark.fast
@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_an_example(name):
    assert ">>> " in (inspect.getdoc(public(name)) or ""), f"{name} has no doctested example"


@pytest.mark.fast
@pytest.mark.parametrize("name", [n for n in NAMES if inspect.isroutine(public(n))])
def test_arguments_are_documented_as_they_are(name):
    """All of them where there is a list; a list where there are more than three."""
    doc = parse(inspect.getdoc(public(name)) or "", style=DocstringStyle.GOOGLE)
    listed = [one for p in doc.params for one in re.split(r",\s*", p.arg_name)]
    given = parameters(public(name))
    if listed or len(given) > 3:
        assert sorted(listed) == sorted(given)


@pytest.mark.fast
def test_keys_symmetry_and_progress_are_keyword_only():
    for name in NAMES:
        value = public(name)
        if not inspect.isroutine(value):
            continue
        for parameter in inspect.signature(value).parameters.values():
            if parameter.name in ("key", "symmetry", "progress"):
                assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, (name, parameter.name)
            if parameter.name == "key" and name != "align":
                assert parameter.default is inspect.Parameter.empty or parameter.default is None
