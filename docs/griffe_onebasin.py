"""How the API reference reads our docstrings and signatures (an extension of griffe).

Two conventions need help: examples are doctests without a heading, which Markdown would take for
quotations, and `**options: Unpack[SomeTypedDict]` stands for keyword arguments.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*\n?(?:(?P=indent)[^\n]*\S[^\n]*\n?)*", re.MULTILINE)


class OneBasinExtension(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for found in _objects(pkg):
            if found.docstring is not None:
                found.docstring.value = _fenced(found.docstring.value)
            if isinstance(found, griffe.Function):
                _expand_options(found)


def _objects(parent: griffe.Module | griffe.Class) -> Iterator[griffe.Object]:
    for member in parent.members.values():
        if member.is_alias:
            continue
        assert isinstance(member, griffe.Object)
        yield member
        if isinstance(member, griffe.Module | griffe.Class):
            yield from _objects(member)


def _fenced(text: str) -> str:
    """The docstring with every doctest in a fence."""

    def fence(example: re.Match[str]) -> str:
        indent, lines = example["indent"], example[0].rstrip("\n")
        return f"{indent}```pycon\n{lines}\n{indent}```\n"

    return EXAMPLE.sub(fence, text)


def _expand_options(function: griffe.Function) -> None:
    """Put the keys of a `TypedDict` in place of `**options: Unpack[...]`."""
    for parameter in list(function.parameters):
        annotation = parameter.annotation
        if (
            parameter.kind is griffe.ParameterKind.var_keyword
            and isinstance(annotation, griffe.ExprSubscript)
            and annotation.canonical_path == "typing.Unpack"
            and isinstance(annotation.slice, griffe.Expr)
        ):
            options = function.modules_collection[annotation.slice.canonical_path]
            del function.parameters[parameter.name]
            for name, attribute in options.attributes.items():
                kind, default = griffe.ParameterKind.keyword_only, "..."
                declared = attribute.annotation
                if isinstance(declared, griffe.ExprSubscript) and str(declared.left) == "Required":
                    declared, default = declared.slice, None
                function.parameters.add(
                    griffe.Parameter(name, annotation=declared, kind=kind, default=default)
                )
