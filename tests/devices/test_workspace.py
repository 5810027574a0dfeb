from __future__ import annotations

import pytest
import torch

from poot.devices.workspace import Workspace


def test_a_traced_buffer_is_handed_out_again() -> None:
    workspace = Workspace()
    workspace.is_tracing = True
    workspace.take("norm", 8, (4,))
    workspace.is_tracing = False
    first = workspace.take("norm", 3, (4,))
    assert first.shape == (3, 4)
    assert workspace.take("norm", 8, (4,)).data_ptr() == first.data_ptr()
    assert workspace.num_bytes == 8 * 4 * 4


def test_names_shapes_and_types_have_buffers_of_their_own() -> None:
    workspace = Workspace()
    workspace.is_tracing = True
    buffers = [
        workspace.take("a", 2, (4,)),
        workspace.take("b", 2, (4,)),
        workspace.take("a", 2, (2, 2)),
        workspace.take("a", 2, (4,), torch.uint8),
    ]
    assert len({buffer.data_ptr() for buffer in buffers}) == 4


@pytest.mark.parametrize(("name", "rows", "features"), [("norm", 9, (4,)), ("norm", 8, (5,)), ("other", 1, (4,))])
def test_what_was_not_traced_is_our_bug(name: str, rows: int, features: tuple[int, ...]) -> None:
    workspace = Workspace()
    workspace.is_tracing = True
    workspace.take("norm", 8, (4,))
    workspace.is_tracing = False
    with pytest.raises(AssertionError, match="not planned"):
        workspace.take(name, rows, features)


def test_a_later_trace_may_need_more() -> None:
    workspace = Workspace()
    workspace.is_tracing = True
    workspace.take("norm", 8, (4,))
    assert workspace.take("norm", 16, (4,)).shape == (16, 4)
    assert workspace.num_bytes == 16 * 4 * 4
    workspace.is_tracing = False
    assert workspace.take("norm", 8, (4,)).data_ptr() == workspace.take("norm", 16, (4,)).data_ptr()


def test_views_in_store_stay_bounded() -> None:
    workspace = Workspace()
    workspace.is_tracing = True
    workspace.take("norm", 5000, ())
    workspace.is_tracing = False
    for rows in range(5000):
        assert len(workspace.take("norm", rows, ())) == rows
    assert len(workspace._views) <= 1024
