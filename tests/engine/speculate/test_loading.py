"""Which drafts are refused, before anything is served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from poot.config import Config, Draft, DraftLookup, DraftModel, DraftMtp, EngineConfig
from poot.devices.torch_device import CpuDevice
from poot.engine.checkpoint import open_checkpoint
from poot.engine.models.served import ServedModel, load_served
from poot.engine.speculate.loading import check_token_ids, load_draft, refuse_mtp
from poot.engine.text import Tokenizer, load_tokenizer
from poot.engine.text.vocabulary import Vocabulary
from poot.errors import StartupError
from poot.server import load
from tests.engine.models.checkpoints import gguf_checkpoint, hub_checkpoint
from tests.fakes.tokenizer import byte_tokenizer
from tests.models import require_model


@pytest.fixture(scope="module")
def smollm2() -> tuple[ServedModel, Tokenizer]:
    checkpoint = open_checkpoint(require_model("smollm2"))
    tokenizer = load_tokenizer(checkpoint)
    return load_served(checkpoint, CpuDevice(), tokenizer=tokenizer, max_seq=256), tokenizer


def refusal(path: Path, target: ServedModel, tokenizer: Tokenizer, max_seq: int = 256) -> str:
    config = DraftModel(path=path, num_draft_tokens=4)
    with pytest.raises(StartupError) as caught:
        load_draft(config, target=target, tokenizer=tokenizer, max_seq=max_seq, open_device=CpuDevice)
    message = str(caught.value)
    assert message.startswith(f"--draft-model {path}")
    return message


def test_a_path_that_does_not_load(smollm2: tuple[ServedModel, Tokenizer], tmp_path: Path) -> None:
    assert "does not load" in refusal(tmp_path / "nothing.gguf", *smollm2)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(8))
    assert "does not load" in refusal(broken, *smollm2)


def test_a_model_that_does_not_generate(smollm2: tuple[ServedModel, Tokenizer]) -> None:
    assert "does not generate" in refusal(require_model("minilm"), *smollm2)


def test_a_larger_vocabulary(smollm2: tuple[ServedModel, Tokenizer]) -> None:
    model, tokenizer = smollm2
    smaller = replace(model, vocab_size=model.vocab_size - 1)
    message = refusal(require_model("smollm2"), smaller, tokenizer)
    assert f"{model.vocab_size} tokens and the target's {model.vocab_size - 1}" in message


def test_fewer_positions_than_are_served(smollm2: tuple[ServedModel, Tokenizer]) -> None:
    model, _ = smollm2
    message = refusal(require_model("smollm2"), *smollm2, max_seq=model.model_limit + 1)
    assert f"it has {model.model_limit} positions and a served sequence {model.model_limit + 1}" in message


def test_other_token_ids(smollm2: tuple[ServedModel, Tokenizer]) -> None:
    model, _ = smollm2
    assert "token 0 is" in refusal(require_model("smollm2"), model, byte_tokenizer())


def test_the_first_token_that_differs_is_named() -> None:
    draft, target = byte_tokenizer(), byte_tokenizer()
    pieces = list(target.vocabulary.pieces)
    pieces[65], pieces[66] = pieces[66], pieces[65]
    target.vocabulary = Vocabulary(
        pieces, target.vocabulary.style, special_ids=target.vocabulary.special_ids, literal_ids=()
    )
    with pytest.raises(StartupError, match=r"^it: token 65 is 'A' in the draft and 'B' in the target$"):
        check_token_ids("it", draft, target, len(pieces))
    check_token_ids("it", draft, target, 65)


def test_ids_past_both_vocabularies_are_padding() -> None:
    check_token_ids("it", byte_tokenizer(), byte_tokenizer(), 10_000)


@pytest.mark.parametrize(
    "draft",
    [
        DraftLookup(ngram=3, num_draft_tokens=4),
        DraftModel(path=Path("p"), num_draft_tokens=4),
        DraftMtp(num_draft_tokens=2),
    ],
)
def test_nothing_is_proposed_to_a_model_that_does_not_generate(draft: Draft) -> None:
    with pytest.raises(StartupError, match="does not generate"):
        load(Config(model=require_model("minilm"), engine=EngineConfig(draft=draft)))


def test_mtp_needs_a_layer_for_it() -> None:
    with pytest.raises(StartupError, match=r"^--draft-mtp: .* has no multi-token-prediction layer$"):
        load(Config(model=require_model("smollm2"), engine=EngineConfig(draft=DraftMtp(num_draft_tokens=2))))
    for checkpoint in (
        hub_checkpoint(config={"num_nextn_predict_layers": 1}),
        gguf_checkpoint(metadata={"nextn_predict_layers": 1}),
    ):
        assert "is not available yet; tiny has 1" in str(refuse_mtp(checkpoint))
    assert "has no" in str(refuse_mtp(hub_checkpoint(config={"num_nextn_predict_layers": 0})))


def test_the_drafts_memory_is_part_of_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    path = require_model("smollm2")
    with caplog.at_level("INFO", "poot.plan"):
        served = load(
            Config(
                model=path,
                engine=EngineConfig(rows=2, max_seq=256, draft=DraftModel(path=path, num_draft_tokens=3)),
            )
        )
    terms = served.info.terms
    assert terms["draft weights"] == terms["weights"] > 0
    # Two pools of 2 rows x 256 positions: 30 layers of 3 heads of 64 dimensions, keys and values in f32.
    assert terms["draft kv"] == terms["kv"] == 2 * 4 * 30 * 3 * 64 * 512
    assert terms["draft step"] > 0
    assert f"plan: draft kv {terms['kv']} bytes" in caplog.messages
