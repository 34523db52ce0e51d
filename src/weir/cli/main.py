"""The command itself: its groups, and the mapping of errors to one line and an exit status."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from weir.cli import (
    bench,
    checkpoint,
    clone,
    create,
    demo,
    doctor,
    put,
    read,
    stats,
    tail,
    top,
    upgrade,
    upkeep,
    wal,
)
from weir.cli.looks import HELP_OPTIONS, tidy_help
from weir.errors import WeirError

DEBUG_ENV = "WEIR_DEBUG"
COMMANDS = {
    "table.checkpoints()": "weir checkpoint list",
    "table.compact()": "weir compact",
    "table.release_clone(uri)": "weir checkpoint release",
    "table.shards()": "weir shards",
    "table.upgrade()": "weir upgrade",
    "weir.create": "weir create",
    "weir.enable": "weir enable",
    "weir.open opens it": "choose another place",
}
"""API calls in the library's error messages, and the shell commands that replace them."""
SUCCESS, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

# typer bundles click since about 0.16; this finds the usage error class in either case.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="weir",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP_OPTIONS)},
    help="Durable, fenced writes and fresh reads for Lance tables on object storage.",
    epilog="Example: [bold]weir create events -C id:int64 -C v:float64 --key id[/bold]",
)
for group in (
    create,
    stats,
    top,
    demo,
    put,
    read,
    tail,
    checkpoint,
    clone,
    upkeep,
    upgrade,
    wal,
    bench,
    doctor,
):
    group.register(app)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"weir {version('lance-weir')}")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and the library's log.")
    ] = False,
    version: Annotated[  # noqa: ARG001  its callback does the work
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")


def command() -> Any:
    """The click command that typer builds."""
    made: Any = typer.main.get_command(app)
    tidy_help(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 success, 1 failed, 2 wrong usage."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = command()(argv, prog_name="weir", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        return _wrong_usage(error)
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", INTERRUPTED)
    except SystemExit:
        # typer raises this when the reader of our output closes the pipe (`weir scan ... | head`).
        return SUCCESS
    except BrokenPipeError:
        # The same, raised by the flush; buffered output must not be written to the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS
    except (WeirError, OSError) as error:
        _trace(argv)
        return _say(_line(error), FAILED)
    except Exception as error:  # noqa: BLE001  the last line of defence
        if not _trace(argv):
            hint = "this is a bug: run `weir --debug ...` for a traceback, and please report it"
            return _say(f"unexpected {type(error).__name__}: {_line(error)}; {hint}", FAILED)
        return FAILED
    if result == INTERRUPTED:  # typer returns this for Ctrl-C
        return _say("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else SUCCESS


def _trace(argv: Sequence[str]) -> bool:
    wanted = bool(os.environ.get(DEBUG_ENV)) or "--debug" in argv
    if wanted:
        traceback.print_exc()
    return wanted


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    for call, command in COMMANDS.items():
        text = text.replace(call, command)
    return text


def _wrong_usage(error: BaseException) -> int:
    context = getattr(error, "ctx", None)
    message = getattr(error, "format_message", lambda: str(error))()
    command = context.command_path if context is not None else "weir"
    if not message:  # a group called without a command has printed its help
        return USAGE
    return _say(f"{' '.join(message.split())} (see {command} --help)", USAGE)


def _say(message: str, status: int) -> int:
    sys.stderr.write(f"weir: {message}\n")
    return status
