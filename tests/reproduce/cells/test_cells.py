"""Test cells: one text and one identity per cell, and errors with suggestions for wrong settings."""

import dataclasses
import json

import pytest

from reproduce.cells.kinds import CellError, MemoryCell, from_dict
from tests.example_cells import COMPLEXITY, FORWARD, TRAINING

OTHER_NETWORK = {"model": "revnet34", "stem": "imagenet", "width": 8, "method": "DSP", "accumulation": 5}
OTHER_DATA = {"image_size": 32, "batch_size": 8, "augmentation": "flip_crop", "seed": 1, "scale": "paper"}
OTHER_SCHEDULE = {"epochs": 9, "warmup_epochs": 0.5, "drops": (), "drop_factor": 0.2, "learning_rate": 0.05}
OTHER_OPTIMIZER = {"momentum": 0.0, "weight_decay": 0.0, "optimizer": "adamw", "precision": "bf16", "replicas": 2}
OTHER_DELAY = {"timing": "1f1b", "stages": (5, 5), "forward_weights": "predicted", "correction": "spike", "held_out": 7}
OTHER_VALUES = OTHER_NETWORK | OTHER_DATA | OTHER_SCHEDULE | OTHER_OPTIMIZER | OTHER_DELAY


def test_identity_is_stable():
    """Records are found by it: if it changes, every record on disk is lost."""
    assert TRAINING.identity == "cd4cfc16798c4513f61eb437e2b36cd5545407b6b6d7debb9e18eaa93dd5561e"
    assert TRAINING.name == f"digits-revnet18-w4-petra-k4-s0-{TRAINING.identity[:12]}"


def test_identity_depends_on_every_setting():
    """Changing any setting of a training cell changes its identity."""
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


def test_cell_survives_json_and_equal_values_are_one_cell():
    """A JSON round trip keeps a cell, and equivalent spellings of its values give the same identity."""
    for cell in (TRAINING, COMPLEXITY):
        again = from_dict(json.loads(json.dumps(cell.to_dict())))
        assert again == cell
        assert again.identity == cell.identity
    values = TRAINING.to_dict() | {"warmup_epochs": 1.0, "drops": [4], "method": "petra"}
    assert from_dict(dict(reversed(values.items()))).identity == TRAINING.identity
    del values["seed"]
    with pytest.raises(CellError, match="missing: seed"):
        from_dict(values)


def test_cells_that_differ_in_omitted_settings_have_one_text():
    """Two cells that differ only in a setting have the same text when it omits that setting."""
    other = dataclasses.replace(TRAINING, seed=1)
    assert TRAINING.text_without("seed") == other.text_without("seed") != TRAINING.text_without("width")
    assert json.loads(TRAINING.text_without()) == json.loads(json.dumps(TRAINING.to_dict()))


def test_without_defaults_omits_later_settings_at_default():
    """A setting that was added later is in `to_dict`, but `without_defaults` omits its default."""
    assert TRAINING.to_dict()["optimizer"] == "sgd"
    assert not {"optimizer", "replicas"} & set(TRAINING.without_defaults())
    assert dataclasses.replace(TRAINING, replicas=2).without_defaults()["replicas"] == 2
    assert from_dict(TRAINING.without_defaults()) == from_dict(TRAINING.to_dict()) == TRAINING


def test_memory_cell_validates_image_size():
    """A memory cell validates the image size against its data set."""
    names = {field.name for field in dataclasses.fields(MemoryCell)}
    values = {name: value for name, value in TRAINING.to_dict().items() if name in names} | {"kind": "memory"}
    assert from_dict(values).image_size == 16
    with pytest.raises(CellError, match="image_size must be 8 to 256 in steps of 8 for digits, got 12"):
        from_dict(values | {"image_size": 12})


def test_forward_gradient_identity_depends_on_every_setting():
    """Changing any forward-gradient setting changes the identity and the slug of the cell."""
    assert FORWARD.method == "FORWARD_GRADIENT"
    assert from_dict(json.loads(json.dumps(FORWARD.to_dict()))) == FORWARD
    assert FORWARD.name.startswith("digits-resnet18_8b-w4-forward-global-local-weights-s0-")
    others = {"target": "next", "guess": "gaussian", "space": "activations", "scaling": "plain", "derivative": "jvp"}
    for setting, value in {**others, "auxiliary": "mlp"}.items():
        other = dataclasses.replace(FORWARD, **{setting: value})
        assert other.identity != FORWARD.identity
        assert other.slug != FORWARD.slug
