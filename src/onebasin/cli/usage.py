"""The help of a command on one screen, and errors in its options in one sentence.

Tyro parses the options. Its own help draws boxes, shows both forms of every switch and trivial
defaults, and takes two screens for what fits on one.
"""

import argparse
import contextlib
import dataclasses
import inspect
import io
import re
import shutil
import textwrap
import warnings
from collections.abc import Collection, Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

NAME_WIDTH = 30  # a longer name has a line of its own
LONG_USAGE = 50
LONG_CHOICE = 24  # characters up to which choices are shown beside the name
LARGEST = 2**31 - 1  # of integers
TRIVIAL = ("", "None", "False", "True")  # defaults not worth showing
# A word, or a keyword argument with its value; not a part of a path or of a longer name.
ARGUMENT = re.compile(
    r"(set )?(?<![\w/.'=-])(\w+)"
    r"(=(?:True\b|False\b|'[^']*'|\([^)]*\)|-?\d[\d.]*(?:e-?\d+)?(?<!\.)|(?=[\s,;.)]|$)))?"
    r"(?![\w/=-]|\.\w)"
)
# Options that many commands share.
LAST = ("data", "split", "limit", "root", "seed", "figure", "overwrite", "json")
# Options of data files of one's own; one command describes them, the others name them.
OF_FILES = ("target", "drop", "test_share", "standardise", "likelihood", "noise_std")
DESCRIBES_FILES = "onebasin data"


def help_text(prog: str, command: Any) -> str:
    """The help for a dataclass of options, or for a dictionary of them by name."""
    if isinstance(command, dict):
        return _help_of_several(prog, command)
    import tyro

    with warnings.catch_warnings():  # nothing replaces it yet
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(command, prog=prog)
    width = min(max(shutil.get_terminal_size().columns, 60), 100)
    actions = sorted((a for a in parser._actions if a.dest != "help"), key=_place)
    named = [] if prog == DESCRIBES_FILES else [a for a in actions if _name(a) in OF_FILES]
    rows = [_row(action) for action in actions if action not in named]
    column = 2 + min(max(len(name) for name, _ in rows), NAME_WIDTH)
    lines = [f"usage: {prog} {' '.join(_needed(actions))}", ""]
    for paragraph in inspect.cleandoc(parser.description or "").split("\n\n"):
        lines += [*_filled(paragraph, width), ""]
    for name, text in rows:
        lines += _wrapped(name, text, column, width)
    if named:
        flags = ", ".join(action.option_strings[0] for action in named)
        text = f"For data files of your own also {flags}: see `{DESCRIBES_FILES} --help`."
        lines += textwrap.wrap(text, width, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _help_of_several(prog: str, commands: dict[str, Any]) -> str:
    width = max(map(len, commands))
    first = next(iter(commands))
    about = {name: inspect.cleandoc(c.__doc__).splitlines() for name, c in commands.items()}
    names = "|".join(commands)
    lines = [
        # The names are listed below; many of them would not fit into the line.
        f"usage: {prog} {names if len(names) <= LONG_USAGE else 'COMMAND'} [OPTIONS]",
        "",
        *(f"  {name:<{width}}  {text[0]}" for name, text in about.items()),
        "",
        f"`{prog} {first} --help` shows the options of {first}.",
        "",
        *(line for line in about[first] if line.startswith("Example")),
    ]
    return "\n".join(lines) + "\n"


def _place(action: argparse.Action) -> int:
    """Positional arguments come first, options that many commands share come last."""
    if not action.option_strings:
        return -2
    name = _name(action)
    return LAST.index(name) if name in LAST else -1


def _name(action: argparse.Action) -> str:
    return action.dest.split(".")[-1].replace("-", "_")


def _filled(paragraph: str, width: int) -> list[str]:
    if not paragraph.startswith("Example") or len(paragraph) <= width:
        return textwrap.wrap(paragraph, width, break_on_hyphens=False)
    # Options stay whole, and the shell takes the lines as one command.
    kept = re.sub(r" (?!-)", "\0", paragraph)
    lines = textwrap.wrap(
        kept, width - 2, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
    return " \\\n".join(lines).replace("\0", " ").splitlines()


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
        return name, f"Do not {text[:1].lower()}{text[1:]}" if default == "True" else text
    choices = _choices(action)
    if choices and len(choices) > LONG_CHOICE:
        text = f"{text} One of {choices.replace('|', ', ')}."
    shown = "required" if action.required else default
    return f"{name} {_value(action)}", text if shown in TRIVIAL else f"{text} [{shown}]"


def _value(action: argparse.Action) -> str:
    """The placeholder of a value, in one word."""
    choices = _choices(action)
    if not action.option_strings:
        name = action.dest.upper()
        return {"*": f"{name} ...", "+": f"{name} ...", "?": f"[{name}]"}.get(
            str(action.nargs), name
        )
    if choices:
        return (
            choices if len(choices) <= LONG_CHOICE else re.split("[._-]", action.dest)[-1].upper()
        )
    shown = str(action.metavar or action.dest.upper()).replace("{None}|", "")
    return f"{shown.split()[0].strip('[]')} ..." if "..." in shown else shown


def _choices(action: argparse.Action) -> str:
    """The possible values, in the order of their definition."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", str(action.metavar or ""))
    return "|".join(c for c in found[1].split(",") if c != "None") if found else ""


def _split_default(text: str) -> tuple[str, str]:
    text = text.replace("%%", "%")  # argparse would format it
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
    """The options from the arguments; a wrong one is a `ValueError` of one sentence."""
    import tyro
    from tyro.constructors import ConstructorRegistry

    parse: Any = tyro.extras.subcommand_cli_from_dict if isinstance(command, dict) else tyro.cli
    printed, registry = io.StringIO(), ConstructorRegistry()
    registry.primitive_rule(_number)
    try:
        with contextlib.redirect_stderr(printed), registry:
            return parse(command, prog=prog, args=arguments)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ValueError(f"{_sentence(printed.getvalue())}; see `{prog} --help`") from None


def _number(info: Any) -> Any:
    """How Tyro reads numbers: neither NaN nor integers beyond those that JAX counts with."""
    from tyro.constructors import PrimitiveConstructorSpec

    # Of `int | None`, which is left out to mean none, the int.
    kinds = [kind for kind in get_args(info.type) if kind is not type(None)] or [info.type]
    if kinds not in ([int], [float]) or get_origin(info.type) not in (None, Union, UnionType):
        return None
    (number_type,) = kinds

    def read(words: list[str]) -> int | float:
        (word,) = words
        digits = word.lstrip("+-").replace("_", "").lstrip("0")
        # Python itself converts no more than 4300 digits.
        long = digits.isdecimal() and len(digits) > len(str(LARGEST))
        if number_type is int and (long or abs(int(word)) > LARGEST):
            shown = word if len(word) < 40 else f"{word[:20]}…"
            raise ValueError(f"{shown} is too large; integers go up to {LARGEST}")
        number = number_type(word)
        if number != number:
            raise ValueError(f"{word} is not a number; give one")
        return number

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=number_type.__name__.upper(),
        instance_from_str=read,
        is_instance=lambda value: (
            isinstance(value, int | float) or (value is None and type(None) in get_args(info.type))
        ),
        str_from_instance=lambda value: [str(value)],
    )


def _sentence(box: str) -> str:
    """Tyro's message without its box and without what our help repeats."""
    # The first line is the title; rules are hyphens where the terminal has no other characters.
    lines = [line.strip("│╰╯ ") for line in box.splitlines()[1:]]
    text = "\n".join("" if set(line) <= {"─", "-"} else line for line in lines)
    what, *more = [" ".join(part.split()) for part in re.split(r"\n\n+", text) if part.strip()]
    what = re.sub(r"Expected one of \(('.*?')\)", _choices_sorted, what)
    what = re.sub(
        r"Error parsing (--[\w-]+): Could not find valid parse for arguments: \[(.*)\]",
        r"\1 does not take \2",
        what,
    )
    meant = [re.findall(r"--[\w-]+", s)[:1] for s in more if s.startswith("Perhaps")]
    others = [s for s in more if s.startswith("Available")]
    hints = [f"did you mean {found[0]}?" for found in meant if found] + others
    return "; ".join([what.replace(" (required)", "").rstrip("."), *hints])


def _choices_sorted(found: re.Match[str]) -> str:
    """Tyro gives choices in the order of a set, and None for an option that is left out."""
    names = sorted(re.findall(r"'([^']*)'", found[1]))
    return f"Expected one of {', '.join(name for name in names if name != 'None')}"


def option_names(command: Any) -> set[str]:
    """The Python names of all options of a command, those of nested dataclasses included."""
    if isinstance(command, dict):
        return set().union(*map(option_names, command.values()))
    names: set[str] = set()
    for name, kind in get_type_hints(command).items():
        names |= option_names(kind) if dataclasses.is_dataclass(kind) else {name}
    return names


def in_flags(message: str, names: Collection[str]) -> str:
    """A message of the library, with its Python arguments written as flags of the shell.

    >>> in_flags("q exists; give overwrite=True to replace it", {"overwrite"})
    'q exists; give --overwrite to replace it'
    >>> in_flags("max_sweeps is 0; use starts=('auto', 'random')", {"max_sweeps", "starts"})
    '--max-sweeps is 0; use --starts auto random'
    >>> in_flags("test_share=0.01 keeps none", {"test_share"})
    '--test-share 0.01 keeps none'
    >>> in_flags("epochs of MAP must be a whole number", {"epochs"})
    '--epochs of MAP must be a whole number'
    """

    def flag(found: re.Match[str]) -> str:
        before, name, value = found[1] or "", found[2], found[3]
        subject = found.start() == 0 and re.match(
            r"( of \w+)? (is|must|names) ", message[found.end() :]
        )
        if name not in names or not (value or subject or "_" in name):
            return found[0]
        words = re.findall(r"(?<=')[^',]+(?=')|-?\d[\w.-]*|\w+", value or "")
        if words == ["False"]:
            return f"drop --{name.replace('_', '-')}"
        return " ".join([f"{before}--{name.replace('_', '-')}", *words]).removesuffix(" True")

    return ARGUMENT.sub(flag, message)
