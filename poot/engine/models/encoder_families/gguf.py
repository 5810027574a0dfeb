"""Encoders in GGUF files: BERT (with RoBERTa, XLM-RoBERTa and DistilBERT, which are converted to it), NomicBERT and
ModernBERT.

Keys and tensors are gguf-py's; what they mean where the documents are silent follows llama.cpp's graphs, but for one
thing: llama.cpp computes GELU by its tanh approximation, in half precision. We take the error function, with which
these models were trained.
"""

from __future__ import annotations

from poot.devices.base import Activation
from poot.engine.checkpoint.fields import ConfigReader
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models import rope
from poot.engine.models.encoder_spec import (
    Blueprint,
    ClassifierSpec,
    EncoderLayerNames,
    EncoderLayerSpec,
    EncoderNames,
    EncoderSpec,
)
from poot.engine.models.families.bounds import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH
from poot.engine.models.families.noted import Noted
from poot.engine.models.spec import RopeSpec
from poot.errors import CheckpointError, NotAvailableError

# Keys that say nothing about the layers: what vectors are for is read by the task.
HARMLESS_KEYS = frozenset({"pooling_type", "classifier.output_labels", "tensor_data_layout", "vocab_size"})


class GgufEncoder:
    """Metadata of one encoder in a GGUF file.

    Raises:
        CheckpointError: a key is missing, has the wrong type, or is out of range.
        NotAvailableError: a mixture of experts.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.tensors = checkpoint.tensors
        prefix = f"{checkpoint.architecture}."
        self._noted = Noted(
            {key[len(prefix) :]: value for key, value in checkpoint.config.items() if key.startswith(prefix)}
        )
        where = f"{display_path(checkpoint.path)}: {checkpoint.architecture}"
        self.reader = reader = ConfigReader(self._noted, where=where)
        if reader.optional_int("expert_count", 0) or reader.optional_int("moe_every_n_layers", 0):
            raise NotAvailableError(f"a mixture of experts ({checkpoint.architecture})")
        self.num_layers = reader.require_int("block_count", minimum=1, maximum=MAX_LAYERS)
        self.hidden_size = reader.require_int("embedding_length", minimum=1, maximum=MAX_WIDTH)
        self.intermediate_size = reader.require_int("feed_forward_length", minimum=1, maximum=MAX_WIDTH)
        self.num_heads = reader.require_int("attention.head_count", minimum=1, maximum=MAX_HEADS)
        self.context_length = reader.require_int("context_length", minimum=1, maximum=MAX_POSITIONS)
        self.norm_eps = reader.require_float("attention.layer_norm_epsilon", minimum=0.0, maximum=1.0)
        if reader.optional_int("attention.head_count_kv", self.num_heads) != self.num_heads:
            raise reader.refuse("attention.head_count_kv", "attention.head_count")
        if reader.optional_bool("attention.causal", False):
            raise reader.refuse("attention.causal", "false")
        if self.hidden_size % self.num_heads:
            raise reader.refuse("embedding_length", f"a multiple of attention.head_count, {self.num_heads}")
        table = checkpoint.tensors.get("token_embd.weight")
        if table is None:
            raise CheckpointError("tensor token_embd.weight is missing", path=display_path(checkpoint.path))
        self.vocab_size = table.shape[0]

    def rows_of(self, name: str) -> int:
        """Rows of the table `name`; 0 where the file has none."""
        tensor = self.tensors.get(name)
        return 0 if tensor is None else tensor.shape[0]

    def rope(self, theta_key: str, default_theta: float) -> RopeSpec:
        theta = self.reader.optional_float(theta_key, default_theta)
        if not 1.0 < theta <= 1e15:
            raise self.reader.refuse(theta_key, "above 1 and at most 1e15")
        head_dim = self.hidden_size // self.num_heads
        rotary_dim = self.reader.optional_int("rope.dimension_count", head_dim, minimum=2, maximum=head_dim)
        if rotary_dim % 2:
            raise self.reader.refuse("rope.dimension_count", "an even number")
        # The NEOX layout: pairs are (i, i + rotary_dim / 2).
        return RopeSpec(inverse_frequencies=rope.base_frequencies(theta, rotary_dim), rotary_dim=rotary_dim)

    def classifier(self, activation: Activation) -> ClassifierSpec | None:
        """The head of a file that has one."""
        if "cls.output.weight" not in self.tensors:
            return None
        return ClassifierSpec(
            has_dense="cls.weight" in self.tensors, activation=activation, has_norm="cls.norm.weight" in self.tensors
        )

    def refuse_unread(self) -> None:
        """Refuses a key under the architecture's prefix that nothing read.

        Raises:
            CheckpointError: names it.
        """
        unread = sorted(self._noted.values_by_key.keys() - self._noted.asked - HARMLESS_KEYS)
        if unread:
            raise CheckpointError(f"{unread[0]} is not understood", path=self.reader.where)


def bert_from_gguf(checkpoint: Checkpoint) -> Blueprint:
    """A `bert` file. RoBERTa's offset into the position table was taken off by the converter."""
    config = GgufEncoder(checkpoint)
    rows = config.rows_of("position_embd.weight")
    if rows < config.context_length:
        raise config.reader.refuse("context_length", f"at most {rows}, the rows of position_embd.weight")
    # Converters wrote query, key and value apart, or as one tensor.
    fused = "blk.0.attn_qkv.weight" in config.tensors
    spec = EncoderSpec(
        family="bert",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        max_positions=config.context_length,
        num_position_rows=rows,
        num_token_types=config.rows_of("token_types.weight"),
        layers=(EncoderLayerSpec(),) * config.num_layers,
        norm_eps=config.norm_eps,
        activation=Activation.GELU,
        fused_qkv=fused,
        classifier=config.classifier(Activation.TANH),
    )
    config.refuse_unread()
    return _post_norm_blueprint(spec, up=("ffn_up",))


def nomic_bert_from_gguf(checkpoint: Checkpoint) -> Blueprint:
    """A `nomic-bert` file."""
    config = GgufEncoder(checkpoint)
    turning = config.rope("rope.freq_base", 1000.0)
    spec = EncoderSpec(
        family="nomic_bert",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        max_positions=config.context_length,
        num_token_types=config.rows_of("token_types.weight"),
        layers=(EncoderLayerSpec(rope=turning),) * config.num_layers,
        norm_eps=config.norm_eps,
        activation=Activation.SILU,
        is_gated=True,
        fused_qkv=True,
        classifier=config.classifier(Activation.TANH),
    )
    config.refuse_unread()
    return _post_norm_blueprint(spec, up=("ffn_gate", "ffn_up"))


def modernbert_from_gguf(checkpoint: Checkpoint) -> Blueprint:
    """A `modern-bert` file. Every n-th layer from the first sees the whole text, the others a window."""
    config = GgufEncoder(checkpoint)
    reader = config.reader
    window = reader.require_int("attention.sliding_window", minimum=2)
    every = reader.optional_int("attention.sliding_window_pattern", 3, minimum=1, maximum=MAX_LAYERS)
    whole, local = config.rope("rope.freq_base", 160_000.0), config.rope("rope.freq_base_swa", 10_000.0)
    layers = tuple(
        EncoderLayerSpec(
            reach=(window // 2, window // 2) if index % every else (None, None),
            rope=local if index % every else whole,
            has_attention_norm=index > 0,
        )
        for index in range(config.num_layers)
    )
    spec = EncoderSpec(
        family="modernbert",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        max_positions=config.context_length,
        layers=layers,
        norm_eps=config.norm_eps,
        activation=Activation.GELU,
        pre_norms=True,
        is_gated=True,
        fused_qkv=True,
        fused_gate_up=True,
        classifier=config.classifier(Activation.GELU),
    )
    config.refuse_unread()

    def layer(index: int) -> EncoderLayerNames:
        block = f"blk.{index}"
        return EncoderLayerNames(
            qkv=(f"{block}.attn_qkv",),
            output=f"{block}.attn_output",
            attention_norm=f"{block}.attn_norm" if layers[index].has_attention_norm else None,
            up=(f"{block}.ffn_up",),
            down=f"{block}.ffn_down",
            mlp_norm=f"{block}.ffn_norm",
        )

    names = EncoderNames(
        token_embedding="token_embd",
        position_embedding=None,
        type_embedding=None,
        embedding_norm="token_embd_norm",
        layers=tuple(layer(index) for index in range(len(layers))),
        output_norm="output_norm",
        classifier_dense="cls",
        classifier_norm="cls.norm",
        classifier_output="cls.output",
    )
    return Blueprint(spec=spec, names=names)


def _post_norm_blueprint(spec: EncoderSpec, *, up: tuple[str, ...]) -> Blueprint:
    qkv = ("attn_qkv",) if spec.fused_qkv else ("attn_q", "attn_k", "attn_v")

    def layer(index: int) -> EncoderLayerNames:
        block = f"blk.{index}"
        return EncoderLayerNames(
            qkv=tuple(f"{block}.{part}" for part in qkv),
            output=f"{block}.attn_output",
            attention_norm=f"{block}.attn_output_norm",
            up=tuple(f"{block}.{part}" for part in up),
            down=f"{block}.ffn_down",
            mlp_norm=f"{block}.layer_output_norm",
        )

    names = EncoderNames(
        token_embedding="token_embd",
        position_embedding="position_embd" if spec.num_position_rows else None,
        type_embedding="token_types",
        embedding_norm="token_embd_norm",
        layers=tuple(layer(index) for index in range(len(spec.layers))),
        classifier_dense="cls",
        classifier_output="cls.output",
    )
    return Blueprint(spec=spec, names=names)
