"""What a stage is made of, in words."""

from petra_core import models
from reproduce.cells import networks
from reproduce.cells.networks import TIMES


def test_layers_are_named_with_their_strides() -> None:
    stages = models.revnet(50, num_classes=10, width=2)
    assert networks.layers_of(stages[2]) == f"conv 1{TIMES}1 8→2, conv 3{TIMES}3 2→2, conv 1{TIMES}1 2→8"
    assert networks.layers_of(stages[4]).startswith(
        f"conv 1{TIMES}1 8→4, conv 3{TIMES}3 4→4/2, conv 1{TIMES}1 4→16, conv 1{TIMES}1 8→16/2"
    )
    assert networks.layers_of(stages[-1]) == "linear 128→10"
