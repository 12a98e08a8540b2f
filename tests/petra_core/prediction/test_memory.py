"""Test that the bytes that the ledger measures equal those that independent formulas predict."""

import copy
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from petra_core import HeadStage, Pipeline, Stage, merge, methods, models
from petra_core.inspection.ownership import storage_reference
from petra_core.ledger import KINDS, Ledger, MemoryReport, SavedTensors
from petra_core.methods import Method
from petra_core.prediction.footprint import merge_footprints
from petra_core.prediction.memory import footprints, predict
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.properties import assert_bytes_are_as_predicted
from tests.reference_networks import random_vector


def batch(size: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 3, 8, 8), torch.randint(0, 10, (size,))


def merged() -> list[Stage]:
    blocks = models.revnet(18, num_classes=10, width=4)
    return [merge(blocks[:3]), merge(blocks[3:5]), blocks[5], merge(blocks[6:])]


NETWORKS: dict[str, Callable[[], list[Stage]]] = {
    "revnet18": lambda: models.revnet(18, num_classes=10, width=4),
    "revnet50": lambda: models.revnet(50, num_classes=10, width=2),
    "resnet18": lambda: models.resnet(18, num_classes=10, width=4),
    "chain5": lambda: models.chain(5, num_classes=10, channels=4),
    "merged": merged,
    "head only": lambda: [HeadStage(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)))],
}


@pytest.mark.parametrize(
    ("network", "method", "k"),
    [
        *(("merged", method, 3) for method in (*methods.PAPER, methods.PAREPROP)),
        *((network, methods.PETRA, 3) for network in ("revnet18", "revnet50", "resnet18", "head only")),
        *((network, methods.DELAYED_GRADIENTS, 1) for network in ("revnet18", "head only")),  # stashes most
    ],
    ids=str,
)
def test_predicted_equals_measured_per_stage_and_kind(network: str, method: Method, k: int) -> None:
    """An inspection keeps no bytes. The vector of RevNet-50 is short, since every step of its 18 stages is slow."""
    stages = NETWORKS[network]()
    vector = (*[2] * 9, *[1] * (len(stages) - 10), 0) if network == "revnet50" else None
    inspect = network == "merged"
    assert_bytes_are_as_predicted(stages, method, batch(), k, toys.sgd, inspect=inspect, staleness=vector)


@pytest.mark.parametrize("method", [method for method in methods.ALL if method.pipelined], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_predicted_equals_measured_for_any_staleness(method: Method, seed: int) -> None:
    generator = random.Random(f"{method} {seed}")
    stages = NETWORKS["chain5"]()
    vector, k = random_vector(generator, len(stages)), generator.randint(1, 4)
    if method.double_buffered:
        k = max(k, vector[0])
    assert_bytes_are_as_predicted(stages, method, batch(), k, toys.sgd, staleness=vector)


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_ledger_matches_held_tensors(method: Method) -> None:
    """The ledger's bytes equal the sum of the tensors in the state of each stage."""
    # Add up the tensors that the workers hold, instead of reading the ledger.
    pipeline = Pipeline(merged(), method, accumulation=2, optimizer=toys.sgd, inspect=False)
    for _ in range(12):
        pipeline.step(*batch())
    state = pipeline.state_dict()
    for stage, worker in zip(pipeline.memory().stages, state["workers"], strict=True):
        kept = [tensor for part in worker["parts"] for entry in part["memory"] for tensor in entry["kept"]]
        stashed = [
            tensor for part in worker["parts"] for weights in part["weights"].values() for tensor in weights.values()
        ]
        messages = [
            tensor
            for inbox in ("from_below", "from_above")
            for message in worker[inbox]
            for tensor in (*(message["streams"] or ()), *(message["gradients"] or ()))
        ]
        momentum = [s["momentum_buffer"] for s in worker["optimizer"]["state"].values()] if worker["optimizer"] else []
        held = {
            "inputs": kept,
            "stashed_weights": stashed,
            "messages": messages,
            "gradients": list(worker["gradients"].values()),
            "optimizer": momentum,
        }
        for kind, tensors in held.items():
            assert stage.now[kind] == sum(t.numel() * t.element_size() for t in tensors), (stage.stage, kind)


def test_saved_tensors_count_bytes_of_autograd() -> None:
    """SavedTensors counts the storages that autograd saves, without known ones, and then keeps none alive."""
    # exp saves its result and mul saves its operand x (float32, 5 elements): two storages.
    x = torch.randn(5, requires_grad=True)
    for known, count in (([], 2), ([x], 1)):
        with SavedTensors(known) as saved:
            z = x.exp() * x
        assert saved.bytes == count * 5 * 4
    z.sum().backward()
    storage = storage_reference(x.exp())
    assert storage.expired()


def test_petra_bytes_do_not_grow_with_depth() -> None:
    """In a deeper chain, a reversible stage holds more bytes under delayed gradients, but not under PETRA."""
    # A reversible stage holds the same number of bytes at every depth under PETRA, and linearly more under delayed
    # gradients.
    x, y = batch()
    for method, grows in ((methods.PETRA, False), (methods.DELAYED_GRADIENTS, True)):
        short = predict(models.chain(3, num_classes=10, channels=4), method, x, y)[1]
        long = predict(models.chain(12, num_classes=10, channels=4), method, x, y)[1]
        held = [sum(stage.held[kind] for kind in ("inputs", "graph", "stashed_weights")) for stage in (short, long)]
        assert (held[1] > held[0]) == grows
        assert grows or held == [0, 0]


def test_ledger_total_peak_is_simultaneous() -> None:
    """The total peak is that of one moment, and negative bytes raise AssertionError."""
    ledger = Ledger()
    ledger.add("inputs", 10)
    ledger.add("inputs", -10)
    ledger.add("graph", 7)
    ledger.add("messages", 4)
    assert (ledger.peak["inputs"], ledger.peak["graph"], ledger.peak_total) == (10, 7, 11)
    report = MemoryReport((ledger, ledger))
    assert (report.peak(), report.peak(*KINDS)) == (22, 42)
    with pytest.raises(AssertionError, match="below zero"):
        ledger.add("inputs", -1)


def test_reversible_stage_stashes_only_one_stream() -> None:
    """Under DSP, a reversible stage stashes only the stream that its function reads."""
    # The other stream only passes through an addition. Keeping it would needlessly double the bytes of DSP.
    x, y = batch()
    chain = models.chain(2, num_classes=10, channels=4)
    stage = predict(chain, methods.DSP, x, y)[1]
    assert stage.held["inputs"] == 4 * x.shape[0] * 4 * 8 * 8 * 4  # delay 4, float32
    pipeline = Pipeline(chain, methods.DSP)
    for _ in range(9):
        pipeline.step(x, y)
    assert pipeline.memory().stages[1].now["inputs"] == stage.held["inputs"]


def test_prediction_changes_no_weights_and_draws_no_random_numbers() -> None:
    stages, (x, y) = toys.network(4, dropout=0.2), toys.batches(1)[0]
    before = copy.deepcopy([stage.state_dict() for stage in stages]), torch.get_rng_state()
    for method in methods.PAPER:
        predict(stages, method, x, y, accumulation=2, optimizer=toys.sgd)
    assert_bitwise_equal(([stage.state_dict() for stage in stages], torch.get_rng_state()), before)


def test_footprints_of_merged_stages_equal_joined_ones() -> None:
    blocks = models.revnet(18, num_classes=10, width=2)
    images, labels = torch.empty(2, 3, 8, 8, device="meta"), torch.empty(2, dtype=torch.int64, device="meta")
    for method in (methods.PETRA, methods.DELAYED_GRADIENTS):
        apart = footprints(blocks, method, images, labels)
        parts = (blocks[:3], blocks[3:5], blocks[5:])
        merged = footprints([merge(part) for part in parts], method, images, labels)
        assert merged == (merge_footprints(apart[:3]), merge_footprints(apart[3:5]), merge_footprints(apart[5:]))
