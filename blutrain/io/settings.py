"""Settings of a script from its command line and a config file, into a dataclass.

Later wins: the dataclass's defaults, then `--config FILE` (.json or .toml), then flags. Flags may
be written `--n-layer 4`, `--n_layer=4` or, for booleans, `--bias` and `--no-bias`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from blutrain.errors import BlutrainError, message

T = TypeVar("T")


class SettingsError(BlutrainError, ValueError):
    """A config file or a flag is not what the script takes."""


def parse(
    kind: type[T],
    argv: Sequence[str] | None = None,
    about: str = "",
    defaults: Mapping[str, Any] | None = None,
) -> T:
    """Read settings.

    Args:
        kind: a dataclass of int, float, bool and str fields (each may also be None); a field's
            metadata "help" is its line in --help, "choices" what it may be.
        argv: the arguments; the process's own when left out.
        about: the script's purpose, for --help.
        defaults: values that stand in for the dataclass's own, on a GPU say.

    Raises:
        SettingsError: the config file cannot be read, or has an unknown key or a wrong type.
        SystemExit: --help, or a flag that the script does not have (argparse says which).

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Settings:
        ...     n_layer: int = 12
        ...     bias: bool = True
        >>> parse(Settings, ["--n_layer=4", "--no-bias"])
        Settings(n_layer=4, bias=False)
    """
    hints = {name: _plain(hint) for name, hint in typing.get_type_hints(kind).items()}
    parser = argparse.ArgumentParser(
        description=about, allow_abbrev=False, formatter_class=_Formatter
    )
    parser.add_argument("--config", metavar="FILE", help="a .json or .toml file of settings")
    base = dict(defaults or {})
    for f in fields(kind):  # type: ignore[arg-type]
        default = base.get(f.name, None if f.default is MISSING else f.default)
        shown = "" if default is None else f" (default: {default})"
        options: dict[str, Any] = {
            "dest": f.name,
            "help": (f.metadata.get("help", "") + shown).replace("%", "%%") or None,
            "default": argparse.SUPPRESS,  # So that only flags that were given override a file.
        }
        if hints[f.name] is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": hints[f.name], "choices": f.metadata.get("choices")}
            options["metavar"] = None if options["choices"] else hints[f.name].__name__.upper()
        parser.add_argument("--" + f.name.replace("_", "-"), **options)
    words = [
        # Underscores in flag names only, not in their values.
        re.sub(r"^--[\w-]+", lambda m: m[0].replace("_", "-"), w)
        for w in (sys.argv[1:] if argv is None else argv)
    ]
    flags = vars(parser.parse_args(words))
    config = flags.pop("config")
    chosen = read_config(Path(config), kind) if config else {}
    return kind(**{**base, **chosen, **flags})


def read_config(path: Path, kind: type[Any]) -> dict[str, Any]:
    """The settings of a config file.

    Raises:
        SettingsError: it cannot be read, or has an unknown key or a value of the wrong type.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        do = "pass a readable .json or .toml file"
        raise SettingsError(message("--config", f"{path} must be readable", error, do)) from error
    if not isinstance(values, dict):
        got = type(values).__name__
        raise SettingsError(message("--config", f"{path} must hold names and values", got))
    hints = {name: _plain(hint) for name, hint in typing.get_type_hints(kind).items()}
    choices: dict[str, list[str]] = {f.name: f.metadata.get("choices") or [] for f in fields(kind)}
    settings = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in hints:
            do = f"use one of {', '.join(hints)}"
            raise SettingsError(message("--config", f"{path} has an unknown key", repr(key), do))
        hint = hints[name]
        fits = type(value) is hint or (hint is float and type(value) is int)
        if not fits:
            want = f"{name} in {path} must be of type {hint.__name__}"
            raise SettingsError(message("--config", want, repr(value)))
        if choices[name] and value not in choices[name]:
            want = f"{name} in {path} must be one of {', '.join(choices[name])}"
            raise SettingsError(message("--config", want, repr(value)))
        settings[name] = hint(value)
    return settings


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)


def _plain(hint: Any) -> Any:
    """`int` for `int | None`."""
    if isinstance(hint, types.UnionType):
        return next(t for t in typing.get_args(hint) if t is not type(None))
    return hint
