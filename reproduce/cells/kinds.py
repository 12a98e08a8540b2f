"""Define cells: experiments as complete, frozen configurations.

An experiment is identified by its configuration. The obvious configuration, a command line plus the current defaults of
the code, silently changes its meaning when a default changes, and the "same" runs of two people differ. So every
setting of a cell is written out, the hash of that text is its identity, and a value derived by a rule (the learning
rate) is stored as the resulting number.

Settings that change only where a result is computed, and not its meaning (device, threads, versions), are not part of a
cell. They are in the record's environment (`reproduce.records.record`).
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from petra_core import delay, methods
from petra_core.update_rule import UpdateRule, check_rules
from reproduce.cells import catalogue, own, transformers
from reproduce.cells import timing as timings
from reproduce.cells.base import Cell, CellError, near_matches
from reproduce.forward_gradients import settings as forward

__all__ = [
    "REMOVED",
    "Cell",
    "CellError",
    "ComplexityCell",
    "ForwardGradientCell",
    "GradientsCell",
    "MeasuredCell",
    "MemoryCell",
    "NetworkCell",
    "ReconstructionCell",
    "ShapedCell",
    "StageCostCell",
    "TrainedCell",
    "TrainingCell",
    "delay_rules",
    "from_dict",
    "near_matches",
]

MAX_ACCUMULATION = 32  # largest k of the paper's sweep
PRECISIONS = ("float32", "tf32", "bf16")
OPTIMIZERS = ("sgd", "adamw", "nadam")
FORWARD_WEIGHTS = ("current", *delay.PREDICTIONS)
RESIDUAL_STEMS = ("cifar", "imagenet32", "imagenet")
CHAIN_STEMS = ("stride1", "stride2", "stride4")
FAMILIES = ("revnet", "resnet", "invertible_revnet")
RESIDUAL_MODELS = tuple(f"{family}{depth}" for family in FAMILIES for depth in (18, 34, 50))
#: Networks with auxiliary networks, and their numbers of blocks (`reproduce.forward_gradients.blocks`).
BLOCK_MODELS = {"resnet18_8b": 8, "resnet18_16b": 16}
AUXILIARIES = ("cnn", "mlp", "linear")
#: Removed settings, with the default that all records have.
REMOVED: dict[str, Any] = {"messages": "float32", "stage_replicas": (), "released": ()}
FORWARD_GRADIENT = "FORWARD_GRADIENT"  # name of the method, an algorithm without pipeline


@dataclass(frozen=True, kw_only=True)
class NetworkCell(Cell):
    """A network under one method."""

    #: `revnet18` … `resnet50`, `invertible_revnet18` …, `chain<n>` for n reversible blocks of constant width, one of
    #: `BLOCK_MODELS`, a transformer, such as `revvit_tiny` (`reproduce.cells.transformers`), or a user's network,
    #: `module:function` (`reproduce.cells.own`).
    model: str
    #: `cifar`, `imagenet32` or `imagenet`; for a chain `stride1`, `stride2` or `stride4`; for a transformer `patch<P>`,
    #: or `bytes` for text.
    stem: str
    image_size: int  # height and width of the images in pixels; for text, tokens of a sequence
    width: int  # channels of the first blocks, per stream (64 in the paper)
    method: str
    accumulation: int  # k, number of micro-batches whose gradients are averaged for one update: 1..MAX_ACCUMULATION
    batch_size: int  # samples per micro-batch
    seed: int  # of initialisation, data order, augmentation and dropout, equal for all methods; or of random images
    #: Coupling of blocks: that of the model, or for a ViT `bdia` or `bdia_float` (`petra_core.models.bdia`).
    coupling: str = transformers.OWN

    @property
    def coupled(self) -> str:
        """Model in a slug, with its coupling if that is not the model's."""
        return own.slug(self.model) + f"-{self.coupling}".replace("_", "-") * (self.coupling != transformers.OWN)

    def _check(self) -> None:
        _check_model(self)
        self._check_algorithm()
        _at_least(self, 1, "batch_size")
        _at_least(self, 0, "seed")
        if self.seed >= 2**64:
            raise CellError(f"seed must be at most 2^64 - 1, got {self.seed}")

    def _check_algorithm(self) -> None:
        """Check the method and its settings, and normalise its name.

        Raises:
            ValueError: The method is unknown, a setting is wrong, or k is out of the paper's range.

        """
        object.__setattr__(self, "method", methods.by_name(self.method).name)
        if self.accumulation not in range(1, MAX_ACCUMULATION + 1):
            raise CellError(
                f"accumulation k={self.accumulation} is outside 1..{MAX_ACCUMULATION}, the range of the paper; for a "
                f"larger effective batch, raise the micro-batch size instead"
            )


@dataclass(frozen=True, kw_only=True)
class TrainedCell(NetworkCell):
    """Train one network with one method on one data set, with one seed. Subclasses define what is recorded."""

    dataset: str
    epochs: int
    warmup_epochs: float  # linear warm-up from 0; a fraction is allowed
    drops: tuple[int, ...]  # epochs after which the learning rate is multiplied by `drop_factor`
    drop_factor: float
    #: Base learning rate. By default that of the rule (`reproduce.cells.rates`): 0.1 · batch · k · R / 256 for R
    #: replicas,
    #: under AdamW 2.5e-4 · √(batch · k · R / 256).
    learning_rate: float
    momentum: float  # Nesterov momentum of SGD; first beta of AdamW and NAdam (the second is 0.999)
    weight_decay: float  # of parameters with at least two dimensions (not of biases and norms)
    #: `none`, `flip_crop` (flip, and crop after padding by 4), for ImageNet `random_resized_crop` (and flip), or for
    #: text `mask`.
    augmentation: str
    loader: str  # `ffcv`, `memory` or `torchvision`
    precision: str  # `float32`, `tf32` (CUDA; products with 10 bits of mantissa), `bf16` (autocast; streams in float32)
    #: Number R of data-parallel replicas (`petra_core.distributed.replicas`), on different micro-batches with averaged
    #: gradients: R times the samples of an update.
    replicas: int = 1
    #: `sgd` with Nesterov momentum, `adamw`, which is usual for transformers, or `nadam`.
    optimizer: str = "sgd"
    forward_weights: str = "current"  # or `predicted` or `predicted_linear` (`petra_core.delay`)
    correction: str = "none"  # or one of `petra_core.delay.CORRECTIONS`
    correction_value: float = 0.0  # parameter of the correction, for `rate` in epochs; 0 if it has none
    timing: str = timings.LOCKSTEP  # for pipelined methods: `lockstep`, `1f1b` or `1f1b+S` (`reproduce.cells.timing`)
    #: Numbers of blocks of each stage of the pipeline, such as (3, 2, 2, 3); if empty, each block is a stage.
    stages: tuple[int, ...] = ()

    @property
    def epochs_expected(self) -> int:
        return self.epochs

    def _check(self) -> None:
        dataset = _checked_dataset(self)
        super()._check()
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _at_least(self, 1, "epochs", "replicas")
        _at_least(self, 0, "warmup_epochs", "learning_rate", "momentum", "weight_decay", "drop_factor")
        dataset.check(
            image_size=self.image_size,
            augmentation=self.augmentation,
            loader=self.loader,
            batch_size=self.batch_size,
        )
        if list(self.drops) != sorted(set(self.drops)) or any(not 0 < drop < self.epochs for drop in self.drops):
            raise CellError(f"drops must increase between 1 and epochs - 1 = {self.epochs - 1}, got {self.drops}")
        if self.drops and self.drops[0] < self.warmup_epochs:
            raise CellError(f"drop {self.drops[0]} is within the warm-up of {self.warmup_epochs} epochs")
        if self.momentum >= 1:
            raise CellError(f"momentum must be below 1, got {self.momentum}")

    def _check_algorithm(self) -> None:
        if methods.normalize(self.method) in methods.SYSTEMS.keys() - {method.name for method in methods.ALL}:
            # A system implies a timing; the default of the field means that none was chosen.
            given = None if self.timing == timings.LOCKSTEP else self.timing
            object.__setattr__(self, "timing", timings.of_system(self.method, given))
        super()._check_algorithm()
        timings.check(self)
        _check_delay(self)

    @property
    def slug(self) -> str:
        """Data set, model, method, k and what else distinguishes cells of one grid."""
        method = self.method.lower().replace("_", "-")
        replicas = f"-r{self.replicas}" if self.replicas > 1 else ""
        optimizer = f"-{self.optimizer}" if self.optimizer != "sgd" else ""
        training = f"{self.dataset}-{self.coupled}-w{self.width}-{method}-k{self.accumulation}"
        ahead = f"-{self.forward_weights}" if self.forward_weights != "current" else ""
        correction = f"-{self.correction}" if self.correction != "none" else ""
        late = f"{ahead}{correction}".replace("_", "-")
        timing = f"-{self.timing}" if self.timing != timings.LOCKSTEP else ""
        timing += f"-d{'.'.join(map(str, self.stages))}" if self.stages else ""
        return f"{training}{replicas}{optimizer}{late}{timing}-s{self.seed}"


@dataclass(frozen=True, kw_only=True)
class TrainingCell(TrainedCell):
    """Train, and record the accuracy."""

    kind: ClassVar[str] = "training"


@dataclass(frozen=True, kw_only=True)
class ProbedCell(TrainedCell):
    """Train, and follow some micro-batches on their way through the pipeline (`reproduce.measures`).

    The training is bitwise equal to that of a `TrainingCell` with the same settings. Its speed is not, because it
    includes the measurements.
    """

    probe_every: int  # micro-batches between two that are followed

    def _check(self) -> None:
        super()._check()
        _at_least(self, 1, "probe_every")
        if not methods.by_name(self.method).pipelined:
            raise CellError(f"{self.method} has no delay, so there is nothing to follow; choose a pipelined method")

    @property
    def slug(self) -> str:
        return f"{self.kind}-{super().slug}"


@dataclass(frozen=True, kw_only=True)
class GradientsCell(ProbedCell):
    """Compare the method's gradients with delayed and with end-to-end ones (Figures 5 and 6)."""

    kind: ClassVar[str] = "gradients"

    def _check(self) -> None:
        super()._check()
        if (self.forward_weights, self.correction) != ("current", "none"):
            raise CellError(
                "gradients are compared with uncorrected ones at the same weights; got forward weights "
                f"{self.forward_weights}, correction {self.correction}"
            )
        if self.coupling != transformers.OWN:
            raise CellError(
                f"gradients are compared with those of further evaluations, but the coupling {self.coupling} draws "
                "a new gamma in each; choose the coupling own"
            )


@dataclass(frozen=True, kw_only=True)
class ReconstructionCell(ProbedCell):
    """Compare reconstructed inputs with the true ones."""

    kind: ClassVar[str] = "reconstruction"

    def _check(self) -> None:
        super()._check()
        if not methods.by_name(self.method).reconstructs:
            raise CellError(f"{self.method} reconstructs no inputs; choose PETRA or APPROXIMATE_INPUTS")


@dataclass(frozen=True, kw_only=True)
class ForwardGradientCell(TrainedCell):
    """Train by forward gradients (`reproduce.forward_gradients`), and record the accuracy and the quality of guesses.

    Every batch is an update, without delay: settings of the pipeline stay at their defaults.
    """

    kind: ClassVar[str] = "forward_gradient"

    target: str  # `global`, `local` or `next`
    guess: str  # `local`, `gaussian`, `rademacher`, `fixed`, `redrawn`, `next` or `global`
    space: str  # `activations`, `weights`, `batch_weights` or `all_weights`
    scaling: str  # `projected`, `plain` or `sign`
    derivative: str  # `projection`, or `jvp` for forward mode
    auxiliary: str  # kind of the auxiliary networks: `cnn`, `mlp` or `linear`

    def without_defaults(self) -> dict[str, Any]:
        """Return the settings without those at their defaults, but with a removed one that identities contain."""
        return {**super().without_defaults(), "released": REMOVED["released"]}

    @property
    def algorithm(self) -> forward.ForwardGradient:
        """The settings in the form of the core.

        Raises:
            ValueError: They contradict each other.

        """
        axes: dict[str, Any] = {name: kind(getattr(self, name)) for name, kind in forward.AXES.items()}
        return forward.ForwardGradient(**axes)

    @property
    def slug(self) -> str:
        """Data set, model, target, guess, space and what else distinguishes cells of one grid."""
        usual = {"scaling": "projected", "derivative": "projection", "auxiliary": "cnn"}
        further = [value for name, usually in usual.items() if (value := getattr(self, name)) != usually]
        words = ["forward", self.target, self.guess, self.space, *further]
        way = "-".join(words).replace("_", "-")
        return f"{self.dataset}-{self.model}-w{self.width}-{way}-s{self.seed}"

    def _check_algorithm(self) -> None:
        if self.model not in BLOCK_MODELS:
            raise CellError(f"forward gradients need auxiliary networks, which {' and '.join(BLOCK_MODELS)} have")
        if not is_forward_gradient(self.method):
            raise CellError(f"a {self.kind} cell requires the method {FORWARD_GRADIENT}, got {self.method!r}")
        object.__setattr__(self, "method", FORWARD_GRADIENT)
        pipelined: dict[str, Any] = {"accumulation": 1, "replicas": 1}
        pipelined |= {"forward_weights": "current", "correction": "none", "correction_value": 0.0}
        pipelined |= {"timing": timings.LOCKSTEP, "stages": ()}
        if self.precision == "bf16":
            raise CellError("the squares of guesses need float32: choose the precision float32 or tf32, got bf16")
        for name, only in pipelined.items():
            if getattr(self, name) != only:
                raise CellError(
                    f"{name} must be {only!r} for forward gradients (no pipeline); got {getattr(self, name)!r}"
                )
        for name, kind in forward.AXES.items():
            _one_of(name, getattr(self, name), tuple(choice.value for choice in kind))
        _one_of("auxiliary", self.auxiliary, AUXILIARIES)
        self.algorithm  # noqa: B018  # construction detects contradictions


@dataclass(frozen=True, kw_only=True)
class MeasuredCell(NetworkCell):
    """Measure a network under one method, on random images: bytes, FLOPs and seconds depend only on shapes."""

    @property
    def slug(self) -> str:
        subject = f"{self.kind}-{self.dataset}" if isinstance(self, ShapedCell) else self.kind
        method = self.method.lower().replace("_", "-")
        return f"{subject}-{self.coupled}-w{self.width}-{method}-k{self.accumulation}-b{self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class ComplexityCell(MeasuredCell):
    """Measure one row of Table 1: bytes, messages, FLOPs and time of a method on a chain of equal stages.

    The model is `chain<n>`: n reversible blocks between stem and head.
    """

    kind: ClassVar[str] = "complexity"

    def _check(self) -> None:
        super()._check()
        if not self.model.startswith("chain") or own.is_own(self.model):
            raise CellError(f"complexity is measured on a chain of equal stages, such as chain4; got {self.model!r}")


@dataclass(frozen=True, kw_only=True)
class ShapedCell(MeasuredCell):
    """Measure on images and classes like those of a data set, whose files are not needed."""

    dataset: str

    def _check(self) -> None:
        dataset = _checked_dataset(self)
        super()._check()
        dataset.check_size(self.image_size)


@dataclass(frozen=True, kw_only=True)
class MemoryCell(ShapedCell):
    """Fill the pipeline and count the bytes that each stage holds (Tables 3 and 6)."""

    kind: ClassVar[str] = "memory"


@dataclass(frozen=True, kw_only=True)
class StageCostCell(ShapedCell):
    """Time the forward, the backward and the update of each stage (Table 5)."""

    kind: ClassVar[str] = "stage_costs"

    repetitions: int  # timed repetitions of each stage, after some warm-up

    def _check(self) -> None:
        super()._check()
        _at_least(self, 1, "repetitions")


CELLS: tuple[type[Cell], ...] = (
    TrainingCell,
    ComplexityCell,
    GradientsCell,
    ReconstructionCell,
    MemoryCell,
    StageCostCell,
    ForwardGradientCell,
)
KINDS = {cell.kind: cell for cell in CELLS}


def from_dict(values: Mapping[str, Any]) -> Cell:
    """Make the cell with these settings: `kind`, and all without default. Lists are accepted for tuples, as in JSON.

    Removed settings are accepted at their former defaults, as in older records.

    Raises:
        CellError: A key is unknown (near matches are listed) or missing, a value is of the wrong type or out of range,
            or the values are not a mapping.

    """
    if not isinstance(values, Mapping):  # a file may contain anything
        raise CellError(f"a cell is a mapping from settings to values; got {values!r}")
    given = dict(values)
    kind = given.pop("kind", None)
    for key, default in REMOVED.items():
        value = given.pop(key, default)
        if (tuple(value) if isinstance(value, list) else value) != default:
            raise CellError(
                f"the setting {key!r} was removed, and its value {value!r} is no longer supported, only {default!r}: "
                f"use an older version of this suite, or leave the setting out"
            )
    if not isinstance(kind, str) or kind not in KINDS:
        raise CellError(f"the kind of a cell must be one of {', '.join(KINDS)}; got {kind!r}")
    fields = dataclasses.fields(KINDS[kind])
    names = [field.name for field in fields]
    for key in given:
        if key not in names:
            raise CellError(f"a {kind} cell has no setting {key!r}; {near_matches(key, names)}")
    missing = [field.name for field in fields if field.name not in given and field.default is dataclasses.MISSING]
    if missing:
        raise CellError(f"a {kind} cell needs every setting; missing: {', '.join(missing)}")
    return KINDS[kind](**given)


def is_forward_gradient(method: str) -> bool:
    """Return whether this is the method's name. Case and hyphens do not matter."""
    return method.strip().upper().replace("-", "_") == FORWARD_GRADIENT


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise CellError(f"there is no {name} {value!r}; {near_matches(value, choices)}")


def _at_least(cell: Cell, least: int, *names: str) -> None:
    for name in names:
        if getattr(cell, name) < least:
            raise CellError(f"{name} must be at least {least}, got {getattr(cell, name)}")


def _check_model(cell: NetworkCell) -> None:
    _at_least(cell, 1, "image_size", "width")
    transformers.check_coupling(cell.model, cell.coupling)
    if own.is_own(cell.model):
        own.check(cell.model, cell.stem, cell.width)
    elif re.fullmatch(r"chain[1-9]\d*", cell.model):
        _one_of("stem", cell.stem, CHAIN_STEMS)
    elif cell.model in transformers.MODELS:
        transformers.check(cell.model, cell.stem, cell.width, cell.image_size)
    else:
        _one_of("model", cell.model, (*RESIDUAL_MODELS, "chain10", *BLOCK_MODELS, *transformers.MODELS))
        _one_of("stem", cell.stem, RESIDUAL_STEMS[:2] if cell.model in BLOCK_MODELS else RESIDUAL_STEMS)


def _checked_dataset(cell: TrainedCell | ShapedCell) -> catalogue.Dataset:
    """Return the cell's data set, and normalise its name in the cell.

    Raises:
        CellError: There is no such data set, or the network cannot read it.

    """
    dataset = catalogue.by_name(cell.dataset)
    if dataset.text != transformers.reads_text(cell.model) and not own.is_own(cell.model):
        fitting = [name for name in transformers.MODELS if transformers.reads_text(name)]
        raise CellError(
            f"{cell.model} takes images, but {dataset.name} is text; choose one of {', '.join(fitting)}"
            if dataset.text
            else f"{cell.model} takes text, but {dataset.name} has images; choose the data set {catalogue.PYDOC.name}"
        )
    object.__setattr__(cell, "dataset", dataset.name)
    return dataset


def delay_rules(cell: TrainedCell, value: float) -> list[UpdateRule]:
    """Return the rules for delay of a cell. `value` is the constant of the correction, if that has one.

    Raises:
        ValueError: If the constant is out of range.

    """
    rules: list[UpdateRule] = []
    if cell.forward_weights in delay.PREDICTIONS:
        rules.append(delay.PREDICTIONS[cell.forward_weights])
    if correction := delay.CORRECTIONS.get(cell.correction):
        rules.append(correction(value) if correction.meaning else correction())
    return rules


def _check_delay(cell: TrainedCell) -> None:
    """Check the rules for delay.

    Raises:
        CellError: A setting is wrong.

    """
    _one_of("forward_weights", cell.forward_weights, FORWARD_WEIGHTS)
    _one_of("correction", cell.correction, ("none", *delay.CORRECTIONS))
    correction = delay.CORRECTIONS.get(cell.correction)
    try:
        check_rules(delay_rules(cell, cell.correction_value), methods.by_name(cell.method))
    except ValueError as error:
        raise CellError(f"correction {cell.correction}, forward weights {cell.forward_weights}: {error}") from None
    if cell.correction_value and (correction is None or not correction.meaning):
        raise CellError(
            f"the correction {cell.correction} has no constant, got correction_value {cell.correction_value}"
        )
    if cell.forward_weights != "current" and cell.optimizer == "nadam":
        raise CellError("nadam already looks ahead: predicted forward weights require sgd or adamw")
    if correction is None:
        return
    if correction.momentum and (cell.optimizer != "sgd" or not cell.momentum):
        raise CellError(
            f"the correction {cell.correction} requires sgd with momentum, got {cell.optimizer} with momentum "
            f"{cell.momentum:g}; choose another correction"
        )
    if correction is delay.GapAware and not cell.learning_rate:
        raise CellError(f"the correction {cell.correction} measures gaps by the learning rate, which is 0: raise it")
