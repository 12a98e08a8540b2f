"""The RevNet with invertible down-sampling: the paper's size, no inner buffers, exact inversion, real training."""

import pytest
import torch
from torch import Tensor, nn

from petra_core import Pipeline, Stage, methods, models
from petra_core.methods import Method
from petra_core.models.architecture import Block
from petra_core.models.invertible_revnet import AverageChannels, _inner_channels
from petra_core.models.revnet import bottleneck_residual
from petra_core.prediction.memory import predict
from petra_core.tape import as_streams
from tests.compare import assert_close

pytestmark = pytest.mark.convolutions

DEPTHS = (18, 34, 50)
# (depth, classes, stem) -> parameters; the paper's network of the same depth has those beside.
PARAMETERS = {
    (18, 10, "cifar"): (11_163_313, 11_185_802),
    (18, 100, "cifar"): (11_255_563, 11_278_052),
    (18, 1000, "imagenet32"): (12_178_063, 12_200_552),
    (18, 1000, "imagenet"): (12_193_423, 12_215_912),
    (34, 10, "cifar"): (21_258_323, 21_297_674),
    (34, 1000, "imagenet"): (22_288_433, 22_327_784),
    (50, 10, "cifar"): (26_301_499, 26_350_218),
    (50, 1000, "imagenet"): (30_372_889, 30_421_608),
}


def batch(size: int = 3, image: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, image, image, generator=generator), torch.randint(0, 4, (size,), generator=generator)


def smooth(module: nn.Module) -> nn.Module:
    """With tanh for ReLU, so that rounding flips no sign."""
    for name, child in module.named_children():
        setattr(module, name, nn.Tanh() if isinstance(child, nn.ReLU) else smooth(child))
    return module


def network(depth: int = 18, width: int = 2) -> list[Stage]:
    torch.manual_seed(0)
    stages = models.invertible_revnet(depth, num_classes=4, width=width)
    for stage in stages:
        smooth(stage).double()
    return stages


@pytest.mark.parametrize(("depth", "num_classes", "stem"), PARAMETERS)
def test_it_is_as_large_as_the_papers_network(depth: int, num_classes: int, stem: str) -> None:
    counts = []
    for make in (models.invertible_revnet, models.revnet):
        with torch.device("meta"):
            stages = make(depth, num_classes=num_classes, stem=stem)
        counts.append(sum(parameter.numel() for stage in stages for parameter in stage.parameters()))
    assert tuple(counts) == PARAMETERS[depth, num_classes, stem]
    assert 0 <= 1 - counts[0] / counts[1] < 0.0021


@pytest.mark.parametrize("channels", [1, 4, 7, 256])
@pytest.mark.parametrize("budget", [300, 1_201, 9_999, 400_001])
def test_inner_channels_are_the_widest_that_the_budget_allows(channels: int, budget: int) -> None:
    def parameters(inner: int) -> int:
        block = bottleneck_residual(Block(channels, inner, channels, 1))
        return sum(parameter.numel() for parameter in block.parameters())

    inner = _inner_channels(channels, budget)
    assert parameters(inner) <= budget or inner == 1
    assert parameters(inner + 1) > budget


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_stage_between_stem_and_head_is_reversible(depth: int) -> None:
    stages = models.invertible_revnet(depth, num_classes=4, width=1)
    assert len(stages) == len(models.revnet(depth, num_classes=4, width=1))  # the paper's J
    assert [j for j, stage in enumerate(stages) if not stage.invertible] == [0, len(stages) - 1]


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_the_elements_of_a_stream_stay_as_many(depth: int, stem: str) -> None:
    with torch.device("meta"):
        stages = models.invertible_revnet(depth, num_classes=1000, stem=stem)
        value = torch.empty(2, 3, 224, 224) if stem == "imagenet" else torch.empty(2, 3, 32, 32)
    side = 56 if stem == "imagenet" else 32
    shapes = set()
    for stage in stages[:-1]:
        value = stage(value)
        shapes |= {tuple(stream.shape) for stream in as_streams(value)}
    assert shapes == {(2, 64 * 4**group, side >> group, side >> group) for group in range(4)}
    assert stages[-1](value).shape == (2, 1000)


def test_channels_are_averaged_in_groups_of_neighbours() -> None:
    assert AverageChannels(2)(torch.tensor([[1.0, 3.0, 10.0, 20.0]])).tolist() == [[2.0, 15.0]]
    assert repr(AverageChannels(2)) == "AverageChannels(features=2)"


@pytest.mark.parametrize("depth", [18, 50])
def test_under_petra_no_inner_stage_holds_inputs(depth: int) -> None:
    # At the paper's size: in its own network the buffers of the inner stages are most of what is held.
    with torch.device("meta"):
        networks = [make(depth, num_classes=10) for make in (models.invertible_revnet, models.revnet)]
        x, y = torch.empty(64, 3, 32, 32), torch.empty(64, dtype=torch.int64)
    ours, papers = (predict(stages, methods.PETRA, x, y) for stages in networks)
    for stage in ours[1:-1]:
        assert stage.held["inputs"] == stage.peak["inputs"] == stage.held["graph"] == stage.held["stashed_weights"] == 0
    assert ours[0].held["inputs"] == papers[0].held["inputs"]  # the stem's raw images
    inner = sum(stage.held["inputs"] for stage in papers[1:-1])
    rest = sum(stage.held["messages"] + stage.held["parameters"] for stage in papers)
    assert inner > rest
    # Those of DSP, which keeps the inputs of reversible stages too, do not vanish: it is the inversion that does it.
    assert all(stage.held["inputs"] > 0 for stage in predict(networks[0], methods.DSP, x, y)[1:-1])


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_stage_is_inverted_to_rounding(depth: int) -> None:
    stages = network(depth)
    with torch.no_grad():
        value = as_streams(stages[0](batch()[0].double()))
        for stage in stages[1:-1]:
            given = value
            for part in stage.parts():
                value = as_streams(part(value if len(value) > 1 else value[0]))
            reconstructed = value
            for part in reversed(stage.parts()):
                inputs = part.reconstruct(reconstructed).inputs
                assert inputs is not None
                reconstructed = inputs
            assert_close(reconstructed, given, 1e-12)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_without_updates_every_method_gives_the_gradients_of_backpropagation(method: Method) -> None:
    stages, (x, y) = network(), batch()
    x = x.double()
    model = models.sequential(stages)
    nn.functional.cross_entropy(model(x), y).backward()
    expected = [parameter.grad for stage in stages for parameter in stage.parameters()]
    found: dict[int, list[Tensor | None]] = {}

    def look(index: int, version: int, stage: Stage) -> None:
        found[index] = [parameter.grad for parameter in stage.parameters()]

    for stage in stages:
        stage.zero_grad()
    p = Pipeline(stages, method, before_update=look)
    p.step(x, y)
    p.drain()
    gradients = [gradient for index in sorted(found) for gradient in found[index]]
    # A bias before a BatchNorm has the gradient zero, and rounding in its place: compared by the largest of all.
    largest = max(float(gradient.abs().max()) for gradient in expected if gradient is not None)
    for a, e in zip(gradients, expected, strict=True):
        assert a is not None
        assert e is not None
        assert float((a - e).abs().max()) <= 1e-9 * largest


def test_petra_learns_with_it() -> None:
    torch.manual_seed(0)
    stages = models.invertible_revnet(18, num_classes=4, width=4)
    p = Pipeline(stages, methods.PETRA, accumulation=2, optimizer=lambda q: torch.optim.SGD(q, lr=0.02, momentum=0.9))
    x, y = batch(16, 8)
    losses = [float(loss) for loss in (p.step(x, y) for _ in range(80)) if loss is not None]
    assert losses[-1] < 0.3 * losses[0]


def test_images_that_cannot_be_halved_three_times_are_refused() -> None:
    stages = models.invertible_revnet(18, num_classes=4, width=1)
    with pytest.raises(ValueError, match=r"divisible by 2, got \(2, 4, 6, 9\)"):
        models.sequential(stages)(torch.ones(2, 3, 12, 18))
    with pytest.raises(ValueError, match="no invertible RevNet of depth 20"):
        models.invertible_revnet(20, num_classes=10)
    with pytest.raises(ValueError, match="did you mean 'cifar'"):
        models.invertible_revnet(18, num_classes=10, stem="cifer")
