"""The command itself: its table of commands, and the mapping of errors to a line and a status."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Final

import click

from weir.cli.invocation import SHARED, Invocation
from weir.cli.output import complain, is_terminal, message_of
from weir.errors import WeirError

DEBUG_ENV: Final = "WEIR_DEBUG"
SUCCESS, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Tables": {
        "create": "create",
        "enable": "create",
        "expire": "create",
        "ls": "stats",
        "shards": "stats",
        "stats": "stats",
        "top": "stats",
    },
    "Rows": {"put": "put", "scan": "read", "get": "read", "search": "read", "tail": "tail"},
    "Upkeep": {
        "checkpoint": "checkpoint",
        "consumer": "checkpoint",
        "clone": "clone",
        "restore": "clone",
        "drop": "clone",
        "compact": "upkeep",
        "gc": "upkeep",
        "keep": "keep",
        "reshard": "upkeep",
        "adopt-shard": "upkeep",
        "wal": "upkeep",
        "doctor": "doctor",
    },
}
"""The sections of the help, and the module in which each command is defined."""
MODULES: Final = {name: module for part in SECTIONS.values() for name, module in part.items()}


class Commands(click.Group):
    """A group that imports the module of a command when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in MODULES:
            return None
        module = importlib.import_module(f"weir.cli.{MODULES[cmd_name]}")
        found = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. One that is interrupted may say how to go on: what it raises again."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            if is_terminal(sys.stderr):
                sys.stderr.write("\n")  # after the terminal's ^C
            complain("; ".join(("interrupted", *error.args)))
            raise click.exceptions.Exit(INTERRUPTED) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, section by section."""
        for title, names in SECTIONS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name, each.get_short_help_str(formatter.width))
                for name, each in found
                if each is not None and not each.hidden
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.command(
    "weir",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Example: weir create events -C id:int64 -C v:float64 --key id",
)
@click.option("--debug", is_flag=True, help="Show tracebacks and the library's log.")
@click.version_option(package_name="lance-weir", message="weir %(version)s")
@click.pass_context
def weir(context: click.Context, *, debug: bool) -> None:
    """Durable, fenced writes and fresh reads for Lance tables on object storage."""
    context.ensure_object(Invocation)
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")


weir.params += SHARED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 success, 1 failed, 2 wrong usage."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    try:
        status = weir.main(argv, prog_name="weir", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        return _wrong_usage(error)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", INTERRUPTED)
    except SystemExit:
        # click raises this when the reader of our output closes the pipe (`weir scan ... | head`),
        # and at the end of a completion.
        return SUCCESS
    except BrokenPipeError:
        # The same, raised by the flush; buffered output must not be written to the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS
    except (WeirError, OSError) as error:
        _trace(argv)
        return _say(message_of(error), FAILED)
    except Exception as error:  # noqa: BLE001  the last line of defence
        if not _trace(argv):
            hint = "this is a bug: run `weir --debug ...` for a traceback, and please report it"
            return _say(f"unexpected {type(error).__name__}: {error}; {hint}", FAILED)
        return FAILED
    return status if isinstance(status, int) else SUCCESS


def _prepare_streams() -> None:
    """Let the standard streams be open, and take every character.

    A stream that the shell closed (`>&-`) is /dev/null: a file of the table that got its number
    would receive whatever a library prints. What an encoding lacks is written as an escape, as
    Python does on standard error.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _trace(argv: Sequence[str]) -> bool:
    wanted = bool(os.environ.get(DEBUG_ENV)) or "--debug" in argv
    if wanted:
        traceback.print_exc()
    return wanted


def _wrong_usage(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        sys.stderr.write(error.format_message() + "\n")
        return USAGE
    command = "weir" if error.ctx is None else error.ctx.command_path
    hint = f"see {command} --help"
    if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
        hint = f"write -- before a value that begins with -; {hint}"
    return _say(f"{error.format_message()} ({hint})", USAGE)


def _say(message: str, status: int) -> int:
    complain(message)
    return status
