"""The help of a command on one screen, and errors in its options in one sentence.

Tyro knows the options; its own help draws boxes, shows both forms of every switch and the
defaults that say nothing, and takes two screens for what fits on one.
"""

import argparse
import contextlib
import inspect
import io
import re
import shutil
import textwrap
import warnings
from collections.abc import Iterator
from typing import Any

NAME_WIDTH = 30  # a longer name stands on a line of its own
LONG_CHOICE = 24  # characters up to which choices stand beside the name
UNSAID = ("", "None", "False", "True")


def help_text(prog: str, command: Any) -> str:
    """What `prog --help` prints for a dataclass of options, or a dictionary of them by name."""
    if isinstance(command, dict):
        return _help_of_several(prog, command)
    import tyro

    with warnings.catch_warnings():  # nothing replaces it yet
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(command, prog=prog)
    width = min(max(shutil.get_terminal_size().columns, 60), 100)
    actions = [a for a in parser._actions if a.dest != "help"]
    rows = [_row(action) for action in actions]
    column = 2 + min(max(len(name) for name, _ in rows), NAME_WIDTH)
    lines = [f"usage: {prog} {' '.join(_needed(actions))}", ""]
    for paragraph in _description(parser.description or ""):
        lines += paragraph if paragraph[0].startswith("Example") else _filled(paragraph, width)
        lines.append("")
    for name, text in rows:
        lines += _wrapped(name, text, column, width)
    return "\n".join(lines) + "\n"


def _help_of_several(prog: str, commands: dict[str, Any]) -> str:
    width = max(map(len, commands))
    first = next(iter(commands))
    about = {name: inspect.cleandoc(c.__doc__).splitlines() for name, c in commands.items()}
    lines = [
        f"usage: {prog} {'|'.join(commands)} [OPTIONS]",
        "",
        *(f"  {name:<{width}}  {text[0]}" for name, text in about.items()),
        "",
        f"`{prog} {first} --help` shows the options of one.",
        *(line for line in about[first] if line.startswith("Example")),
    ]
    return "\n".join(lines) + "\n"


def _description(text: str) -> list[list[str]]:
    """Paragraphs as lines."""
    return [p.splitlines() for p in inspect.cleandoc(text).split("\n\n") if p.strip()]


def _filled(paragraph: list[str], width: int) -> list[str]:
    return textwrap.wrap(" ".join(paragraph), width, break_on_hyphens=False)


def _needed(actions: list[argparse.Action]) -> Iterator[str]:
    for action in actions:
        if not action.option_strings:
            yield _value(action)
        elif action.required:
            yield f"{action.option_strings[0]} {_value(action)}"
    yield "[OPTIONS]"


def _row(action: argparse.Action) -> tuple[str, str]:
    text, default = _split_default(action.help or "")
    if not action.option_strings:
        return _value(action), text
    name = action.option_strings[0]
    if action.nargs == 0:  # a switch: the form that changes something
        name = action.option_strings[1] if default == "True" else name
        return name, f"Not to {text[:1].lower()}{text[1:]}" if default == "True" else text
    choices = _choices(action)
    if choices and len(choices) > LONG_CHOICE:
        text = f"{text.rstrip('.')}: {choices.replace('|', ', ')}."
    said = "required" if action.required else default
    return f"{name} {_value(action)}", text if said in UNSAID else f"{text} [{said}]"


def _value(action: argparse.Action) -> str:
    """What is to be given, in one word."""
    choices = _choices(action)
    if choices:
        return (
            choices if len(choices) <= LONG_CHOICE else re.split("[._-]", action.dest)[-1].upper()
        )
    shown = str(action.metavar or action.dest.upper()).replace("{None}|", "")
    return f"{shown.split()[0].strip('[]')} ..." if "..." in shown else shown


def _choices(action: argparse.Action) -> str:
    """The values to choose from, in the order of their definition."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", str(action.metavar or ""))
    return "|".join(c for c in found[1].split(",") if c != "None") if found else ""


def _split_default(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"(.*?)\s*\((?:default: (.*)|required)\)", text, re.DOTALL)
    return (found[1], found[2] or "") if found else (text, "")


def _wrapped(name: str, text: str, column: int, width: int) -> list[str]:
    indent = " " * (column + 2)
    lines = textwrap.wrap(text, width - len(indent), break_on_hyphens=False) or [""]
    lines = [indent + line for line in lines]
    if len(name) > column - 2:
        return [f"  {name}", *lines]
    return [f"  {name:<{column}}{lines[0].strip()}", *lines[1:]]


def parsed(prog: str, command: Any, arguments: list[str]) -> Any:
    """The options that the arguments give; a wrong one is a `ValueError` of one sentence."""
    import tyro

    parse: Any = tyro.extras.subcommand_cli_from_dict if isinstance(command, dict) else tyro.cli
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return parse(command, prog=prog, args=arguments)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ValueError(f"{_sentence(printed.getvalue())}; see `{prog} --help`") from None


def _sentence(box: str) -> str:
    """What Tyro says in a box, without the box and without what its help repeats."""
    # The first line is its title; rules are of hyphens where the terminal has nothing else.
    lines = [line.strip("│╰╯ ") for line in box.splitlines()[1:]]
    text = "\n".join("" if set(line) <= {"─", "-"} else line for line in lines)
    what, *more = [" ".join(part.split()) for part in re.split(r"\n\n+", text) if part.strip()]
    meant = [re.findall(r"--[\w-]+", s)[:1] for s in more if s.startswith("Perhaps")]
    others = [s for s in more if s.startswith("Available")]
    hints = [f"did you mean {found[0]}?" for found in meant if found] + others
    return "; ".join([what.replace(" (required)", "").rstrip("."), *hints])
