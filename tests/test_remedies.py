"""Errors about files, posteriors and symmetries: each has a remedy after a semicolon."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import onebasin

SOURCE = Path(onebasin.__file__).parent
CHECKED = ("data/*.py", "tensor_files.py", "posterior/*.py", "symmetry/*.py", "trees.py")
# Messages made of others that have one, parts of such, and those that no user sees.
PASSED_ON = {
    "it has version {version} of the format",
    "it holds objects, which could run code",
    "its shape {shape} takes {promised} bytes, but it holds {held}",
    "it is cut short",
    "it promises {promised} bytes, too many for a file of its size",
    "column '{name}' has {len(arrays[name])} rows, not all",
    "signs and scales cannot be checked: {failure}",
    "{member.filename} cannot have {member.file_size} bytes",
    "<index>",
    "<_what_is_missing(source, folder, located, setting)>",
    "{path}: {error}",
    "<str(error)>",
    "group '{group.name}': {error}",
    "<text if text.startswith(str(path)) else f'{path}: {text}'>",
    "{self.path} is a safetensors file but not {is_not}",
    "{stored} values cannot fill {sum(sizes.values())} parameters",
}
PASSED_ON_ENDS = ("{tried}", "does not carry its units", "{_reason(wide, theirs, added)}")


def text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                f"{{{ast.unparse(p.value)}}}" if isinstance(p, ast.FormattedValue) else text_of(p)
                for p in parts
            )
        case _:
            return f"<{ast.unparse(node)}>"


def messages() -> Iterator[tuple[str, str]]:
    for pattern in CHECKED:
        for path in sorted(SOURCE.glob(pattern)):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    yield f"{path.name}:{node.lineno}", text_of(node.exc.args[0])


@pytest.mark.fast
def test_every_message_has_a_remedy():
    found = list(messages())
    assert len(found) > 100
    lacking = [
        f"{place}: {text}"
        for place, text in found
        if ";" not in text and text not in PASSED_ON and not text.endswith(PASSED_ON_ENDS)
    ]
    assert lacking == []  # write "what is wrong; what to do"
