"""From a checkpoint to an encoder on a device: every tensor checked against the config, then prepared.

As with decoders, a tensor that is missing, has another shape than the config says, or that nothing reads and no family
names as left over from pretraining, stops loading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from poot.devices.base import Device, Embedding, Linear, RopeTable, Weight
from poot.devices.formats import Format
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.encoder import ClassifierWeights, EncoderLayerWeights, EncoderModel, EncoderWeights, Norm
from poot.engine.models.encoder_registry import read_blueprint
from poot.engine.models.encoder_spec import (
    Blueprint,
    DistanceBiasSpec,
    EncoderLayerNames,
    EncoderLayerSpec,
)
from poot.engine.models.loading import Progress
from poot.engine.models.rope import rope_table
from poot.engine.models.spec import RopeSpec
from poot.errors import CheckpointError


def load_encoder(
    checkpoint: Checkpoint, device: Device, *, max_tokens: int, progress: Progress | None = None
) -> EncoderModel:
    """The encoder of `checkpoint`, prepared on `device`, its classifier included where it has one.

    Args:
        max_tokens: tokens of a text that will be served at most; rope tables end there, or at the model's own limit.
        progress: called with (done_bytes, total_bytes) of the file's tensors as they are prepared.

    Raises:
        CheckpointError: an unknown architecture, a config field or tensor that is missing, wrong or not understood.
        NotAvailableError: a model that needs a feature that is not built yet.
    """
    return _Loader(checkpoint, device, read_blueprint(checkpoint), max_tokens, progress).load()


class _Loader:
    """One load: remembers which tensors were taken and how many bytes they hold."""

    def __init__(
        self, checkpoint: Checkpoint, device: Device, blueprint: Blueprint, max_tokens: int, progress: Progress | None
    ) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._spec = blueprint.spec
        self._names = blueprint.names
        self._max_tokens = min(max_tokens, self._spec.max_positions)
        self._progress = progress
        self._total_bytes = sum(weight.num_bytes for weight in checkpoint.tensors.values())
        self._done_bytes = 0
        self._taken: set[str] = set()
        self._tables: dict[RopeSpec, RopeTable] = {}

    def load(self) -> EncoderModel:
        spec, names, device = self._spec, self._names, self._device
        bytes_before = device.weight_bytes()
        self._check_unused()
        for layer in spec.layers:
            if layer.rope is not None and layer.rope not in self._tables:
                self._tables[layer.rope] = rope_table(device, layer.rope, self._max_tokens)
        weights = EncoderWeights(
            token_embedding=self._embedding(names.token_embedding, spec.vocab_size),
            position_embedding=self._optional_embedding(names.position_embedding, spec.num_position_rows),
            type_embedding=self._optional_embedding(names.type_embedding, spec.num_token_types),
            embedding_norm=self._norm(names.embedding_norm),
            layers=[
                self._layer(layer, layer_names) for layer, layer_names in zip(spec.layers, names.layers, strict=True)
            ],
            output_norm=None if names.output_norm is None else self._norm(names.output_norm),
            distance_bias=self._distance_bias(),
            classifier=self._classifier(),
        )
        left = sorted(self._checkpoint.tensors.keys() - self._taken)
        left = [name for name in left if not name.startswith(names.unused)]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise self._error(
                f"tensor {left[0][:100]}{more}: not part of a {spec.family} model as its config describes it"
            )
        if self._progress is not None:
            self._progress(self._total_bytes, self._total_bytes)
        name = self._checkpoint.config.get("general.name")
        return EncoderModel(
            spec,
            weights,
            num_weight_bytes=device.weight_bytes() - bytes_before,
            display_name=name if isinstance(name, str) and name else None,
        )

    def _check_unused(self) -> None:
        """Names of unused tensors begin with what names them; an empty beginning would let everything pass."""
        assert all(self._names.unused)

    def _layer(self, layer: EncoderLayerSpec, names: EncoderLayerNames) -> EncoderLayerWeights:
        spec = self._spec
        hidden, width = spec.hidden_size, spec.intermediate_size
        qkv_widths = (3 * hidden,) if spec.fused_qkv else (hidden,) * 3
        if not spec.is_gated:
            up_widths: tuple[int, ...] = (width,)
        else:
            up_widths = (2 * width,) if spec.fused_gate_up else (width, width)
        prepared = EncoderLayerWeights(
            qkv=self._linear(names.qkv, qkv_widths, hidden),
            output=self._linear((names.output,), (hidden,), hidden),
            attention_norm=None if names.attention_norm is None else self._norm(names.attention_norm),
            up=self._linear(names.up, up_widths, hidden),
            down=self._linear((names.down,), (hidden,), width),
            mlp_norm=self._norm(names.mlp_norm),
            rope=None if layer.rope is None else self._tables[layer.rope],
        )
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)
        return prepared

    def _classifier(self) -> ClassifierWeights | None:
        spec, names = self._spec.classifier, self._names
        if spec is None:
            return None
        hidden = self._spec.hidden_size
        assert names.classifier_output is not None
        return ClassifierWeights(
            dense=self._linear((names.classifier_dense,), (hidden,), hidden)
            if spec.has_dense and names.classifier_dense is not None
            else None,
            norm=self._norm(names.classifier_norm) if spec.has_norm and names.classifier_norm is not None else None,
            output=self._linear((names.classifier_output,), (1,), hidden),
        )

    def _distance_bias(self) -> torch.Tensor | None:
        """The table by bucket, spread over distances, f32 `[num_heads, 2 * R + 1]`."""
        spec = self._spec.distance_bias
        if spec is None:
            return None
        assert self._names.distance_bias is not None
        shape = (spec.num_buckets, self._spec.num_heads)
        table = self._take(f"{self._names.distance_bias}.weight", shape)
        by_bucket = self._vector_of(table).view(shape)
        buckets = torch.tensor(distance_buckets(spec))
        spread = by_bucket[buckets].t().contiguous()
        return self._device.vector(
            Weight(name=table.name, shape=(spread.numel(),), format=Format.F32, data=spread.flatten())
        ).view(spread.shape)

    def _linear(self, names: Sequence[str], widths: Sequence[int], in_features: int) -> Linear:
        weights = [
            self._take(f"{name}.weight", (width, in_features)) for name, width in zip(names, widths, strict=True)
        ]
        biases = [
            self._vector(f"{name}.bias", width) if f"{name}.bias" in self._checkpoint.tensors else None
            for name, width in zip(names, widths, strict=True)
        ]
        return self._device.linear(
            weights, biases if any(bias is not None for bias in biases) else None, for_texts=True
        )

    def _norm(self, name: str) -> Norm:
        bias = f"{name}.bias"
        size = self._spec.hidden_size
        return Norm(
            self._vector(f"{name}.weight", size),
            self._vector(bias, size) if bias in self._checkpoint.tensors else None,
        )

    def _embedding(self, name: str, num_rows: int) -> Embedding:
        return self._device.embedding(self._take(f"{name}.weight", (num_rows, self._spec.hidden_size)))

    def _optional_embedding(self, name: str | None, num_rows: int) -> Embedding | None:
        return None if name is None or num_rows == 0 else self._embedding(name, num_rows)

    def _vector(self, name: str, size: int) -> torch.Tensor:
        return self._vector_of(self._take(name, (size,)))

    def _vector_of(self, weight: Weight) -> torch.Tensor:
        if not weight.format.is_dense:
            raise self._error(
                f"tensor {weight.name} is stored as {weight.format.label}; norms and biases must be dense"
            )
        return self._device.vector(weight)

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

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(message, path=display_path(self._checkpoint.path))


def distance_buckets(spec: DistanceBiasSpec) -> list[int]:
    """The bucket of each distance from -R to R, R being where buckets no longer change.

    A distance is the key's position less the query's. Half of the buckets are for keys after the query; of each half, a
    half is for single distances and the rest grow with the logarithm, up to max_distance (Raffel et al. 2020).
    """
    per_side = spec.num_buckets // 2
    exact = per_side // 2

    def bucket(distance: int) -> int:
        side = per_side if distance > 0 else 0
        size = abs(distance)
        if size < exact:
            return side + size
        # In single precision, as the reference implementations compute it: buckets begin where that rounds.
        share = torch.log(torch.tensor(size / exact, dtype=torch.float32)) / math.log(spec.max_distance / exact)
        return side + min(per_side - 1, exact + int(share * (per_side - exact)))

    return [bucket(distance) for distance in range(-spec.max_distance, spec.max_distance + 1)]
