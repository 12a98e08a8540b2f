"""Test that random images and network are the same for the same cell, without changing global random states."""

from dataclasses import replace

import torch

from petra_core import methods
from reproduce.measures.synthetic import synthetic
from tests import fake_records

CPU = torch.device("cpu")
CELL = fake_records.complexity_cell(methods.PETRA)


def test_synthetic_data_depend_only_on_settings_and_seed() -> None:
    """A seed determines images and network for all methods, and global random states do not change."""
    with synthetic(CELL, 7, CPU) as (stages, images, labels):
        assert len(stages) == 5
        assert (images.shape, labels.shape) == ((2, 3, 8, 8), (2,))
        assert labels.max() < 7
        assert [p.shape[0] for p in stages[-1].parameters()] == [7, 7]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with synthetic(CELL, 10, CPU) as first, synthetic(replace(CELL, method="DSP"), 10, CPU) as second:
        assert torch.equal(first[1], second[1])
        for one, other in zip(first[0], second[0], strict=True):
            assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    with synthetic(replace(CELL, seed=1), 10, CPU) as third:
        assert not torch.equal(first[1], third[1])
    assert torch.equal(torch.get_rng_state(), before), "global random states are unchanged"
