"""Models as data: a checkpoint's config becomes a spec, and one decoder runs any spec through a device's operations."""

from poot.engine.models.decoder import DecoderModel
from poot.engine.models.loading import load_model
from poot.engine.models.registry import Family, model_families, read_spec
from poot.engine.models.spec import DecoderSpec, LayerSpec

__all__ = ["DecoderModel", "DecoderSpec", "Family", "LayerSpec", "load_model", "model_families", "read_spec"]
