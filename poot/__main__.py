"""`poot-serve` and `python -m poot`: from a command line to an exit status.

Exit status: 0 after serving and draining (and for --help and --version), 1 for what could not be started, 2 for a
command line that is wrong, 130 for an interrupt before serving. A refusal is one line on standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from poot import __version__, log
from poot.cli import Print, help_text, parse_command_line
from poot.config import Config
from poot.errors import ConfigError, PootError

EXIT_OK = 0
EXIT_STARTUP = 1
EXIT_CONFIG = 2
EXIT_INTERRUPTED = 128 + 2  # SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve as `arguments` (by default the process's own) ask, and return the exit status."""
    try:
        wanted = parse_command_line(sys.argv[1:] if arguments is None else arguments)
        if wanted is Print.HELP:
            sys.stdout.write(help_text())
            return EXIT_OK
        if wanted is Print.VERSION:
            sys.stdout.write(f"poot-serve {__version__}\n")
            return EXIT_OK
        log.configure(os.environ.get("RUST_LOG"))
        return _serve(wanted)
    except PootError as error:
        print(f"poot-serve: {one_line(str(error))}", file=sys.stderr)
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_STARTUP
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _serve(config: Config) -> int:
    # Imported here: it pulls in torch, seconds that --help and a refusal should not cost.
    from poot import server

    return server.run(config)


def one_line(text: str) -> str:
    """`text` with everything that would break the line, or move a terminal's cursor, escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


if __name__ == "__main__":
    sys.exit(main())
