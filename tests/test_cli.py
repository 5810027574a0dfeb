"""The command line against the configuration reference: defaults, bounds, splitting rules, exclusions, refusals.

Expected values are written out from the reference here, not taken from the table under test.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot import __version__
from poot.__main__ import main, one_line
from poot.cli import Print, demo_model, flags, help_text, parse_command_line
from poot.config import (
    ApiConfig,
    Backend,
    Config,
    FdAddress,
    NetConfig,
    Placement,
    PlacementKind,
    TcpAddress,
    TimingConfig,
    UnixAddress,
)
from poot.errors import ConfigError, NotAvailableError, PootError, StartupError
from scripts import fetch_models

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 2**31 - 1

# Flag, smallest and largest value, from the configuration reference; LARGEST is ours where it names no bound.
COUNTS = [
    ("--rows", 1, LARGEST),
    ("--max-seq", 1, LARGEST),
    ("--expert-pool", 1, LARGEST),
    ("--draft-mtp", 1, LARGEST),
    ("--rate-limit-rpm", 0, LARGEST),
    ("--max-connections", 0, LARGEST),
    ("--max-pending-requests", 1, LARGEST),
    ("--max-receiving-requests", 1, LARGEST),
    ("--max-queue-wait-secs", 1, LARGEST),
    ("--max-body-mib", 1, LARGEST),
    ("--max-image-body-mib", 1, LARGEST),
    ("--request-timeout-secs", 1, LARGEST),
    ("--write-timeout-secs", 1, LARGEST),
    ("--drain-timeout-secs", 1, 86400),
    ("--timing-max-steps", 1, 16384),
    ("--timing-max-dispatch-records", 1, 262144),
    ("--timing-max-in-flight-queries", 1, 4096),
    ("--timing-sample-every", 1, LARGEST),
]
TIMING_BOUNDS = [name for name, _, _ in COUNTS if name.startswith("--timing-")]
REFERENCE_FLAGS = {name for name, _, _ in COUNTS} | {
    "--backend",
    "--placement",
    "--draft-lookup",
    "--draft-model",
    "--chat-template",
    "--chat-template-file",
    "--lora-admin-key-file",
    "--device-timing",
}


def parse(*arguments: str) -> Config:
    config = parse_command_line(arguments)
    assert isinstance(config, Config)
    return config


def refusal(*arguments: str) -> str:
    """The one line that refuses this command line with exit status 2."""
    with pytest.raises(ConfigError) as caught:
        parse_command_line(arguments)
    message = str(caught.value)
    assert one_line(message) == message
    return message


def test_every_flag_of_the_reference_exists_and_no_other() -> None:
    assert {option.name for option in flags.OPTIONS} == REFERENCE_FLAGS | {"--help", "--version"}


def test_defaults_are_those_of_the_reference() -> None:
    config = parse("m.gguf")
    assert config.model == Path("m.gguf")
    assert config.device.backend is Backend.AUTO
    assert config.device.placement == Placement(kind=PlacementKind.SINGLE, ordinals=())
    assert config.engine.rows is None
    assert config.engine.max_seq == 4096
    assert config.engine.draft is None
    assert config.engine.expert_pool_rows is None
    assert config.engine.chat_template is None
    assert config.net == NetConfig(
        address=TcpAddress(host="127.0.0.1", port=8080),
        max_connections=4096,
        request_timeout_seconds=30,
        write_timeout_seconds=30,
        drain_timeout_seconds=30,
    )
    assert config.api == ApiConfig(
        rate_limit_rpm=0,
        lora_admin_key=None,
        max_pending_requests=256,
        max_receiving_requests=64,
        max_queue_wait_seconds=60,
        max_body_bytes=4 * 1024 * 1024,
        max_image_body_bytes=64 * 1024 * 1024,
    )
    assert config.engine.timing == TimingConfig(
        enabled=False, max_steps=4096, max_dispatch_records=65536, max_in_flight_queries=64, sample_every=1
    )


def test_values_reach_their_slices() -> None:
    config = parse(
        *("--rows", "8", "--max-seq=512", "--backend", "cpu", "--rate-limit-rpm", "60", "--max-connections", "0"),
        *("--max-pending-requests", "9", "--max-receiving-requests", "7", "--max-queue-wait-secs", "5"),
        *("--max-body-mib", "2", "--request-timeout-secs", "11", "--write-timeout-secs", "12"),
        *("--drain-timeout-secs", "86400", "--placement", "single", "model", "[::1]:0"),
    )
    assert config.model == Path("model")
    assert config.device.backend is Backend.CPU
    assert (config.engine.rows, config.engine.max_seq) == (8, 512)
    assert config.api.rate_limit_rpm == 60
    assert (config.api.max_pending_requests, config.api.max_receiving_requests) == (9, 7)
    assert (config.api.max_queue_wait_seconds, config.api.max_body_bytes) == (5, 2 * 1024 * 1024)
    assert config.net == NetConfig(
        address=TcpAddress(host="::1", port=0),
        max_connections=0,
        request_timeout_seconds=11,
        write_timeout_seconds=12,
        drain_timeout_seconds=86400,
    )


@pytest.mark.parametrize(("name", "low", "high"), COUNTS)
def test_bounds_hold_at_both_ends(name: str, low: int, high: int) -> None:
    for text in [str(low - 1), str(high + 1), "1" * 5000]:
        message = refusal(name, text, "m")
        assert message.startswith(f"{name}: ")
        assert f"from {low} to {high}" in message
    option = next(option for option in flags.OPTIONS if option.name == name)
    assert option.parse(str(low)) == low
    assert option.parse(str(high)) == high


@pytest.mark.parametrize(("name", "low", "high"), COUNTS)
@pytest.mark.parametrize(
    "text", ["", "+5", "-5", "5 ", " 5", "5_0", "5.0", "1e2", "0x5", "five", "\u0665", "\uff15", "5\n", "\u00b2"]
)
def test_numbers_are_plain_ascii_digits(name: str, low: int, high: int, text: str) -> None:
    message = refusal(f"{name}={text}", "m")
    assert message.startswith(f"{name}: {text!r} is not allowed")


@given(st.text(max_size=12))
def test_a_number_is_accepted_exactly_when_it_is_ascii_digits_in_range(text: str) -> None:
    is_number = re.fullmatch(r"[0-9]+", text, re.ASCII) is not None and "\n" not in text
    if is_number and 1 <= int(text) <= LARGEST:
        assert parse(f"--rows={text}", "m").engine.rows == int(text)
    else:
        refusal(f"--rows={text}", "m")


@pytest.mark.parametrize("argument", ["--row", "--rowss", "--Rows", "--", "-r", "-h", "--no-such", "--rows-", "-rows"])
def test_unknown_and_abbreviated_options_are_refused(argument: str) -> None:
    if argument == "--":
        assert parse("--", "--odd-name").model == Path("--odd-name")
        return
    message = refusal(argument, "4", "m")
    assert repr(argument) in message
    assert "--help" in message


@pytest.mark.parametrize("name", sorted(REFERENCE_FLAGS - {"--device-timing"}))
def test_an_option_without_its_value_is_refused(name: str) -> None:
    for rest in [(), ("--rows", "3"), ("--",)]:
        message = refusal("m", name, *rest)
        assert message.startswith(f"{name} needs a value")
        assert "allowed: " in message


@pytest.mark.parametrize("name", sorted(REFERENCE_FLAGS - {"--device-timing"}))
def test_a_repeated_option_is_refused_even_with_equal_values(name: str) -> None:
    values = {
        "--backend": "cpu",
        "--placement": "single",
        "--draft-lookup": "3:4",
        "--draft-model": "p:4",
        "--chat-template": "{{ 1 }}",
        "--chat-template-file": "f",
        "--lora-admin-key-file": "f",
    }
    value = values.get(name, "1")
    assert refusal(name, value, f"{name}={value}").startswith(f"{name} is given more than once")
    assert refusal("--device-timing", "--device-timing").startswith("--device-timing is given more than once")


def test_an_option_without_value_takes_none() -> None:
    for name in ["--device-timing", "--help", "--version"]:
        assert refusal(f"{name}=yes").startswith(f"{name} takes no value")
        assert refusal(f"{name}=").startswith(f"{name} takes no value")


def test_too_many_or_empty_positionals_are_refused() -> None:
    assert "'extra'" in refusal("m", "127.0.0.1:1", "extra")
    assert refusal("").startswith("MODEL is empty")
    assert refusal("m", "").startswith("ADDR is empty")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", TcpAddress(host="127.0.0.1", port=8080)),
        ("0.0.0.0:0", TcpAddress(host="0.0.0.0", port=0)),
        ("[::1]:65535", TcpAddress(host="::1", port=65535)),
        ("[::]:80", TcpAddress(host="::", port=80)),
        ("[FE80:0:0::1%eth0]:80", TcpAddress(host="fe80::1%eth0", port=80)),
        ("localhost:80", TcpAddress(host="localhost", port=80)),
        ("my-host.example:80", TcpAddress(host="my-host.example", port=80)),
        ("unix:/run/poot.sock", UnixAddress(path="/run/poot.sock")),
        ("unix:a:1", UnixAddress(path="a:1")),
        ("fd://3", FdAddress(fd=3)),
    ],
)
def test_addresses(text: str, address: object) -> None:
    assert parse("m", text).net.address == address


@pytest.mark.parametrize(
    "text",
    [
        *("8080", "127.0.0.1", "127.0.0.1:", ":8080", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:8080 "),
        *("::1:8080", "[::1]", "[::1:8080", "::1]:8080", "[127.0.0.1]:1", "[::g]:1", "[]:1", "127.1:80", "1.2.3.4.5:1"),
        *("256.0.0.1:80", "host name:80", "a.-host:80", "a..b:80", "http://127.0.0.1:80", "unix:", "fd://", "fd://x"),
        *("fd://-1", "unix:" + "x" * 104, "h" * 64 + ":80", "127.0.0.1:\u0668\u0660", "h\n:80"),
    ],
)
def test_malformed_addresses_are_refused(text: str) -> None:
    message = refusal("m", text)
    assert message.startswith("ADDR: ")
    assert "unix:PATH" in message


def test_backends() -> None:
    for name in ["auto", "cpu", "ptx", "rocm", "wgpu", "vulkan"]:
        assert parse("--backend", name, "m").device.backend.value == name
    for name in ["cuda", "CPU", "", "cpu "]:
        message = refusal(f"--backend={name}", "m")
        assert all(allowed in message for allowed in ["auto", "cpu", "ptx", "rocm", "wgpu", "vulkan"])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "pipeline",
            "tensor",
            "pipeline:",
            "pipeline:0",
            "tensor:0",
            "tensor:1,1",
            "tensor:0,1,0",
            "tensor:0,",
            "x:0,1",
        ),
        *("tensor:0,-1", "tensor:0, 1", "tensor:0;1", "single:0,1", "Single", "", "pipeline:0:1", "tensor:a,b"),
    ],
)
def test_malformed_placements_are_refused(text: str) -> None:
    assert refusal(f"--placement={text}", "m").startswith("--placement: ")


@pytest.mark.parametrize("text", ["3", "3:", ":3", "0:3", "3:0", "3:4:5", "a:3", "3:b", "-1:3", ""])
def test_malformed_draft_lookups_are_refused(text: str) -> None:
    assert refusal(f"--draft-lookup={text}", "m").startswith("--draft-lookup: ")


@pytest.mark.parametrize("text", ["path", "path:", ":3", "path:0", "path:x", "path:1:", ""])
def test_malformed_draft_models_are_refused(text: str) -> None:
    assert refusal(f"--draft-model={text}", "m").startswith("--draft-model: ")


def test_splitting_rules_of_the_draft_flags() -> None:
    from poot.cli.values import parse_draft_lookup, parse_draft_model

    lookup = parse_draft_lookup("3:14")
    assert (lookup.ngram, lookup.num_draft_tokens) == (3, 14)
    model = parse_draft_model("C:/a:b/model.gguf:5")
    assert (model.path, model.num_draft_tokens) == (Path("C:/a:b/model.gguf"), 5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("--draft-lookup", "3:4"), ("--draft-model", "p:4")),
        (("--draft-lookup", "3:4"), ("--draft-mtp", "4")),
        (("--draft-model", "p:4"), ("--draft-mtp", "4")),
        (("--chat-template", "{{ 1 }}"), ("--chat-template-file", "f")),
        (("--placement", "tensor:0,1"), ("--device-timing",)),
        (("--placement", "pipeline:0,1"), ("--draft-mtp", "2")),
    ],
)
def test_exclusive_flags_are_both_named(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    for arguments in [(*first, *second), (*second, *first)]:
        message = refusal(*arguments, "m")
        assert first[0] in message
        assert second[0] in message
        assert "exclude" in message


def test_timing_bounds_need_device_timing() -> None:
    for name in TIMING_BOUNDS:
        message = refusal(name, "1", "m")
        assert name in message
        assert "--device-timing" in message


@pytest.mark.parametrize("backend", ["cpu", "rocm", "wgpu", "vulkan"])
def test_a_group_needs_the_ptx_backend(backend: str) -> None:
    message = refusal("--placement", "pipeline:0,1", "--backend", backend, "m")
    assert "--placement" in message
    assert f"--backend {backend}" in message
    assert "ptx" in message


def test_flags_that_are_not_built_are_refused_by_name(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret-token\n")
    for arguments in [
        ("--placement", "pipeline:0,1"),
        ("--placement", "tensor:3,1,2"),
        ("--expert-pool", "8"),
        ("--max-image-body-mib", "8"),
        ("--lora-admin-key-file", str(key)),
    ]:
        with pytest.raises(NotAvailableError, match="is not available yet") as caught:
            parse_command_line([*arguments, "m"])
        assert arguments[0] in str(caught.value)


def test_a_wrong_value_is_told_before_a_feature_that_is_not_built() -> None:
    assert "--rows" in refusal("--expert-pool", "8", "--rows", "0", "m")
    assert "--draft-mtp" in refusal("--draft-mtp", "0", "m")


def test_chat_templates(tmp_path: Path) -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert parse("--chat-template", source, "m").engine.chat_template == source
    file = tmp_path / "chat.jinja"
    file.write_text(source + "\n")
    engine = parse("--chat-template-file", str(file), "m").engine
    assert engine.chat_template == source + "\n"
    assert engine.chat_template_origin == f"--chat-template-file {file}"
    assert "built-in" in refusal("--chat-template", "chatml", "m")
    assert "built-in" in refusal("--chat-template=", "m")


def test_a_value_that_starts_with_two_dashes_needs_an_equals_sign() -> None:
    assert parse("--chat-template=--{{ 1 }}", "m").engine.chat_template == "--{{ 1 }}"
    assert refusal("--chat-template", "--{{ 1 }}", "m").startswith("--chat-template needs a value")


def test_template_files_are_refused_by_what_is_wrong(tmp_path: Path) -> None:
    plain, binary, large = tmp_path / "plain", tmp_path / "binary", tmp_path / "large"
    plain.write_text("chatml")
    binary.write_bytes(b"{{ \xff }}")
    large.write_bytes(b"{{ 1 }}" + b" " * 1024 * 1024)
    for path, words in [
        (plain, "no jinja syntax"),
        (binary, "not UTF-8 (at byte 3)"),
        (large, "too large"),
        (tmp_path / "absent", "cannot be read (No such file or directory)"),
        (tmp_path, "cannot be read (Is a directory)"),
    ]:
        message = refusal("--chat-template-file", str(path), "m")
        assert message.startswith("--chat-template-file: ")
        assert words in message


def test_key_files_hold_one_token_that_no_message_repeats(tmp_path: Path) -> None:
    from poot.cli.values import read_key_file

    file = tmp_path / "key"
    for text in ["s3cret", "s3cret\n", "s3cret\r\n"]:
        file.write_bytes(text.encode())
        assert read_key_file("--lora-admin-key-file", file) == "s3cret"
    for text in ["", "\n", "s3cret\n\n", "two s3cret", "s3cret\nother", "s3crét"]:
        file.write_text(text)
        message = refusal("--lora-admin-key-file", str(file), "m")
        assert "does not hold one bearer token" in message
        assert "s3cr" not in message


def test_the_demo_model_is_served_when_model_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with pytest.raises(StartupError, match=r"scripts/fetch_models\.py smollm2"):
        parse_command_line([])
    demo = fetch_models.default_models_dir() / "smollm2" / fetch_models.MODELS["smollm2"].files[0].path
    assert demo == demo_model()
    demo.parent.mkdir(parents=True)
    demo.touch()
    assert parse().model == demo


def test_help_names_every_flag_with_default_and_bounds() -> None:
    assert parse_command_line(["--help"]) is Print.HELP
    text = help_text()
    for option in flags.OPTIONS:
        metavar = f" {option.metavar}" if option.metavar else ""
        assert f"\n  {option.name}{metavar}\n" in text
    words = " ".join(text.split())
    for name, low, high in COUNTS:
        after = words[words.index(f" {name} ") :]
        assert f"from {low} to {high}. Default:" in after[:500]
    assert max(map(len, text.splitlines())) <= 110


def run_main(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "poot", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_help_and_version_exit_0_without_loading_torch() -> None:
    result = run_main("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"poot-serve {__version__}\n", "")
    result = run_main("--help")
    assert (result.returncode, result.stdout, result.stderr) == (0, help_text(), "")
    check = "import sys, poot.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0


def test_refusals_are_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status in [
        (["--rows", "0\x1b[2J\n"], 2),
        (["--no-such"], 2),
        (["--expert-pool", "8", "m"], 1),
    ]:
        assert main(arguments) == status
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("poot-serve: ")
        assert output.err.count("\n") == 1
        assert "\x1b" not in output.err


def test_main_maps_errors_to_exit_statuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for error, status in [
        (ConfigError("no"), 2),
        (StartupError("no"), 1),
        (PootError("no"), 1),
        (KeyboardInterrupt(), 130),
    ]:
        monkeypatch.setattr("poot.__main__._serve", _raiser(error))
        assert main(["m"]) == status
        expected = "" if isinstance(error, KeyboardInterrupt) else "poot-serve: no\n"
        assert capsys.readouterr().err == expected


def _raiser(error: BaseException) -> object:
    def serve(config: Config) -> int:
        raise error

    return serve


def test_a_wrong_rust_log_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RUST_LOG", "loud")
    assert main(["m"]) == 2
    assert "RUST_LOG" in capsys.readouterr().err


def test_documentation_lists_the_same_flags_defaults_and_bounds() -> None:
    """docs/flags.md and the table say the same; what the table says is held to the reference above."""
    rows = re.findall(r"^\| `(--[^`]+)` \| (.*?) \| (.*?) \|", (ROOT / "docs" / "flags.md").read_text(), re.MULTILINE)
    documented = {(written, default, allowed) for written, default, allowed in rows}
    table = {
        (option.name + (f" {option.metavar}" if option.metavar else ""), option.default, option.allowed)
        for option in flags.OPTIONS
    }
    assert documented == table
    assert len(rows) == len(documented)
