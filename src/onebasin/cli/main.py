"""The `onebasin` command: parses and delegates."""

import codecs
import io
import os
import sys
import warnings
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from onebasin.cli.machine import split_arguments

USAGE_ERROR = 2
INTERRUPTED = 130
DEVICES = 4
"""Devices that the processor presents to JAX: chains and ensemble members run in parallel."""


@dataclass(frozen=True)
class Command:
    """A subcommand: the module with its `COMMAND` and `run`, and a summary for the help.

    `COMMAND` is a dataclass of options, or a dictionary of them by name (sub-subcommands).
    """

    module: str
    summary: str


COMMANDS = {
    "demo": Command("onebasin.cli.demo", "align two posteriors of the embedded digits"),
    "data": Command("onebasin.cli.data", "list the data sets on this machine"),
    "fit": Command("onebasin.cli.fit", "fit a posterior: vi, map, ensemble, hmc, nuts"),
    "symmetry": Command("onebasin.cli.symmetry", "find the permutation symmetries of a network"),
    "align": Command("onebasin.cli.align", "move posteriors into one basin"),
    "embed": Command("onebasin.cli.embed", "put a posterior into a wider network"),
    "merge": Command("onebasin.cli.merge", "average checkpoints in one basin"),
    "barrier": Command("onebasin.cli.barrier", "measure the loss along a path between two"),
    "compare": Command("onebasin.cli.compare", "compare the predictions of two posteriors"),
    "landscape": Command("onebasin.cli.landscape", "evaluate the loss on a plane of weights"),
    "compact": Command("onebasin.cli.compact", "fit one Gaussian to draws or posteriors"),
    "prune": Command("onebasin.cli.prune", "keep the most certain weights"),
    "diagnose": Command("onebasin.cli.diagnose", "check chains before and after alignment"),
    "reproduce": Command("onebasin.cli.reproduce", "run the published experiments"),
    "sweep": Command("onebasin.cli.sweep", "fit, align and measure over a grid of options"),
    "verify": Command("onebasin.cli.verify", "check that files are whole"),
    "report": Command("onebasin.cli.report", "write an HTML page of reproduced results"),
}

# What is printed where the encoding of the terminal lacks a character; "?" for all others.
PLAIN = {
    "→": "->", "±": "+/-", "×": "x", "−": "-", "–": "-", "—": "-", "…": "...", "·": "*",
    "“": '"', "”": '"', "‘": "'", "’": "'", "²": "^2", "³": "^3", "₂": "2", "₀": "0", "₁": "1",
    "σ": "sigma", "β": "beta", "ε": "epsilon", "≤": "<=", "≥": ">=", "│": "|",
}  # fmt: skip

HELP = """\
usage: onebasin COMMAND [OPTIONS]
Move posteriors of Bayesian neural networks into one basin.
commands (`onebasin COMMAND --help` for a command's own options):
{commands}

options: -h; --version; --debug; --device cpu|gpu|tpu; --threads N; --x64
several processes: --distributed; or --coordinator, --processes, --process
examples: onebasin demo; onebasin fit vi --out q.safetensors
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; errors are one sentence on standard error and exit code 2."""
    _print_any_text()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    try:
        machine, arguments = split_arguments(arguments)
    except ValueError as error:
        _fail(str(error))
    if not arguments or arguments[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<12} {c.summary}" for name, c in COMMANDS.items())
        sys.stdout.write(HELP.format(commands=listed))
        sys.exit(0 if arguments else USAGE_ERROR)
    if arguments[0] == "--version":
        from onebasin import __version__

        sys.stdout.write(f"onebasin {__version__}\n")
        sys.exit(0)
    name, *rest = arguments
    if name not in COMMANDS:
        _fail(f"there is no command '{name}'; the commands are {', '.join(COMMANDS)}")
    if machine.is_shared and name != "fit":
        _fail(f"several processes can share a fit, but not '{name}'; run it without --distributed")
    if argv is None:  # not called from a Python program, which may use JAX already
        _offer_devices(os.environ)
        from onebasin.compilation_cache import settings

        os.environ.update(settings(os.environ))
        warnings.showwarning = _show_warning
    try:
        with machine.used():
            _run(name, rest)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, and the interpreter would complain
        sys.exit(0)
    except KeyboardInterrupt as stop:
        _fail(_message(stop, name) or "interrupted", getattr(stop, "exit_code", INTERRUPTED))
    except (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError) as error:
        if debug:
            raise
        _fail(_message(error, name) or type(error).__name__)
    except Exception as error:
        message = _message_of_jax(error)
        if debug or not message:
            raise
        _fail(message)


def _print_any_text() -> None:
    """Write characters that the encoding of the terminal lacks in others, instead of failing."""

    def replace(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        text = error.object[error.start : error.end]
        return "".join(PLAIN.get(letter, "?") for letter in text), error.end

    codecs.register_error("onebasin", replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="onebasin")


def _offer_devices(environment: MutableMapping[str, str]) -> None:
    """Let JAX run several fits in parallel on one processor, unless the user has chosen.

    JAX reads the variable when it is imported. One computation still uses all cores; several are
    faster on a device each than one after another (`benchmarks/hmc_devices.py`).
    """
    if "xla_force_host_platform_device_count" not in environment.get("XLA_FLAGS", ""):
        environment.setdefault("JAX_NUM_CPU_DEVICES", str(DEVICES))


def _run(name: str, arguments: list[str]) -> None:
    from onebasin.cli.shared import check_options
    from onebasin.cli.usage import help_text, parsed

    module = import_module(COMMANDS[name].module)
    prog, command = f"onebasin {name}", module.COMMAND
    if isinstance(command, dict) and not {*arguments[:1]} & {*command, "-h", "--help"}:
        given = f"'{arguments[0]}' is none of" if arguments else "name one of"
        raise ValueError(f"{prog}: {given} {', '.join(command)}; see `{prog} --help`")
    if isinstance(command, dict) and len(arguments) > 1 and arguments[0] in command:
        first, *arguments = arguments
        prog, command = f"{prog} {first}", command[first]
    if "-h" in arguments or "--help" in arguments:
        sys.stdout.write(help_text(prog, command))
        return
    if "" in arguments:  # as a path it would be the working directory
        raise ValueError(f"{prog}: an argument is empty; give a value, or leave it out")
    config = parsed(prog, command, arguments)
    check_options(config)
    module.run(config)


def _show_warning(message: Warning | str, *rest: object) -> None:
    """A warning in one line, without the place in the library that gave it."""
    del rest
    sys.stderr.write(f"onebasin: warning: {' '.join(str(message).split())}\n")


def _message_of_jax(error: Exception) -> str:
    """One sentence for an error of JAX that the user can remedy; empty for others."""
    text = " ".join(str(error).split())
    if "RESOURCE_EXHAUSTED" in text:
        return f"there is not enough memory: {text}"
    try:
        if "jax" in sys.modules:
            import_module("jax").devices()
    except Exception as failure:  # of any kind: plugins raise what they like
        chosen = os.environ.get("JAX_PLATFORMS", "")
        reason = " ".join(str(failure).split()) or type(failure).__name__
        return (
            f"JAX finds no device with JAX_PLATFORMS='{chosen}' ({reason}); set it to cpu, or give "
            "--device cpu"
        )
    return ""


def _message(error: BaseException, name: str) -> str:
    """The error in one line, with flags in place of Python arguments."""
    from onebasin.cli.usage import in_flags, option_names

    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"{error.filename} is a file where a folder is needed; give another path"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    module = sys.modules.get(COMMANDS[name].module)  # absent if it could not be imported
    names = option_names(module.COMMAND) if module else ()
    return in_flags(" ".join(str(error).split()), names)


def _fail(message: str, code: int = USAGE_ERROR) -> NoReturn:
    sys.stderr.write(f"onebasin: {message}\n")
    sys.exit(code)
