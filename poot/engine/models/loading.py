"""From a checkpoint to a model on a device: every tensor checked against the config, then prepared.

A tensor that is missing, has another shape than the config says, or that nothing would read stops loading: a model
that computes something else than its authors meant is worse than one that does not start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from poot.devices.base import Device, Linear, RopeTable, Weight
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.models.decoder import DecoderModel, DecoderWeights, LayerWeights
from poot.engine.models.registry import read_spec
from poot.engine.models.rope import rope_table
from poot.engine.models.spec import DecoderSpec, LayerSpec, QkNorm, RopeSpec
from poot.engine.models.tensors import LayerTensors, decoder_tensors
from poot.errors import CheckpointError

# done_bytes, total_bytes
Progress = Callable[[int, int], None]

# Tensors that hold nothing the config does not say: rope frequencies kept by old exporters, and GGUF's factors on
# them, which the family has read by then.
HARMLESS_SUFFIXES = ("rotary_emb.inv_freq", ".attn_rot_embd.weight")
HARMLESS_NAMES = frozenset({"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"})


def load_model(
    checkpoint: Checkpoint,
    device: Device,
    *,
    max_positions: int,
    for_texts: bool = False,
    progress: Progress | None = None,
) -> DecoderModel:
    """The model of `checkpoint`, prepared on `device`.

    Args:
        max_positions: positions that will be served at most (--max-seq); rope tables end there, or at the model's
            own limit if that is lower.
        for_texts: the model runs encode passes alone, so weights may be laid out for many tokens at a time.
        progress: called with (done_bytes, total_bytes) of the file's tensors as they are prepared.

    Raises:
        CheckpointError: an unknown architecture, a config field or tensor that is missing, wrong or not understood.
        NotAvailableError: a model that needs a feature that is not built yet.
    """
    spec = read_spec(checkpoint)
    loader = _Loader(checkpoint, device, spec, progress or _no_progress, for_texts=for_texts)
    return loader.load(min(max_positions, spec.max_positions))


def _no_progress(done_bytes: int, total_bytes: int) -> None:
    pass


class _Loader:
    """One load: remembers which tensors were taken and how many bytes they hold."""

    def __init__(
        self, checkpoint: Checkpoint, device: Device, spec: DecoderSpec, progress: Progress, *, for_texts: bool
    ) -> None:
        self._checkpoint = checkpoint
        self._for_texts = for_texts
        self._device = device
        self._spec = spec
        self._progress = progress
        self._total_bytes = sum(weight.num_bytes for weight in checkpoint.tensors.values())
        self._done_bytes = 0
        self._taken: set[str] = set()
        self._tables: dict[RopeSpec, RopeTable] = {}

    def load(self, max_positions: int) -> DecoderModel:
        spec, device = self._spec, self._device
        bytes_before = device.weight_bytes()
        names = decoder_tensors(spec, self._checkpoint.file_format)
        self._check_all_known(names.layers, names.token_embedding, names.output_norm, names.output_head)
        for rope in {layer.rope: None for layer in spec.layers}:
            if rope is not None:
                self._tables[rope] = rope_table(device, rope, max_positions)
        embedding = device.embedding(self._take(names.token_embedding, (spec.vocab_size, spec.hidden_size)))
        self._report()
        layers = []
        for layer, tensors in zip(spec.layers, names.layers, strict=True):
            layers.append(self._layer(layer, tensors))
            self._report()
        output_norm = self._vector(names.output_norm, spec.hidden_size, offset=spec.norm_weight_offset)
        head = (
            device.output_head(embedding)
            if names.output_head is None
            else self._linear((names.output_head,), None, (spec.vocab_size,), spec.hidden_size)
        )
        self._progress(self._total_bytes, self._total_bytes)
        return DecoderModel(
            spec,
            DecoderWeights(embedding=embedding, layers=layers, output_norm=output_norm, head=head),
            num_weight_bytes=device.weight_bytes() - bytes_before,
            display_name=_display_name(self._checkpoint),
        )

    def _layer(self, layer: LayerSpec, names: LayerTensors) -> LayerWeights:
        spec = self._spec
        hidden, width = spec.hidden_size, layer.intermediate_size
        query_width, key_width = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
        qkv_widths = (query_width, key_width, key_width)
        gate_up_widths = (width, width)
        is_full_norm = spec.qk_norm is QkNorm.FULL
        return LayerWeights(
            attention_norm=self._norm(names.attention_norm, hidden),
            qkv=self._linear(names.qkv, names.qkv_bias, (sum(qkv_widths),) if spec.fused_qkv else qkv_widths, hidden),
            query_norm=self._norm(names.query_norm, query_width if is_full_norm else layer.head_dim),
            key_norm=self._norm(names.key_norm, key_width if is_full_norm else layer.head_dim),
            output=self._linear((names.output,), _single(names.output_bias), (hidden,), query_width),
            attention_post_norm=self._norm(names.attention_post_norm, hidden),
            mlp_norm=self._norm(names.mlp_norm, hidden),
            gate_up=self._linear(
                names.gate_up,
                names.gate_up_bias,
                (sum(gate_up_widths),) if spec.fused_gate_up else gate_up_widths,
                hidden,
            ),
            down=self._linear((names.down,), _single(names.down_bias), (hidden,), width),
            mlp_post_norm=self._norm(names.mlp_post_norm, hidden),
            rope=None if layer.rope is None else self._tables[layer.rope],
        )

    def _linear(
        self, names: Sequence[str], biases: Sequence[str] | None, widths: Sequence[int], in_features: int
    ) -> Linear:
        weights = [self._take(name, (width, in_features)) for name, width in zip(names, widths, strict=True)]
        if biases is None:
            return self._device.linear(weights, for_texts=self._for_texts)
        vectors = [self._vector(name, width) for name, width in zip(biases, widths, strict=True)]
        return self._device.linear(weights, vectors, for_texts=self._for_texts)

    def _norm(self, name: str | None, size: int) -> torch.Tensor | None:
        return None if name is None else self._vector(name, size, offset=self._spec.norm_weight_offset)

    def _vector(self, name: str, size: int, *, offset: float = 0.0) -> torch.Tensor:
        weight = self._take(name, (size,))
        if not weight.format.is_dense:
            raise self._error(f"tensor {name} is stored as {weight.format.label}; norms and biases must be dense")
        return self._device.vector(weight, offset=offset)

    def _take(self, name: str, shape: tuple[int, ...]) -> Weight:
        weight = self._checkpoint.tensors.get(name)
        if weight is None:
            raise self._error(f"tensor {name} is missing")
        if weight.shape != shape:
            raise self._error(f"tensor {name} has shape {list(weight.shape)}, but the config makes it {list(shape)}")
        if name not in self._taken:
            self._taken.add(name)
            self._done_bytes += weight.num_bytes
        return weight

    def _report(self) -> None:
        self._progress(self._done_bytes, self._total_bytes)

    def _check_all_known(self, layers: Sequence[LayerTensors], *others: str | None) -> None:
        """Refuses a file with a tensor that nothing reads, before anything is prepared."""
        known = {name for name in others if name is not None}
        for layer in layers:
            for value in (getattr(layer, field) for field in LayerTensors.__dataclass_fields__):
                known.update((value,) if isinstance(value, str) else value or ())
        if self._spec.tied_embeddings and self._checkpoint.file_format is FileFormat.SAFETENSORS:
            known.add("lm_head.weight")  # some exporters write the tied table twice; the config's tie decides
        unknown = sorted(
            name
            for name in self._checkpoint.tensors
            if name not in known and name not in HARMLESS_NAMES and not name.endswith(HARMLESS_SUFFIXES)
        )
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise self._error(
                f"tensor {unknown[0][:100]}{more}: not part of a {self._spec.family} model as its config describes it"
            )

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(message, path=display_path(self._checkpoint.path))


def _single(name: str | None) -> tuple[str, ...] | None:
    return None if name is None else (name,)


def _display_name(checkpoint: Checkpoint) -> str | None:
    """The name a GGUF file gives its model. config.json has no such field that survives a copy."""
    name = checkpoint.config.get("general.name")
    return name if isinstance(name, str) and name else None
