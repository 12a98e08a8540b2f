"""Test cells: one text and one identity per cell, and errors with suggestions for wrong settings."""

import dataclasses
import json

import pytest

from reproduce.cells.kinds import CellError, ComplexityCell, ForwardGradientCell, MemoryCell, TrainingCell, from_dict
from tests.conftest import ROOT

TRAINING = TrainingCell(
    scale="smoke",
    dataset="digits",
    image_size=16,
    model="revnet18",
    stem="cifar",
    width=4,
    method="PETRA",
    accumulation=4,
    batch_size=16,
    epochs=6,
    warmup_epochs=1,
    drops=(4,),
    drop_factor=0.1,
    learning_rate=0.025,
    momentum=0.9,
    weight_decay=5e-4,
    augmentation="none",
    loader="memory",
    precision="float32",
    seed=0,
)
COMPLEXITY = ComplexityCell(
    scale="smoke",
    model="chain4",
    stem="stride1",
    image_size=8,
    width=4,
    method="DSP",
    accumulation=1,
    batch_size=2,
    seed=0,
)
OTHER_VALUES = {
    "timing": "1f1b",
    "stages": (5, 5),
    "scale": "paper",
    "image_size": 32,
    "model": "revnet34",
    "stem": "imagenet",
    "width": 8,
    "method": "DSP",
    "accumulation": 5,
    "batch_size": 8,
    "epochs": 9,
    "warmup_epochs": 0.5,
    "drops": (),
    "drop_factor": 0.2,
    "learning_rate": 0.05,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "augmentation": "flip_crop",
    "precision": "bf16",
    "seed": 1,
    "replicas": 2,
    "optimizer": "adamw",
    "forward_weights": "predicted",
    "correction": "spike",
}


def test_the_identity_is_fixed_for_ever():
    """Records are found by it: if it changes, every record on disk is lost."""
    assert TRAINING.identity == "cd4cfc16798c4513f61eb437e2b36cd5545407b6b6d7debb9e18eaa93dd5561e"
    assert TRAINING.name == f"digits-revnet18-w4-petra-k4-s0-{TRAINING.identity[:12]}"


def test_every_setting_changes_the_identity():
    elsewhere = {"dataset", "loader", "correction_value", "coupling"}
    assert {field.name for field in dataclasses.fields(TRAINING)} == OTHER_VALUES.keys() | elsewhere
    for setting, value in OTHER_VALUES.items():
        assert dataclasses.replace(TRAINING, **{setting: value}).identity != TRAINING.identity, setting
    compensated = dataclasses.replace(TRAINING, correction="compensation", correction_value=0.04)
    assert dataclasses.replace(compensated, correction_value=0.05).identity != compensated.identity
    plain = dataclasses.replace(TRAINING, model="vit_micro", stem="patch2", width=6)
    coupled = [dataclasses.replace(plain, coupling=name) for name in ("bdia", "bdia_float")]
    assert len({cell.identity for cell in (plain, *coupled)}) == 3
    assert [cell.slug for cell in (plain, *coupled)] == [
        f"digits-vit_micro{coupling}-w6-petra-k4-s0" for coupling in ("", "-bdia", "-bdia-float")
    ]


def test_a_cell_survives_json_and_equal_values_written_differently_are_one_cell():
    for cell in (TRAINING, COMPLEXITY):
        again = from_dict(json.loads(json.dumps(cell.to_dict())))
        assert again == cell
        assert again.identity == cell.identity
    values = TRAINING.to_dict() | {"warmup_epochs": 1.0, "drops": [4], "method": "petra"}
    assert from_dict(dict(reversed(values.items()))).identity == TRAINING.identity
    del values["seed"]
    with pytest.raises(CellError, match="missing: seed"):
        from_dict(values)


def test_cells_that_differ_in_what_is_left_out_are_the_same_text():
    other = dataclasses.replace(TRAINING, seed=1)
    assert TRAINING.less("seed") == other.less("seed") != TRAINING.less("width")
    assert json.loads(TRAINING.less()) == json.loads(json.dumps(TRAINING.to_dict()))


def test_a_setting_that_came_later_is_written_but_no_part_of_the_identity_at_its_default():
    assert TRAINING.to_dict()["optimizer"] == "sgd"
    assert not {"optimizer", "replicas"} & set(TRAINING.without_defaults())
    assert dataclasses.replace(TRAINING, replicas=2).without_defaults()["replicas"] == 2
    assert from_dict(TRAINING.without_defaults()) == from_dict(TRAINING.to_dict()) == TRAINING


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rat": 0.1}, "no setting 'learning_rat'; did you mean learning_rate"),
        ({"zzz": 1}, "choose from scale, model"),
        ({"epochs": "6"}, "epochs must be int, got str '6'"),
        ({"epochs": True}, "epochs must be int, got bool True"),
        ({"drops": 4}, "drops must be a list of int, got 4"),
        ({"drops": ["4"]}, "drops must be int, got str '4'"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite"),
        ({"learning_rate": -0.1}, "learning_rate must be at least 0, got -0.1"),
        ({"accumulation": 33}, "k=33 is outside 1..32"),
        ({"method": "petrarch"}, "there is no method 'petrarch'; did you mean PETRA"),
        ({"model": "revnet81"}, "no model 'revnet81'; did you mean revnet18"),
        ({"model": "chain10"}, "no stem 'cifar'; choose from stride1"),
        ({"stem": "cifer"}, "did you mean cifar"),
        ({"precision": "float16"}, "did you mean float32"),
        ({"replicas": 0}, "replicas must be at least 1, got 0"),
        ({"optimizer": "adam"}, "no optimizer 'adam'; did you mean nadam, adamw"),
        ({"forward_weights": "future"}, "no forward_weights 'future'; choose from current, predicted"),
        ({"correction": "gap-aware"}, "no correction 'gap-aware'; did you mean gap_aware"),
        ({"correction": "rate"}, "updates until the rate is released must be above 0, got 0"),
        ({"correction": "spike", "correction_value": 2.0}, "spike has no constant, got correction_value 2.0"),
        ({"correction": "spike", "momentum": 0.0}, "spike requires sgd with momentum, got sgd with momentum 0"),
        ({"correction": "gap_aware", "learning_rate": 0.0}, "gap_aware measures gaps by the learning rate, which is 0"),
        ({"messages": "bf16"}, "'messages' was removed, and its value 'bf16' is no longer supported, only 'float32'"),
        ({"stage_replicas": [2, 1]}, r"setting 'stage_replicas' was removed, and its value \[2, 1\] is no"),
        (
            {"correction": "average", "correction_value": 0.1, "method": "DELAYED_GRADIENTS"},
            "DELAYED_GRADIENTS stashes",
        ),
        (
            {"forward_weights": "predicted", "method": "BACKPROPAGATION"},
            "would have no effect; choose a pipelined method",
        ),
        ({"forward_weights": "predicted", "optimizer": "nadam"}, "nadam already looks ahead"),
        ({"model": "revvit_tiny"}, "stem of a transformer must be patch<P> .* got 'cifar'"),
        (
            {"model": "revvit_tiny", "stem": "patch4"},
            r"width of revvit_tiny \(published: 192\): 4 channels cannot be divided among 3 heads",
        ),
        ({"model": "revvit_tiny", "stem": "patch5", "width": 6}, "16 pixels cannot be divided into patches of 5"),
        (
            {"model": "revswin_tiny", "stem": "patch4", "width": 6},
            "tokens of group 2 cannot be divided into windows of 1",
        ),
        ({"coupling": "bdai"}, "coupling must be own, bdia, bdia_float, got 'bdai'"),
        (
            {"coupling": "bdia"},
            "but revnet18 is not plain; choose vit_micro, .* coupling own",
        ),
        (
            {"coupling": "bdia", "model": "vit_micro", "stem": "patch2", "width": 6}
            | {"kind": "gradients", "probe_every": 5},
            "the coupling bdia draws a new gamma in each",
        ),
        ({"drops": [6]}, "drops must increase between 1 and epochs - 1 = 5"),
        ({"warmup_epochs": 4.5}, "drop 4 is within the warm-up of 4.5 epochs"),
        ({"momentum": 1.0}, "momentum must be below 1, got 1.0"),
        ({"image_size": 12}, "image_size must be 8 to 256 in steps of 8 for digits, got 12"),
        ({"image_size": 264}, "image_size must be 8 to 256 in steps of 8 for digits, got 264"),
        ({"batch_size": 1438}, "batch_size 1438 exceeds the 1437 training samples of digits"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"seed": 2**64}, r"seed must be at most 2\^64 - 1, got 18446744073709551616"),
        ({"scale": "../up"}, "scale must be lower-case"),
        (
            {"kind": "trainin"},
            "one of training, complexity, gradients, reconstruction, memory, stage_costs, forward_gradient; "
            "got 'trainin'",
        ),
    ],
)
def test_wrong_settings_are_named(change, message):
    with pytest.raises(CellError, match=message):
        from_dict(TRAINING.to_dict() | change)


def test_what_is_measured_has_the_sizes_of_the_data_set():
    names = {field.name for field in dataclasses.fields(MemoryCell)}
    values = {name: value for name, value in TRAINING.to_dict().items() if name in names} | {"kind": "memory"}
    assert from_dict(values).image_size == 16
    with pytest.raises(CellError, match="image_size must be 8 to 256 in steps of 8 for digits, got 12"):
        from_dict(values | {"image_size": 12})


FORWARD = ForwardGradientCell(
    **{name: value for name, value in TRAINING.to_dict().items() if name != "kind"}
    | {"model": "resnet18_8b", "method": "forward-gradient", "accumulation": 1},
    target="global",
    guess="local",
    space="weights",
    scaling="projected",
    derivative="projection",
    auxiliary="cnn",
)


def test_forward_gradients_are_a_kind_whose_every_setting_counts():
    assert FORWARD.method == "FORWARD_GRADIENT"
    assert from_dict(json.loads(json.dumps(FORWARD.to_dict()))) == FORWARD
    assert FORWARD.name.startswith("digits-resnet18_8b-w4-forward-global-local-weights-s0-")
    others = {"target": "next", "guess": "gaussian", "space": "activations", "scaling": "plain", "derivative": "jvp"}
    for setting, value in {**others, "auxiliary": "mlp"}.items():
        other = dataclasses.replace(FORWARD, **{setting: value})
        assert other.identity != FORWARD.identity
        assert other.slug != FORWARD.slug


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"guess": "locl"}, "there is no guess 'locl'; did you mean local"),
        ({"target": "above"}, "there is no target 'above'; choose from global, local, next"),
        ({"space": "weight"}, "there is no space 'weight'; did you mean weights"),
        ({"scaling": "normal"}, "there is no scaling 'normal'"),
        ({"derivative": "forward"}, "there is no derivative 'forward'; choose from projection, jvp"),
        ({"auxiliary": "cn"}, "there is no auxiliary 'cn'; did you mean cnn"),
        (
            {"released": ["bias_into_weight"]},
            r"setting 'released' was removed, and its value \['bias_into_weight'\] is no",
        ),
        ({"guess": "global", "derivative": "jvp"}, "the guess 'global' needs a backward through other blocks"),
        ({"model": "revnet18"}, "need auxiliary networks, which resnet18_8b and resnet18_16b have"),
        ({"stem": "imagenet"}, "there is no stem 'imagenet'"),
        ({"method": "PETRA"}, "a forward_gradient cell requires the method FORWARD_GRADIENT, got 'PETRA'"),
        ({"accumulation": 4}, "accumulation must be 1 for forward gradients .*; got 4"),
        ({"replicas": 2}, "replicas must be 1 for forward gradients .*; got 2"),
        ({"correction": "spike"}, "correction must be 'none' for forward gradients"),
        ({"precision": "bf16"}, "choose the precision float32 or tf32, got bf16"),
    ],
)
def test_wrong_settings_of_forward_gradients_are_named(change, message):
    with pytest.raises(CellError, match=message):
        from_dict(FORWARD.to_dict() | change)


def test_every_committed_record_has_the_identity_that_it_was_recorded_under():
    volumes = (ROOT / "reports" / "records").glob("*/*.jsonl")
    lines = [json.loads(line) for file in volumes for line in file.read_text("utf-8").splitlines()]
    cells = [line for line in lines if line.get("t") == "cell"]
    assert len(cells) > 1000
    for line in cells:
        cell = from_dict(line["cell"])
        assert (cell.identity, cell.name) == (line["id"], line["name"])
