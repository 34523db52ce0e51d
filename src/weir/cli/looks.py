"""The layout of the help: in weir's colours, and short enough for one screen."""

from __future__ import annotations

from typing import Any, Final

import typer

from weir.colors import BAD, GREY, MARK

HELP_STYLES: Final = {
    "STYLE_OPTION": f"bold {MARK}",
    "STYLE_SWITCH": f"bold {MARK}",
    "STYLE_NEGATIVE_OPTION": f"bold {MARK}",
    "STYLE_NEGATIVE_SWITCH": f"bold {MARK}",
    "STYLE_COMMANDS_TABLE_FIRST_COLUMN": f"bold {MARK}",
    "STYLE_TYPES": GREY,
    "STYLE_USAGE": GREY,
    "STYLE_REQUIRED_SHORT": BAD,
    "STYLE_REQUIRED_LONG": GREY,
    "STYLE_OPTION_DEFAULT": GREY,
    "STYLE_HELPTEXT": "",
    "STYLE_OPTIONS_PANEL_BORDER": GREY,
    "STYLE_COMMANDS_PANEL_BORDER": GREY,
    "RANGE_STRING": "",  # the parser reports the range when a value violates it
    "REQUIRED_LONG_STRING": "",  # the star shows it
}
"""Constants of `typer.rich_utils`, which offers no other way to configure them."""
SHORTER: Final = {"install_completion": "Set up shell completion."}
HIDDEN: Final = frozenset({"show_completion"})
HELP_OPTIONS: Final = ("--help", "-h")


def tidy_help(command: Any) -> None:
    """Remove uninformative parts from the help of a command and of all its subcommands."""
    from typer import rich_utils

    for name, style in HELP_STYLES.items():
        setattr(rich_utils, name, style)
    _tidy(command)


def _tidy(node: Any) -> None:
    # Join lines, to be wrapped at the width of the terminal and not as in the docstring.
    paragraphs = (node.help or "").split("\n\n")
    node.help = "\n\n".join(" ".join(part.split()) for part in paragraphs)
    context = typer.Context(node, help_option_names=list(HELP_OPTIONS))
    shown = node.get_help_option(context)
    if shown is not None:
        shown.metavar = ""
        shown.help = "Show this help."
    for option in node.params:
        option.help = SHORTER.get(option.name, option.help)
        option.hidden = getattr(option, "hidden", False) or option.name in HIDDEN
        if getattr(option, "is_flag", False):
            option.metavar = ""  # a switch needs no `<bool>` after it
        if option.param_type_name == "argument":
            _plain_argument(option)
    for inner in getattr(node, "commands", {}).values():
        _tidy(inner)


def _plain_argument(argument: Any) -> None:
    """Show `URI` instead of `{URI}` and `URI <str>`."""
    many = "..." if argument.nargs != 1 else ""
    name = argument.metavar or argument.name.upper()
    words = f"{name}{many}" if argument.required else f"[{name}]{many}"
    argument.get_usage_pieces = lambda _context: [words]
    argument.display_type_rich = lambda ctx: None  # noqa: ARG005
