"""The cpu device's activation buffers: sized by a trace of the model code before serving, then only handed out.

Every operation writes to a buffer of its own name and feature shape, as long as the largest step of any program. A
trace runs the model code once with operations that compute nothing and only ask for their buffers; after that a
request for a buffer that was not traced is our bug, so a step allocates no activations.
"""

from __future__ import annotations

import torch

# Views are remembered so that a decode step, whose sizes repeat, makes none. Prefill chunks vary: past this many
# views all are forgotten, which costs about a microsecond for each that is needed again.
_MAX_VIEWS = 1024


class Workspace:
    """Named f32 buffers `[rows, *features]`.

    Attributes:
        is_tracing: while true, `take` grows buffers instead of refusing, and operations compute nothing.
    """

    def __init__(self) -> None:
        self.is_tracing = False
        self._buffers: dict[tuple[str, tuple[int, ...], torch.dtype], torch.Tensor] = {}
        self._views: dict[tuple[str, int, tuple[int, ...], torch.dtype], torch.Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes held by all buffers."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())

    def take(self, name: str, rows: int, features: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The buffer `name`, `[rows, *features]`, contiguous, holding whatever its last user left."""
        key = (name, rows, features, dtype)
        view = self._views.get(key)
        if view is None:
            view = self._buffer(name, rows, features, dtype)[:rows]
            self.remember(key, view)
        return view

    def column(self, key: tuple[str, int, tuple[int, ...], torch.dtype]) -> torch.Tensor | None:
        """A view that `remember` was given under `key`, or None."""
        return self._views.get(key)

    def remember(self, key: tuple[str, int, tuple[int, ...], torch.dtype], view: torch.Tensor) -> None:
        """Keeps a view of a buffer for the steps to come."""
        if len(self._views) >= _MAX_VIEWS:
            self._views.clear()
        self._views[key] = view

    def _buffer(self, name: str, rows: int, features: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        key = (name, features, dtype)
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < rows:
            assert self.is_tracing, f"{name} {features}: {rows} rows were not planned for"
            # Written through, so that the memory is really there: a plan that fits on paper must fit now.
            buffer = torch.empty((rows, *features), dtype=dtype).zero_()
            self._buffers[key] = buffer
            self._views.clear()
        return buffer
