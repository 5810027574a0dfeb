from __future__ import annotations

from poot.engine.runner import kv_layout


def test_the_pool_holds_max_seq_positions_for_every_row() -> None:
    layout = kv_layout([(3, 64), (1, 128)], num_rows=4, max_seq=100)
    assert layout.num_blocks == 4 * 7  # ceil(100 / 16)
    assert layout.layers == ((3, 64), (1, 128))
