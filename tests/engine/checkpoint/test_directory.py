"""Safetensors directories: what belongs to one, sharding, and every way a directory is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from poot.engine.checkpoint import FileFormat, json_file, open_checkpoint
from poot.engine.checkpoint.directory import DEFAULT_TEMPLATE
from poot.errors import CheckpointError
from tests.engine.checkpoint import gguf_bytes
from tests.engine.checkpoint.safetensors_bytes import info, safetensors

CONFIG = {"architectures": ["LlamaForCausalLM", "Other"], "hidden_size": 8}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def make_single(path: Path) -> Path:
    """A directory with one weights file that holds a [2, 3] of ones."""
    write_json(path / "config.json", CONFIG)
    save_file({"w": torch.ones(2, 3)}, path / "model.safetensors")
    return path


def make_sharded(path: Path) -> Path:
    """A directory with tensors a and b in shard one and c in shard two."""
    write_json(path / "config.json", CONFIG)
    save_file({"a": torch.full((2,), 1.0), "b": torch.full((3,), 2.0)}, path / "one.safetensors")
    save_file({"c": torch.full((4,), 3.0)}, path / "two.safetensors")
    write_index(path, {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"})
    return path


def write_index(path: Path, weight_map: Any) -> None:
    write_json(path / "model.safetensors.index.json", {"metadata": {"total_size": 36}, "weight_map": weight_map})


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text


def test_directory_with_everything_is_read(tmp_path: Path) -> None:
    make_single(tmp_path)
    write_json(tmp_path / "generation_config.json", {"temperature": 0.6})
    write_json(tmp_path / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": "T"})
    (tmp_path / "tokenizer.json").write_text('{"model": {"é": 1}}', encoding="utf-8")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.path == tmp_path
    assert checkpoint.file_format is FileFormat.SAFETENSORS
    assert checkpoint.architecture == "LlamaForCausalLM"
    assert checkpoint.config == CONFIG
    assert checkpoint.generation_config == {"temperature": 0.6}
    assert checkpoint.tokenizer_config == {"bos_token": "<s>", "chat_template": "T"}
    assert checkpoint.tokenizer_json == '{"model": {"é": 1}}'
    assert checkpoint.chat_template == "T"
    assert checkpoint.chat_templates == {}
    assert checkpoint.tensors["w"].data.tolist() == [[1.0] * 3] * 2


def test_directory_with_the_least_is_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_single(tmp_path))
    assert (checkpoint.generation_config, checkpoint.tokenizer_config) == ({}, {})
    assert (checkpoint.tokenizer_json, checkpoint.chat_template, checkpoint.chat_templates) == (None, None, {})


def test_shards_are_joined(tmp_path: Path) -> None:
    tensors = open_checkpoint(make_sharded(tmp_path)).tensors
    assert {name: weight.data.tolist() for name, weight in tensors.items()} == {
        "a": [1.0] * 2,
        "b": [2.0] * 3,
        "c": [3.0] * 4,
    }


def test_index_beside_a_single_file_it_names_is_fine(tmp_path: Path) -> None:
    make_single(tmp_path)
    write_index(tmp_path, {"w": "model.safetensors"})
    assert open_checkpoint(tmp_path).tensors.keys() == {"w"}


def test_shards_may_be_links_as_in_the_hub_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    make_sharded(snapshot)
    for index, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(index))
        file.symlink_to(Path("..") / "blobs" / str(index))
    assert open_checkpoint(snapshot).tensors.keys() == {"a", "b", "c"}


def test_position_ids_may_be_listed_in_an_index(tmp_path: Path) -> None:
    make_sharded(tmp_path)
    header = {"c": info("F32", [1], 0, 4), "e.position_ids": info("I64", [1], 4, 12)}
    (tmp_path / "two.safetensors").write_bytes(safetensors(header, bytes(12)))
    names = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    write_index(tmp_path, {**names, "e.position_ids": "two.safetensors"})
    assert open_checkpoint(tmp_path).tensors.keys() == {"a", "b", "c"}


def test_templates_are_read_from_wherever_they_are(tmp_path: Path) -> None:
    make_single(tmp_path)
    named = [{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}]
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": named})
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.chat_template, checkpoint.chat_templates) == ("D", {"rag": "R"})

    write_json(tmp_path / "tokenizer_config.json", {"chat_template": named[1:]})
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.chat_template, checkpoint.chat_templates) == (None, {"rag": "R"})

    (tmp_path / "chat_template.jinja").write_text("file é", encoding="utf-8")
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.chat_template, checkpoint.chat_templates) == ("file é", {})

    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools", encoding="utf-8")
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.chat_template, checkpoint.chat_templates) == ("file é", {"tool_use": "tools"})


def test_templates_are_where_transformers_puts_them() -> None:
    hub = pytest.importorskip("transformers.utils.hub")
    assert hub.CHAT_TEMPLATE_FILE == "chat_template.jinja"
    assert hub.CHAT_TEMPLATE_DIR == "additional_chat_templates"
    assert DEFAULT_TEMPLATE == "default"


Change = Callable[[Path], object]


def change_json(name: str, value: Any) -> Change:
    return lambda path: write_json(path / name, value)


def change_bytes(name: str, raw: bytes) -> Change:
    return lambda path: (path / name).write_bytes(raw)


SINGLE_REFUSALS: dict[str, tuple[Change, str]] = {
    "no config": (lambda path: (path / "config.json").unlink(), "config.json: there is no such file"),
    "config a directory": (
        lambda path: (path / "config.json").rename(path / "old").parent.joinpath("config.json").mkdir(),
        "config.json: not a file",
    ),
    "config a list": (change_json("config.json", [1]), "config.json: not a JSON object"),
    "config not JSON": (change_bytes("config.json", b"{'a': 1}"), "config.json: not JSON: "),
    "config not UTF-8": (change_bytes("config.json", b'{"a": "\xe9"}'), "config.json: not UTF-8 (at byte 7)"),
    "config too deep": (change_bytes("config.json", b"[" * 10**5), "config.json: the JSON is nested too deeply"),
    "no architectures": (change_json("config.json", {}), "config.json: architectures is missing"),
    "architectures empty": (change_json("config.json", {"architectures": []}), "architectures is a list of 0"),
    "architectures a string": (
        change_json("config.json", {"architectures": "L"}),
        "architectures is 'L'; it must be a",
    ),
    "architecture a number": (change_json("config.json", {"architectures": [1]}), "architectures[0] is 1; it must be"),
    "GPTQ": (
        change_json("config.json", {**CONFIG, "quantization_config": {"quant_method": "gptq", "bits": 4}}),
        "config.json: quantization_config (gptq) is not available yet",
    ),
    "quantized without a method": (
        change_json("config.json", {**CONFIG, "quantization_config": {}}),
        "quantization_config (no quant_method) is not available yet",
    ),
    "quantization a string": (
        change_json("config.json", {**CONFIG, "quantization_config": "awq"}),
        "quantization_config is 'awq'; it must be an object",
    ),
    "PyTorch weights only": (
        lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"),
        "holds pytorch_model files only; safetensors (model.safetensors) are needed",
    ),
    "sharded PyTorch weights only": (
        lambda path: (path / "model.safetensors").rename(path / "pytorch_model-00001-of-00002.bin"),
        "holds pytorch_model files only",
    ),
    "GGUF inside": (
        lambda path: (path / "model.safetensors").rename(path / "m.gguf"),
        "the directory holds GGUF files; give one of them, such as 'm.gguf'",
    ),
    "no weights": (
        lambda path: (path / "model.safetensors").unlink(),
        "holds neither model.safetensors nor model.safetensors.index.json",
    ),
    "weights malformed": (change_bytes("model.safetensors", b"\xff" * 9), "model.safetensors: the header has"),
    "weights empty": (change_bytes("model.safetensors", b""), "model.safetensors: the file is empty"),
    "no tensors": (change_bytes("model.safetensors", safetensors({})), "holds no tensors"),
    "generation_config a list": (
        change_json("generation_config.json", []),
        "generation_config.json: not a JSON object",
    ),
    "tokenizer_config cut": (change_bytes("tokenizer_config.json", b'{"a'), "tokenizer_config.json: not JSON"),
    "tokenizer not UTF-8": (change_bytes("tokenizer.json", b"{\xff}"), "tokenizer.json: not UTF-8"),
    "tokenizer a list": (change_bytes("tokenizer.json", b" [1]"), "tokenizer.json: not a JSON object"),
    "link to nothing": (
        lambda path: (path / "generation_config.json").symlink_to("nothing"),
        "generation_config.json: there is no such file",
    ),
    "template a link to nothing": (
        lambda path: (path / "chat_template.jinja").symlink_to("nothing"),
        "chat_template.jinja: there is no such file",
    ),
    "index a link to nothing": (
        lambda path: (path / "model.safetensors.index.json").symlink_to("nothing"),
        "model.safetensors.index.json: there is no such file",
    ),
    "template not UTF-8": (change_bytes("chat_template.jinja", b"\xff"), "chat_template.jinja: not UTF-8"),
    "template a number": (change_json("tokenizer_config.json", {"chat_template": 1}), "chat_template is 1; it must be"),
    "templates of strings": (change_json("tokenizer_config.json", {"chat_template": ["x"]}), "chat_template is a list"),
    "template without a name": (
        change_json("tokenizer_config.json", {"chat_template": [{"template": "x"}]}),
        "chat_template[0]: name is missing",
    ),
    "template without a text": (
        change_json("tokenizer_config.json", {"chat_template": [{"name": "x", "template": 2}]}),
        "chat_template[0]: template is 2",
    ),
    "template twice": (
        change_json("tokenizer_config.json", {"chat_template": [{"name": "x", "template": "y"}] * 2}),
        "chat_template[1]: the template 'x' is there twice",
    ),
}


@pytest.mark.parametrize("case", SINGLE_REFUSALS)
def test_directory_is_refused_saying_why(case: str, tmp_path: Path) -> None:
    change, message = SINGLE_REFUSALS[case]
    change(make_single(tmp_path))
    assert message in refusal(tmp_path)


ONE, TWO = "one.safetensors", "two.safetensors"
INDEX = "model.safetensors.index.json"


def change_map(weight_map: Any) -> Change:
    return lambda path: write_index(path, weight_map)


def change_shard_name(name: str) -> Change:
    return change_map({"a": ONE, "b": ONE, "c": name})


SHARD_REFUSALS: dict[str, tuple[Change, str]] = {
    "shard missing": (lambda path: (path / TWO).unlink(), f"{TWO}: cannot be read: No such file"),
    "index not JSON": (change_bytes(INDEX, b"{"), f"{INDEX}: not JSON"),
    "no weight_map": (change_json(INDEX, {}), f"{INDEX}: weight_map is missing"),
    "weight_map a list": (change_map([]), "weight_map is a list of 0; it must be an object"),
    "weight_map empty": (change_map({}), "weight_map is an object of 0; it must be an object of at least one tensor"),
    "shard a number": (change_map({"a": 1}), f"{INDEX}: weight_map: a is 1; it must be a string"),
    "path out of the directory": (
        change_shard_name("../two.safetensors"),
        "weight_map names '../two.safetensors', not",
    ),
    "absolute path": (change_shard_name("/two.safetensors"), "weight_map names '/two.safetensors', not"),
    "path with a backslash": (
        change_shard_name("..\\two.safetensors"),
        "weight_map names '..\\\\two.safetensors', not",
    ),
    "path with a NUL": (change_shard_name("two\0.safetensors"), "weight_map names 'two\\x00.safetensors', not"),
    "not a safetensors file": (change_shard_name("config.json"), "weight_map names 'config.json', not"),
    "tensor in the index only": (
        change_map({"a": ONE, "b": ONE, "c": TWO, "d": TWO}),
        f"{TWO}: tensor 'd' is not in this file, where {INDEX} lists it",
    ),
    "tensor in a shard only": (change_map({"a": ONE, "c": TWO}), f"{ONE}: tensor 'b' is not listed in {INDEX}"),
    "tensor in another shard": (
        change_map({"a": ONE, "b": TWO, "c": TWO}),
        f"{ONE}: tensor 'b' is here, but {INDEX} lists it in '{TWO}'",
    ),
    "tensor in both shards": (
        lambda path: save_file({"c": torch.ones(4), "a": torch.ones(2)}, path / TWO),
        f"{TWO}: tensor 'a' is here, but {INDEX} lists it in '{ONE}'",
    ),
    "a single file besides": (
        lambda path: save_file({"a": torch.ones(2)}, path / "model.safetensors"),
        "holds model.safetensors and an index that does not name it; remove one",
    ),
}


@pytest.mark.parametrize("case", SHARD_REFUSALS)
def test_sharded_directory_is_refused_saying_why(case: str, tmp_path: Path) -> None:
    change, message = SHARD_REFUSALS[case]
    change(make_sharded(tmp_path))
    assert message in refusal(tmp_path)


def test_large_config_is_refused_before_it_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": "' + "x" * 100 + '"}')
    assert json_file.read_json_object(path, 109) == {"a": "x" * 100}
    with pytest.raises(CheckpointError, match="the file is larger than 108 bytes"):
        json_file.read_json_object(path, 108)


@pytest.mark.parametrize("name", ["model.safetensors", INDEX])
def test_file_of_a_directory_is_refused_naming_the_directory(name: str, tmp_path: Path) -> None:
    write_index(make_single(tmp_path), {"w": "model.safetensors"})
    text = refusal(tmp_path / name)
    assert "a safetensors model is given by its directory" in text
    assert text.endswith(f": {tmp_path}")


@pytest.mark.parametrize("name", ["none", "none.gguf", "none.safetensors"])
def test_path_to_nothing_is_refused(name: str, tmp_path: Path) -> None:
    assert refusal(tmp_path / name).endswith(": cannot be read: No such file or directory")


def test_path_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a path cannot hold a NUL"):
        open_checkpoint(tmp_path / "a\0b")
    assert "File name too long" in refusal(tmp_path / ("x" * 5000))
    link = tmp_path / "loop"
    link.symlink_to(link)
    assert "Too many levels of symbolic links" in refusal(link)


def test_odd_names_are_shown_in_one_printable_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path / "a\nb\udcff")
    assert "a\\nb\\udcff" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    make_single(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in refusal(tmp_path / "pipe.gguf")
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    assert "config.json: not a file" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_file_without_the_right_to_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes.valid_gguf())
    path.chmod(0)
    assert "Permission denied" in refusal(path)
    (make_single(tmp_path) / "config.json").chmod(0)
    assert "config.json: cannot be read: Permission denied" in refusal(tmp_path)
