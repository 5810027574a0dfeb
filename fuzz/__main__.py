"""Runs one harness under atheris: `python -m fuzz NAME [libFuzzer options]`, for 30 seconds unless an option says else.

The seeds in `corpus/NAME` are read and never written: new inputs go to `.fuzz/NAME` in the working directory, and so
do the inputs that broke an invariant. Memory and the time of one input are bounded by libFuzzer.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import atheris

from fuzz import HARNESSES

CORPUS = Path(__file__).parent / "corpus"
DICTIONARIES = Path(__file__).parent / "dictionaries"

OPTIONS = (
    "-max_total_time=30",
    # Seconds for one input: instrumented code is ten times as slow, and no input below needs a tenth of a second.
    "-timeout=10",
    # MiB; torch alone is half a GiB.
    "-rss_limit_mb=3072",
    "-malloc_limit_mb=512",
    "-max_len=8192",
    "-print_final_stats=1",
)


def main(arguments: list[str]) -> None:
    """Fuzzes until time is up or an invariant breaks; libFuzzer ends the process, with status 0 or not."""
    if not arguments or arguments[0] not in HARNESSES:
        sys.exit(f"usage: python -m fuzz NAME [libFuzzer options], NAME being one of {', '.join(HARNESSES)}")
    name, *options = arguments
    # Only what is imported in here is measured for coverage.
    with atheris.instrument_imports(include=["poot"]):
        harness = importlib.import_module(f"fuzz.{name}")
    found = Path(".fuzz") / name
    found.mkdir(parents=True, exist_ok=True)
    dictionary = DICTIONARIES / name
    atheris.Setup(
        [
            f"fuzz {name}",
            *OPTIONS,
            *([f"-dict={dictionary}"] if dictionary.exists() else []),
            f"-artifact_prefix={found}-",
            *options,  # later ones win
            str(found),
            str(CORPUS / name),
        ],
        harness.check,
    )
    atheris.Fuzz()


main(sys.argv[1:])
