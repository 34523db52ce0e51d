"""Storage options from the command line, the environment and a file, in order of precedence.

The file (`--config`, `WEIR_CONFIG`, or `weir/config.toml` in the configuration folder):

    [options]                  # for every URI
    aws_region = "eu-central-1"

    [store."s3://lake"]        # for URIs with this prefix; the longest match wins
    aws_endpoint = "https://s3.example.com"

Values may be secrets, so no message and no output contains one.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from weir.errors import InvalidInput

CONFIG_ENV = "WEIR_CONFIG"
OPTIONS_ENV = "WEIR_STORAGE_OPTIONS"


def default_path() -> Path:
    """The configuration file used if neither --config nor the environment names one."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "weir" / "config.toml"


def storage_options(
    uri: str, given: Sequence[str] | None, config: Path | None = None
) -> dict[str, str]:
    """The options for `uri`: the file's, overridden by the environment's, then by those given."""
    found = {**_from_file(uri, config), **_from_environment()}
    for pair in given or ():
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            # Not shown: the text may be a secret given without its name.
            raise click.BadParameter("write NAME=VALUE", param_hint="--option")
        found[name.strip()] = value
    return found


def config_file(config: Path | None) -> Path | None:
    """The configuration file to use, or None if there is none."""
    named = config or (Path(os.environ[CONFIG_ENV]) if os.environ.get(CONFIG_ENV) else None)
    if named is not None:
        if not named.is_file():
            raise InvalidInput(
                f"the configuration file {named} (--config or ${CONFIG_ENV}) does not exist"
            )
        return named
    path = default_path()
    return path if path.is_file() else None


def _from_file(uri: str, config: Path | None) -> dict[str, str]:
    path = config_file(config)
    if path is None:
        return {}
    try:
        _require_private(path)
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        # A TOML error contains the line and column, never the value.
        raise InvalidInput(f"cannot read the configuration file {path}: {error}") from error
    stores = content.get("store", {})
    options = content.get("options", {})
    strange = sorted(set(content) - {"options", "store"})
    tables = [options, stores, *(stores.values() if isinstance(stores, dict) else ())]
    if strange or not all(isinstance(table, dict) for table in tables):
        raise InvalidInput(
            f'{path} may only hold the tables [options] and [store."s3://..."];'
            f" found {', '.join(strange) or 'a value in place of a table'}"
        )
    fitting = sorted((prefix for prefix in stores if _below(uri, prefix)), key=len)
    merged = dict(options)
    for prefix in fitting:
        merged.update(stores[prefix])
    return _texts(merged, f"{path}")


def _require_private(path: Path) -> None:
    """Refuse a file that other users may change: it selects hosts and places (G-13)."""
    for each in (path, path.resolve().parent):
        mode = each.stat().st_mode
        # In a folder with the sticky bit, such as /tmp, other users cannot replace our file.
        if mode & stat.S_IWOTH and not (each.is_dir() and mode & stat.S_ISVTX):
            raise InvalidInput(
                f"{each} is world-writable, so the configuration file {path} is refused: it decides"
                f" where credentials are sent. Run chmod o-w {each}"
            )


def _below(uri: str, prefix: str) -> bool:
    base = prefix.rstrip("/")
    return (
        uri == base
        or uri.startswith(base + "/")
        or (prefix.endswith("://") and uri.startswith(prefix))
    )


def _from_environment() -> dict[str, str]:
    text = os.environ.get(OPTIONS_ENV, "")
    if not text:
        return {}
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InvalidInput(f"{OPTIONS_ENV} must hold a JSON object of names and values")
    return _texts(content, OPTIONS_ENV)


def _texts(options: Mapping[str, object], where: str) -> dict[str, str]:
    texts = {}
    for name, value in options.items():
        if isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            texts[name] = str(value)
        else:
            raise InvalidInput(
                f"{where}: the value of {name!r} must be text, a number or a boolean"
            )
    return texts
