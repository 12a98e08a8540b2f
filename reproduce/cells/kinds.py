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
from reproduce.cells.base import Cell as Cell
from reproduce.cells.base import CellError as CellError
from reproduce.cells.base import check_choice, near_matches
from reproduce.cells.setting import DATA, GUESSES, HOW, METHOD, NETWORK, RECIPE, setting
from reproduce.forward_gradients import settings as forward

MAX_ACCUMULATION = 32  # largest k of the paper's sweep
PRECISIONS = ("float32", "tf32", "bf16")
OPTIMIZERS = ("sgd", "adamw", "nadam")
FORWARD_WEIGHTS = ("current", *delay.PREDICTIONS)
RESIDUAL_STEMS = ("cifar", "imagenet32", "imagenet")
CHAIN_STEMS = ("stride1", "stride2", "stride4")
#: Residual families and their titles.
FAMILIES = {"revnet": "RevNet", "resnet": "ResNet", "invertible_revnet": "Invertible RevNet"}
RESIDUAL_MODELS = tuple(f"{family}{depth}" for family in FAMILIES for depth in timings.RESIDUAL_BLOCKS)
#: Networks with auxiliary networks, and their numbers of blocks (`reproduce.forward_gradients.blocks`).
BLOCK_MODELS = {"resnet18_8b": 8, "resnet18_16b": 16}
AUXILIARIES = ("cnn", "mlp", "linear")
#: Removed settings, with the default that all records have.
REMOVED: dict[str, Any] = {"messages": "float32", "stage_replicas": (), "released": ()}
FORWARD_GRADIENT = "FORWARD_GRADIENT"  # name of the method, an algorithm without pipeline
FORWARD_MODEL = next(iter(BLOCK_MODELS))  # its usual network
#: Usual constants of corrections; that of `rate` depends on the number of epochs.
USUAL_CONSTANTS = {c.name: c.default for c in delay.CORRECTIONS.values() if c.meaning and c is not delay.Rate}
CONSTANTS = ", ".join(f"{name}: {value:g}" for name, value in USUAL_CONSTANTS.items())
SYSTEMS = f"published systems ({', '.join(map(str.lower, methods.SYSTEMS))})"
#: Names for `--method`. A system with an own method has the name of that method.
NAMES = dict.fromkeys([*(method.name.lower() for method in methods.ALL), *map(str.lower, methods.SYSTEMS)])
#: Spelling of `--weight-prediction` -> value of `forward_weights`.
PREDICTIONS = {"none": "current", "momentum": "predicted", "linear": "predicted_linear"}


@dataclass(frozen=True, kw_only=True)
class NetworkCell(Cell):
    """A network under one method.

    Attributes:
        model: revnet18, 34, 50, resnet18, 34, 50, invertible_revnet18, 34, 50, chain<n> (n reversible blocks),
            resnet18_8b, resnet18_16b (for forward-gradient), or a transformer: vit, revvit, revswin, revmvit or (for
            text) revroberta, with the suffix _micro, _base and more; or module:function, your function that returns
            the stages, or (stages, inputs, target) with a micro-batch that `partition` times the stages with.
        stem: First layer: cifar, imagenet32, imagenet; for chains stride1, 2 or 4; for transformers patch<P>: patches
            of P x P pixels, or bytes for text.
        image_size: Height and width of images in pixels; for text the bytes of a sequence.
        width: Channels of the first blocks, per stream (64 in the paper).
        method: Training method, or a published system.
        accumulation: Micro-batches k whose gradients are averaged for one update, 1 to 32.
        batch_size: Samples per micro-batch.
        seed: Seed of initialisation, data order, augmentation and dropout; or of random images.
        coupling: Coupling of the blocks of a vit: bdia (bitwise invertible), bdia_float, or own (not invertible).

    """

    model: str = setting(NETWORK, rule=f"{{default}}; forward-gradient: {FORWARD_MODEL}")
    stem: str = setting(NETWORK, rule="that of the data set; chains: stride1; transformers: patches for the image size")
    image_size: int = setting(DATA, least=1, rule="digits: 8; imagenet: 224; text: 64; else 32")
    width: int = setting(NETWORK, least=1, most=10_000_000, rule="{default}; transformers: the published width")
    method: str = setting(METHOD, listed=(*NAMES, "forward-gradient"))
    accumulation: int = setting(METHOD, flags=("-k", "--k", "--accumulation"), rule="{default}; forward-gradient: 1")
    batch_size: int = setting(DATA, least=1)
    seed: int = setting(RECIPE, least=0)
    coupling: str = setting(NETWORK, default=transformers.OWN)

    @property
    def coupled(self) -> str:
        """Model in a slug, with its coupling if that is not the model's."""
        return own.slug(self.model) + f"-{self.coupling}".replace("_", "-") * (self.coupling != transformers.OWN)

    def _check(self) -> None:
        _check_model(self)
        self._check_algorithm()
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
    """Train one network with one method on one data set, with one seed. Subclasses define what is recorded.

    Attributes:
        dataset: Data set; `data list` shows their state.
        epochs: Passes over the training set.
        warmup_epochs: Linear warm-up of the learning rate from 0; may be a fraction.
        drops: Epochs after which the learning rate is multiplied by --lr-gamma, such as 150,225.
        drop_factor: Factor of the learning rate at each of the --lr-milestones.
        learning_rate: Learning rate after warm-up; s = batch size · k · replicas / 256.
        momentum: Nesterov momentum of sgd (0: none), or first beta of adamw and nadam, whose second is 0.999.
        weight_decay: Weight decay of parameters with at least two dimensions; biases and norms do not decay.
        augmentation: none, flip_crop (flip, crop after padding by 4), random_resized_crop (and flip; imagenet), or mask
            (text).
        loader: Loader of the batches: ffcv, memory, torchvision.
        precision: float32, tf32 (CUDA; products with 10 bits of mantissa), bf16 (autocast; streams stay float32).
        replicas: Data-parallel replicas R, on separate micro-batches with averaged gradients: R times the batch.
        optimizer: Optimizer; adamw is usual for transformers.
        forward_weights: Weights of the forward: the current ones (none), or extrapolated to those at the backward along
            the momentum or linearly.
        correction: Delay compensation.
        correction_value: Parameter of the correction, for rate the number of epochs until it is switched off.
        timing: For pipelined methods: lockstep (the paper's), 1f1b (asynchronous 1F1B: half the staleness), or 1f1b+S
            with slack for latency.
        stages: Blocks of each stage, such as 3,2,2,3: fewer stages, less staleness. A single number, such as 4, sets
            the number of stages, cut by predicted costs. The number of --processes does not change the result.
        held_out: Training samples held out and tested in place of the test set, the same for all seeds: to choose
            settings without the test set. 0 uses the test set.

    """

    dataset: str = setting(DATA, listed=tuple(catalogue.DATASETS))
    epochs: int = setting(RECIPE, least=1)
    warmup_epochs: float = setting(RECIPE, least=0)
    drops: tuple[int, ...] = setting(RECIPE, flags=("--lr-milestones",), old="--drops", metavar="EPOCHS", rule="none")
    drop_factor: float = setting(RECIPE, least=0, flags=("--lr-gamma",), old="--drop-factor")
    learning_rate: float = setting(RECIPE, least=0, rule="0.1·s; adamw, nadam: 2.5e-4·√s")  # `reproduce.cells.rates`
    momentum: float = setting(RECIPE, least=0)
    weight_decay: float = setting(RECIPE, least=0, rule="1e-4 for both ImageNets, else 5e-4; 0.01 for text")
    augmentation: str = setting(DATA, rule="the paper's, none for digits")
    loader: str = setting(DATA, rule="ffcv if installed")
    precision: str = setting(RECIPE, choices=PRECISIONS)
    replicas: int = setting(METHOD, default=1, least=1)
    optimizer: str = setting(RECIPE, default="sgd", choices=OPTIMIZERS)
    forward_weights: str = setting(
        METHOD,
        default="current",
        flags=("--weight-prediction",),
        old="--forward-weights",
        choices=FORWARD_WEIGHTS,
        spellings=PREDICTIONS,
    )
    correction: str = setting(METHOD, default="none", choices=("none", *delay.CORRECTIONS))
    correction_value: float = setting(METHOD, default=0.0, rule=f"rate: a third of the epochs, {CONSTANTS}")
    timing: str = setting(METHOD, default=timings.LOCKSTEP, rule=f"{{default}}; {SYSTEMS}: 1f1b")
    stages: tuple[int, ...] = setting(METHOD, default=(), metavar="SIZES", rule="every block")
    held_out: int = setting(DATA, default=0, least=0)

    @property
    def epochs_expected(self) -> int:
        return self.epochs

    @property
    def weight_prediction(self) -> str:
        """Return `forward_weights` as its option spells it."""
        return next(word for word, value in PREDICTIONS.items() if value == self.forward_weights)

    @property
    def under_test(self) -> bool:
        """Return whether the accuracy is an open question, so that no accuracy is expected: with delay compensation."""
        return (self.forward_weights, self.correction) != ("current", "none") or self.optimizer == "nadam"

    def _check(self) -> None:
        dataset = _check_dataset(self)
        super()._check()
        dataset.check(
            image_size=self.image_size,
            augmentation=self.augmentation,
            loader=self.loader,
            batch_size=self.batch_size,
            held_out=self.held_out,
        )
        first, last = max(1, self.warmup_epochs), self.epochs - 1
        if list(self.drops) != sorted(set(self.drops)) or any(not first <= drop <= last for drop in self.drops):
            raise CellError(
                f"--lr-milestones must increase between {first:g}, after the warm-up, and epochs - 1 = {last}, got "
                f"{','.join(map(str, self.drops))}"
            )
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
        held_out = f"-held{self.held_out}" if self.held_out else ""
        return f"{training}{replicas}{optimizer}{late}{timing}{held_out}-s{self.seed}"


@dataclass(frozen=True, kw_only=True)
class TrainingCell(TrainedCell):
    """Train, and record the accuracy."""

    kind: ClassVar[str] = "training"


@dataclass(frozen=True, kw_only=True)
class ProbedCell(TrainedCell):
    """Train, and follow some micro-batches on their way through the pipeline (`reproduce.measures`).

    The training is bitwise equal to that of a `TrainingCell` with the same settings. Its speed is not, because it
    includes the measurements.

    Attributes:
        probe_every: Micro-batches between two that are followed.

    """

    probe_every: int = setting(HOW, least=1)

    def _check(self) -> None:
        super()._check()
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
                f"gradients are compared with uncorrected ones at the same weights; got --weight-prediction "
                f"{self.weight_prediction} --correction {self.correction}: leave both out"
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


def _axis(name: str) -> Any:
    """Describe a setting of `reproduce.forward_gradients.settings`. The paper's algorithm has the defaults."""
    choices = tuple(choice.value for choice in forward.AXES[name])
    return setting(GUESSES, choices=choices, rule=getattr(forward.ForwardGradient(), name).value)


@dataclass(frozen=True, kw_only=True)
class ForwardGradientCell(TrainedCell):
    """Train by forward gradients (`reproduce.forward_gradients`), and record the accuracy and the quality of guesses.

    Every batch is an update, without delay: settings of the pipeline stay at their defaults.

    Attributes:
        target: Gradient to follow.
        guess: Direction of the step.
        space: Space of the product of both.
        scaling: Factor of the guess.
        derivative: Way of computing the product; jvp is forward mode.
        auxiliary: Networks with local losses.

    """

    kind: ClassVar[str] = "forward_gradient"

    target: str = _axis("target")
    guess: str = _axis("guess")
    space: str = _axis("space")
    scaling: str = _axis("scaling")
    derivative: str = _axis("derivative")
    auxiliary: str = setting(GUESSES, choices=AUXILIARIES, rule=AUXILIARIES[0])

    def without_defaults(self) -> dict[str, Any]:
        """Return the settings without those at their defaults, but with a removed one that identities contain."""
        return {**super().without_defaults(), "released": REMOVED["released"]}

    @property
    def under_test(self) -> bool:
        return True

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
            known = " or ".join(BLOCK_MODELS)
            raise CellError(f"forward gradients need auxiliary networks: choose the model {known}, got {self.model!r}")
        if methods.normalize(self.method) != FORWARD_GRADIENT:
            raise CellError(f"a {self.kind} cell requires the method {FORWARD_GRADIENT}, got {self.method!r}")
        object.__setattr__(self, "method", FORWARD_GRADIENT)
        pipelined: dict[str, Any] = {"accumulation": 1, "replicas": 1}
        pipelined |= {"forward_weights": "current", "correction": "none", "correction_value": 0.0}
        pipelined |= {"timing": timings.LOCKSTEP, "stages": ()}
        if self.precision == "bf16":
            raise CellError("the squares of guesses need float32: choose the precision float32 or tf32, got bf16")
        for name, allowed in pipelined.items():
            if getattr(self, name) != allowed:
                raise CellError(
                    f"{name} must be {allowed!r} for forward gradients (no pipeline); got {getattr(self, name)!r}"
                )
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
    """Measure on images and classes like those of a data set, whose files are not needed.

    Attributes:
        dataset: Data set.

    """

    dataset: str = setting(DATA)

    def _check(self) -> None:
        dataset = _check_dataset(self)
        super()._check()
        dataset.check_size(self.image_size)


@dataclass(frozen=True, kw_only=True)
class MemoryCell(ShapedCell):
    """Fill the pipeline and count the bytes that each stage holds (Tables 3 and 6)."""

    kind: ClassVar[str] = "memory"


@dataclass(frozen=True, kw_only=True)
class StageCostCell(ShapedCell):
    """Time the forward, the backward and the update of each stage (Table 5).

    Attributes:
        repetitions: Timed repetitions of each stage, after some warm-up.

    """

    kind: ClassVar[str] = "stage_costs"

    repetitions: int = setting(HOW, least=1)


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


def _check_model(cell: NetworkCell) -> None:
    transformers.check_coupling(cell.model, cell.coupling)
    if own.is_own(cell.model):
        own.check(cell.model, cell.stem, cell.width)
    elif re.fullmatch(r"chain[1-9]\d*", cell.model):
        check_choice("stem", cell.stem, CHAIN_STEMS)
    elif cell.model in transformers.MODELS:
        transformers.check(cell.model, cell.stem, cell.width, cell.image_size)
    else:
        check_choice("model", cell.model, (*RESIDUAL_MODELS, "chain<n>", *BLOCK_MODELS, *transformers.MODELS))
        check_choice("stem", cell.stem, RESIDUAL_STEMS[:2] if cell.model in BLOCK_MODELS else RESIDUAL_STEMS)


def _check_dataset(cell: TrainedCell | ShapedCell) -> catalogue.Dataset:
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
    correction = delay.CORRECTIONS.get(cell.correction)
    try:
        check_rules(delay_rules(cell, cell.correction_value), methods.by_name(cell.method))
    except ValueError as why:
        raise CellError(f"--weight-prediction {cell.weight_prediction} --correction {cell.correction}: {why}") from None
    if cell.correction_value and (correction is None or not correction.meaning):
        raise CellError(
            f"the correction {cell.correction} has no constant, got correction_value {cell.correction_value}: leave it "
            f"out"
        )
    if cell.forward_weights != "current" and cell.optimizer == "nadam":
        raise CellError(
            f"--weight-prediction {cell.weight_prediction} requires the optimizer sgd or adamw, got nadam, which looks "
            f"ahead itself"
        )
    if correction is None:
        return
    if correction.needs_momentum and (cell.optimizer != "sgd" or not cell.momentum):
        raise CellError(
            f"the correction {cell.correction} requires sgd with momentum, got {cell.optimizer} with momentum "
            f"{cell.momentum:g}; choose another correction"
        )
    if correction is delay.GapAware and not cell.learning_rate:
        raise CellError(f"the correction {cell.correction} measures gaps by the learning rate, which is 0: raise it")
