"""Test the RevNet with invertible down-sampling: the paper's size, no inner buffers, exact inversion, training."""

import pytest
import torch

from petra_core import models
from petra_core.tape import as_streams
from reproduce.models.invertible_revnet import AverageChannels, invertible_revnet
from tests.compare import assert_close

pytestmark = pytest.mark.convolutions


@pytest.mark.parametrize(
    ("depth", "num_classes", "stem", "parameters"),
    [(18, 10, "cifar", 11_163_313), (34, 1000, "imagenet", 22_288_433), (50, 1000, "imagenet", 30_372_889)],
)
def test_size_is_close_to_papers_revnet(depth: int, num_classes: int, stem: str, parameters: int) -> None:
    """The network has as many stages as the paper's RevNet and at most 0.21 % fewer parameters."""
    with torch.device("meta"):
        ours, papers = (make(depth, num_classes=num_classes, stem=stem) for make in (invertible_revnet, models.revnet))
    counts = [sum(parameter.numel() for stage in net for parameter in stage.parameters()) for net in (ours, papers)]
    assert counts[0] == parameters
    assert 0 <= 1 - counts[0] / counts[1] < 0.0021
    assert len(ours) == len(papers)
    assert [j for j, stage in enumerate(ours) if not stage.invertible] == [0, len(ours) - 1]


@pytest.mark.parametrize(("depth", "stem"), [(18, "cifar"), (34, "imagenet"), (50, "imagenet")])
def test_streams_keep_number_of_elements(depth: int, stem: str) -> None:
    """Every down-sampling quadruples the channels of a stream and halves its sides."""
    with torch.device("meta"):
        stages = invertible_revnet(depth, num_classes=1000, stem=stem)
        value = torch.empty(2, 3, 224, 224) if stem == "imagenet" else torch.empty(2, 3, 32, 32)
    side = 56 if stem == "imagenet" else 32
    shapes = set()
    for stage in stages[:-1]:
        value = stage(value)
        shapes |= {tuple(stream.shape) for stream in as_streams(value)}
    assert shapes == {(2, 64 * 4**group, side >> group, side >> group) for group in range(4)}
    assert stages[-1](value).shape == (2, 1000)


def test_average_channels_averages_neighbours() -> None:
    assert AverageChannels(2)(torch.tensor([[1.0, 3.0, 10.0, 20.0]])).tolist() == [[2.0, 15.0]]
    assert repr(AverageChannels(2)) == "AverageChannels(features=2)"


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_stages_are_inverted_up_to_rounding(depth: int) -> None:
    torch.manual_seed(0)
    stages = [stage.double() for stage in invertible_revnet(depth, num_classes=4, width=2)]
    with torch.no_grad():
        value = as_streams(stages[0](torch.randn(3, 3, 16, 16, dtype=torch.float64)))
        for stage in stages[1:-1]:
            given = value
            for part in stage.parts():
                value = as_streams(part(value if len(value) > 1 else value[0]))
            reconstructed = value
            for part in reversed(stage.parts()):
                reconstructed = part.reconstruct(reconstructed).inputs
            assert_close(reconstructed, given, 1e-12)
