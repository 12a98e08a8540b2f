"""Define cells that several tests change or run."""

from dataclasses import asdict, replace
from typing import Any

from petra_core import methods
from reproduce.cells.kinds import ForwardGradientCell, GradientsCell, ReconstructionCell, TrainedCell, TrainingCell
from tests.fake_records import complexity_cell

NETWORK = {"model": "revnet18", "stem": "cifar", "width": 4, "method": "PETRA", "accumulation": 4}
DATA = {"dataset": "digits", "image_size": 16, "batch_size": 16, "augmentation": "none", "loader": "memory", "seed": 0}
SCHEDULE = {"epochs": 6, "warmup_epochs": 1, "drops": (4,), "drop_factor": 0.1, "learning_rate": 0.025}
OPTIMIZER = {"momentum": 0.9, "weight_decay": 5e-4, "precision": "float32"}
TRAINING = TrainingCell(scale="smoke", **NETWORK, **DATA, **SCHEDULE, **OPTIMIZER)
COMPLEXITY = replace(complexity_cell(methods.DSP), model="chain4", stem="stride1")
FORWARD = ForwardGradientCell(
    **{name: value for name, value in TRAINING.to_dict().items() if name != "kind"}
    | {"model": "resnet18_8b", "method": "forward-gradient", "accumulation": 1, "auxiliary": "cnn"}
    | {"target": "global", "guess": "local", "space": "weights", "scaling": "projected", "derivative": "projection"},
)
LANGUAGE_NETWORK = {"dataset": "pydoc", "image_size": 16, "model": "revroberta_micro", "stem": "bytes", "width": 6}
LANGUAGE_SCHEDULE = {"epochs": 2, "warmup_epochs": 0.0, "drops": (), "accumulation": 2, "batch_size": 16}
LANGUAGE_OPTIMIZER = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.01}
LANGUAGE = replace(TRAINING, augmentation="mask", **LANGUAGE_NETWORK, **LANGUAGE_SCHEDULE, **LANGUAGE_OPTIMIZER)
# 7 micro-batches per epoch are fewer than the 18 ticks of a micro-batch, so epochs overlap in the pipeline.
SMALL = replace(
    TRAINING, image_size=8, width=2, batch_size=200, epochs=3, drops=(2,), accumulation=2, learning_rate=0.1
)
# Takes a third of the time, for tests without stages that change shapes. Epochs overlap here, too: 8 ticks.
CHAIN = replace(SMALL, model="chain3", stem="stride2", width=4)
CHAINS = [replace(CHAIN, method=method) for method in ("PETRA", "BACKPROPAGATION", "DSP")]


def probed(kind: type, cell: TrainingCell = SMALL, interval: int = 4, **changes: Any) -> TrainedCell:
    return kind(**asdict(replace(cell, batch_size=128, **changes)), probe_every=interval)


PROBED = {
    "gradients": probed(GradientsCell),
    "reconstruction": probed(ReconstructionCell, CHAIN),
    "bf16": probed(GradientsCell, CHAIN, precision="bf16"),
}


#: Options of `train` for a cell that takes seconds.
CELL_OPTIONS = ["--model", "chain4", "--stem", "stride2", "--width", "4", "--batch-size", "48", "--epochs", "3", "-k2"]
