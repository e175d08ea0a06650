"""The command `blutrain`, also `python -m blutrain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = "usage: blutrain doctor    says what was found on this machine, and how to get the rest"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    Example:
        >>> main(["--help"])
        usage: blutrain doctor    says what was found on this machine, and how to get the rest
        0
    """
    asked = list(sys.argv[1:] if arguments is None else arguments)
    if asked == ["doctor"]:
        from blutrain import doctor

        return doctor.main()
    if asked in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
