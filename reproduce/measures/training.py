"""Train one cell, from its last checkpoint or from the beginning, until it has a result.

The usual training loop saves at the end of an epoch, when nothing is in flight, and draws its batches from generators.
A pipeline is not empty between epochs, and draining it would change the method. So a checkpoint contains the full
pipeline, the position in the data and the sums of the current epoch. A run that was killed anywhere and then resumed
ends with bitwise equal weights and metrics (except measured times).

With R data-parallel replicas (`reproduce.distributed.replicas`), replica r uses batch R·m + r of the epoch's order as
its micro-batch m. So no sample is used twice, and the last batches of an epoch are dropped if R does not divide their
number. All counts of micro-batches are those of one replica. Test batches are distributed in the same way, and the
saved model has the mean running statistics.

In old records, from an engine that was driven by clock ticks instead of staleness, two metrics of the same training
differ, but the final weights and the final accuracy are bitwise equal. A loss was counted in the epoch in which its
micro-batch reached the head, J - 1 ticks later. In the evaluation after every epoch but the last, stage j had run j
fewer backwards.

Recorded steps (`--cuda-graphs`) of pipelined methods have similar effects, because stages lag (`Pipeline.stagger`). A
loss is counted in the epoch in which the head has processed its micro-batch, and the losses of the last micro-batches
of the training, which the head processes in the final drain, are not counted. Evaluations except the last one use
weights of stages after different numbers of steps. The final weights and the final accuracy differ by rounding only.

The metrics have one line per epoch:

    epoch                number of the epoch, from 1
    train_loss           mean over the micro-batches of the epoch, each with the weights of its forward
    learning_rate        learning rate of the epoch's last micro-batch
    test_accuracy        percent of the test set, or of the held-out samples, measured with the full pipeline (drained
                         after the last epoch); for text, percent of the masked bytes
    test_bits_per_byte   only for text: mean of -log2 of the predicted probability of the masked bytes
    train_seconds, evaluation_seconds
    images_per_second    training throughput of all replicas together (for text: sequences)
    peak_bytes           maximum so far, summed over the stages of a replica
    probes, measured, measured_at   only for cells with a probe: see `reproduce.measures.probe.Probe.collect`
"""

import contextlib
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from petra_core import NonFiniteError, Pipeline, Stage, checkpoint, methods
from petra_core.delay import Rate
from petra_core.devices import captured, compiled, compiled_steps
from petra_core.inspection.values import LOOKED_AT_TOGETHER, REMEDY
from petra_core.optimizers import OptimizerFactory, adamw, nadam, sgd
from petra_core.stages import sequential
from petra_core.staleness import forward_lags
from reproduce.cells import catalogue, networks, own, timing
from reproduce.cells.kinds import Cell, TrainedCell, delay_rules
from reproduce.cells.rates import LearningRateSchedule
from reproduce.data import manifest
from reproduce.data.loader import Batch, InMemory
from reproduce.data.resident import ResidentBatches
from reproduce.data.sample_hash import DROPOUT, INITIALISATION, derive_seed
from reproduce.data.sources import open_data
from reproduce.distributed.group import SCHEMA, UnsupportedError, load
from reproduce.forward_gradients.training import ForwardGradients
from reproduce.measures.context import MEMORY_FORMAT, Context, Stopped, to_memory_format
from reproduce.measures.probe import Probe
from reproduce.measures.run_options import MODULES, STEPS
from reproduce.measures.saved import check_optimizers, check_position, explain_errors, misfit
from reproduce.models.revroberta import IGNORED
from reproduce.records.record import Record
from reproduce.records.storage import explain_full_disk

#: `PAUSE` is the time between two checkpoints at ends of epochs, per second by which the last one exceeded `QUICK`. So
#: saving takes about 2 % of a run. A full pipeline of the paper's networks has about 1 GB, which takes seconds to
#: write. On a fast GPU an epoch does not take longer.
PAUSE, QUICK = 50.0, 0.1
Engine = Pipeline | ForwardGradients  # the object that is trained


def train(cell: Cell, record: Record, context: Context, probe: Probe[Any] | None = None) -> dict[str, Any]:
    """Train to the end. See `reproduce.running.execution.execute` for the errors.

    Args:
        cell: Cell to train.
        record: Record of the cell.
        context: Device, options and processes.
        probe: Probe that follows micro-batches through the pipeline, if any.

    Returns:
        Values of the result: the accuracy after the last epoch; the best accuracy after the last drop of the learning
        rate, as the paper reports it, and its epoch; the total times; the numbers of parameters and micro-batches; and
        for each stage the peak bytes of every kind and, for a pipeline, the staleness, set and observed.

    """
    assert isinstance(cell, TrainedCell)
    return train_to_end(Trainer(cell, record, context, probe), context)


def train_to_end(trainer: "Trainer", context: Context) -> dict[str, Any]:
    """Resume a trainer, run it to the end and return its result (see `train`)."""
    try:
        trainer.resume()
        trainer.run()
        if context.trace is not None:
            context.trace.finish()
    finally:
        trainer.close()
    if context.model_file is not None:
        save_model(trainer.pipeline, context)
    return trainer.result()


class Trainer:
    """Train one cell. A subclass may train another engine than a pipeline.

    Attributes:
        epoch: Number of finished epochs.
        batch: Number of micro-batches of the current epoch that have entered.
        batches: Number of micro-batches of an epoch.
        pipeline: The engine.

    """

    def __init__(self, cell: TrainedCell, record: Record, context: Context, probe: Probe[Any] | None = None) -> None:
        self._cell, self._record, self._context, self._probe = cell, record, context, probe
        options = context.options
        self._loader, self._test, self._data = open_data(cell, context.device, options.data_root, options.data_workers)
        record.about["data"] = self._data
        context.group.check_same_files(self._data["files"])
        # A user's function with the SHA-256 of its file, since the cell has only its name; {} for the suite's networks.
        self._network = own.source(cell.model) if own.is_own(cell.model) else {}
        if self._network:
            record.about["network"] = self._network
        with torch.random.fork_rng(devices=[]):  # all methods and devices have the same initial weights
            torch.manual_seed(derive_seed(cell.seed, INITIALISATION))
            stages = networks.build(cell, self._loader.num_classes)
        self._replicas = context.group.replicas
        self.batches = self._batches_of_replica()
        self._recorded_steps: captured.CapturedSteps | None = None
        self._resident: ResidentBatches | None = None  # batches that are made within CUDA graphs
        self._own_stages = range(len(stages))
        self.pipeline: Engine = self._engine(stages)
        self._schedule = LearningRateSchedule(
            cell.learning_rate,
            round(cell.warmup_epochs * self.batches),
            tuple(drop * self.batches for drop in cell.drops),
            cell.drop_factor,
        )
        self.epoch = 0
        self.batch = 0
        self._loss_sum, self._losses = 0.0, 0
        self._unread: list[torch.Tensor] = []  # losses that are not in the sum yet; reading one waits for the GPU
        self._seconds = 0.0
        self._peaks: list[dict[str, int]] = []  # peaks of every stage before the last resume
        self._observed: list[int] = []  # staleness of every stage before the last resume
        self._saved = time.monotonic()
        self._saving_seconds = 0.0  # time that the last checkpoint took

    def _engine(self, stages: list[Stage]) -> Engine:
        """Make the pipeline for the device and the processes of the context.

        Raises:
            UnsupportedError: If the cell cannot be trained with the options of the context.

        """
        cell, context, probe = self._cell, self._context, self._probe
        options = context.options
        method = methods.by_name(cell.method)
        try:
            vector = timing.vector(cell)
        except ValueError as error:
            raise UnsupportedError(str(error)) from None
        if probe is not None and context.group.size > 1:
            raise UnsupportedError("a probe needs all stages of the network in one process: train with one process")
        if options.cuda_graphs and context.trace is not None:
            raise UnsupportedError(
                "--trace with --cuda-graphs: a trace is recorded in Python, which does not see the actions of a CUDA "
                "graph; give one of the two"
            )
        placed, channel = context.group.place(
            [stage.to(memory_format=MEMORY_FORMAT) for stage in stages], context.device
        )
        if channel is not None:
            self._own_stages = channel.stages
        replica = [self._replicas.index] if self._replicas.index else []  # replica 0 has the seed of a single process
        pipeline = Pipeline(
            placed,
            method,
            accumulation=cell.accumulation,
            staleness=vector,
            optimizer=optimizer(cell),
            delay=delay_rules(cell, correction_value(cell, self.batches)),
            seed=derive_seed(cell.seed, DROPOUT, *replica),
            autocast=autocast(cell),
            before_update=self._replicas.average_gradients if cell.replicas > 1 else None,
            after_backward=None if probe is None else probe.after_backward,
            channel=channel,
        )
        if options.compiled == MODULES:
            compiled.compile_functions(pipeline.stages)
        if probe is not None:
            probe.watch(pipeline, cell.epochs * self.batches)
        return pipeline

    def run(self) -> None:
        """Train to the end of the last epoch.

        Raises:
            Stopped: If a stop was requested.
            NonFiniteError: If a loss or a weight is not finite.

        """
        if (streams := self._context.options.cuda_graphs) and isinstance(self.pipeline, Pipeline):
            try:
                if self._context.options.compiled == STEPS:
                    self._recorded_steps = compiled_steps.cuda(self.pipeline)
                else:
                    self._recorded_steps = captured.cuda(
                        self.pipeline, streams=None if isinstance(streams, str) else streams
                    )
            except captured.UnrecordableError as error:
                self._step_plainly(error)
            if self._recorded_steps is not None and isinstance(source := self._loader.source, InMemory):
                self._resident = ResidentBatches(self._loader, source)
        while self.epoch < self._cell.epochs:
            self._train_epoch()
            self._end_epoch()
            if self.epoch < self._cell.epochs and self._worth_saving():
                self.save()

    def close(self) -> None:
        self._loader.close()
        self._test.close()

    def _batches_of_replica(self) -> int:
        """Return the number of micro-batches of an epoch.

        Raises:
            UnsupportedError: If the number of replicas does not match the cell or its data set.

        """
        count, cell = self._replicas.count, self._cell
        if count != cell.replicas:
            raise UnsupportedError(
                f"the cell has {cell.replicas} replicas, but there are processes for {count}: train it with "
                f"`python -m reproduce train --replicas {cell.replicas}`"
            )
        if count > self._loader.batches:
            raise UnsupportedError(
                f"{count} replicas need at least as many micro-batches per epoch, but {cell.dataset} has "
                f"{self._loader.batches} of {cell.batch_size} samples; use fewer replicas or smaller micro-batches"
            )
        return self._loader.batches // count

    def _train_epoch(self) -> None:
        total = self._cell.epochs * self.batches
        before, started = self._seconds, time.perf_counter()
        later = self._entering_later()
        for batch in self._batches_left():
            self._set_learning_rate(total, later)
            if self._probe is not None and batch is not None:
                self._probe.before_step(*batch)
            if self._context.trace is not None and isinstance(self.pipeline, Pipeline):
                self._context.trace.before_step(self.pipeline)
            loss = self._step(batch)
            self.batch += 1
            if loss is not None:
                self._count(loss)
            self._context.observer.tick(self.pipeline.micro_batches, total, loss)
            self._seconds = before + time.perf_counter() - started
            self._save_or_stop()
        if self.epoch == self._cell.epochs - 1:
            self.pipeline.drain()
        if self._resident is not None and self.epoch + 1 < self._cell.epochs:
            self._resident.prepare(self.epoch + 1, self._replicas.index, self._replicas.count)
        self._read_losses()
        torch.zeros((), device=self._context.device).item()  # on a GPU, wait for pending work before reading the clock
        self._seconds = before + time.perf_counter() - started

    def _entering_later(self) -> list[int]:
        """Return, for each stage, by how much the micro-batch that enters is ahead of the one that it processes."""
        if not isinstance(self.pipeline, Pipeline):
            return []
        meanwhile = forward_lags(self.pipeline.staleness)
        return [steps - lag for steps, lag in zip(meanwhile, self.pipeline.lags, strict=True)]

    def _set_learning_rate(self, total: int, later: Sequence[int]) -> None:
        """Set the learning rate of the next step for each stage.

        A stage processes micro-batch m while later micro-batches enter at stage 0 (`petra_core.staleness`). Its
        learning rate is that of the micro-batch that enters at the same time.
        """
        number = self.pipeline.micro_batches
        if isinstance(self.pipeline, Pipeline):
            self.pipeline.set_learning_rate(lambda stage: self._schedule(min(number + later[stage], total - 1)))
        else:
            self.pipeline.set_learning_rate(self._schedule(number))

    def _batches_left(self) -> Iterable[Batch | None]:
        """Return the remaining batches of the epoch, or None for each batch that a step makes itself."""
        where = self.epoch, self.batch * self._replicas.count + self._replicas.index, self._replicas.count
        if self._resident is None:
            return self._loader.epoch(*where)
        self._resident.begin(*where)
        return itertools.repeat(None, self.batches - self.batch)

    def _step(self, batch: Batch | None) -> torch.Tensor | None:
        """Run a step with a batch, or with the next batch that is made on the device if `batch` is None."""
        if self._recorded_steps is not None:
            try:
                if batch is not None:
                    return self._recorded_steps.step(to_memory_format(batch[0]), batch[1])
                assert self._resident is not None
                return self._recorded_steps.step_from(self._resident.batch)
            except captured.UnrecordableError as error:
                self._step_plainly(error)
        if batch is None:
            assert self._resident is not None
            batch = self._resident.batch()
        return self.pipeline.step(to_memory_format(batch[0]), batch[1])

    def _step_plainly(self, error: captured.UnrecordableError) -> None:
        self._recorded_steps = None
        self._context.observer.notice(f"--cuda-graphs has no effect here: {error}")

    def _save_or_stop(self) -> None:
        due = time.monotonic() - self._saved >= 60 * self._context.options.checkpoint_minutes
        number, total = self.pipeline.micro_batches, self._cell.epochs * self.batches
        stop, save = self._context.group.decide(number, stop=self._context.should_stop(), save=due)
        if stop or save:
            self.save()
        if stop:
            raise Stopped(f"stopped at micro-batch {number} of {total}")

    def _worth_saving(self) -> bool:
        """Return whether to save after an epoch. A single process does not save soon after a slow checkpoint."""
        if self._context.group.size > 1:
            return True
        pause = min(PAUSE * max(0.0, self._saving_seconds - QUICK), 60 * self._context.options.checkpoint_minutes)
        return time.monotonic() - self._saved >= pause

    def _losses_at_heads(self) -> torch.Tensor:
        """Gather the sum and the number of the losses so far from the processes with heads, [heads, 2]."""
        self._read_losses()
        group = self._context.group
        return torch.tensor(group.gather([self._loss_sum, self._losses])[group.heads], dtype=torch.float64)

    def _count(self, loss: torch.Tensor) -> None:
        self._unread.append(loss)
        if len(self._unread) == LOOKED_AT_TOGETHER["cuda"]:
            self._read_losses()

    def _read_losses(self) -> None:
        """Add the unread losses to the sum, in their order."""
        for loss in torch.stack(self._unread).tolist() if self._unread else ():
            self._loss_sum += loss
        self._losses += len(self._unread)
        self._unread.clear()

    def _end_epoch(self) -> None:
        steps = self._recorded_steps
        if isinstance(steps, compiled_steps.CompiledSteps) and steps.uncompiled and self.epoch == 0:
            self._context.observer.notice(f"--compile steps has no effect here: {steps.uncompiled}")
        self.pipeline.check_finite()  # otherwise a run that diverged in its last ticks would end with a result
        started = time.perf_counter()
        tested = self._evaluate()
        evaluation_seconds = time.perf_counter() - started
        loss_sum, count = self._losses_at_heads().sum(0).tolist()
        metrics = {
            "epoch": self.epoch + 1,
            "train_loss": loss_sum / count if count else None,
            "learning_rate": self._schedule(self.pipeline.micro_batches - 1),
            **tested,
            "train_seconds": round(self._seconds, 4),
            "evaluation_seconds": round(evaluation_seconds, 4),
            "images_per_second": self._images_per_second(self.batches, self._seconds),
            "peak_bytes": sum(stage["total"] for stage in self.peaks()),
            **self._measure(),
        }
        if self._context.group.is_leader:
            self._record.append(metrics)
        self._context.observer.epoch(metrics)
        self.epoch, self.batch = self.epoch + 1, 0
        self._loss_sum, self._losses, self._seconds = 0.0, 0, 0.0

    def _measure(self) -> dict[str, Any]:
        """Return further metrics of the epoch."""
        return {} if self._probe is None else self._probe.collect()

    def _evaluate(self) -> dict[str, float]:
        correct = torch.zeros((), dtype=torch.int64, device=self._context.device)
        nats = torch.zeros((), dtype=torch.float64, device=self._context.device)
        unusable = torch.zeros((), dtype=torch.int64, device=self._context.device)  # samples with non-finite outputs
        text = catalogue.by_name(self._cell.dataset).text
        classes = 1 if self._network else -1  # a user's network has the layout of cross-entropy
        stop, group = False, self._context.group
        eager = (
            torch.compiler.set_stance("force_eager")
            if self._context.options.compiled == MODULES
            else contextlib.nullcontext()
        )
        model = sequential(self.pipeline.stages)
        with self._replicas.average_statistics(model), eager:
            turns = range(-(-self._test.batches // self._replicas.count))  # number of batches of replica 0
            own = self._test.share(self._replicas.index, self._replicas.count)
            for turn, batch in itertools.zip_longest(turns, own):
                if batch is not None:
                    images, labels = batch
                    logits = self.pipeline.evaluate(to_memory_format(images))
                    assert isinstance(logits, torch.Tensor)  # networks of cells have one output
                    logits = logits.movedim(classes, -1)
                    correct += (logits.argmax(-1) == labels).sum()  # no class is `IGNORED`
                    unusable += torch.isfinite(logits.flatten(1)).all(1).logical_not().sum()  # `argmax` accepts NaN
                    if text:
                        flat = logits.flatten(0, 1).float()  # [B·T, tokens]
                        nats += F.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="sum")
                stop, _ = group.decide(turn, stop=self._context.should_stop(), save=False)
                if stop:
                    break
        # Save outside the context, where each replica has different statistics. A resume repeats the evaluation.
        if stop:
            self.save()
            raise Stopped(f"stopped in the evaluation after epoch {self.epoch + 1} of {self._cell.epochs}")
        counts = [correct.item(), unusable.item(), nats.item()]
        right, broken, surprise = map(sum, zip(*group.gather(counts)[group.heads], strict=True))
        if broken:
            outputs = f"the outputs for {broken:,} tested samples are not finite"
            raise self._not_finite(f"{outputs} after epoch {self.epoch + 1}, although all weights are finite")
        tested = {"test_accuracy": 100 * right / self._test.samples}
        if text:
            tested["test_bits_per_byte"] = bits = surprise / math.log(2) / self._test.samples
            if not math.isfinite(bits):
                surprising = f"{bits} bits per byte of the test set"
                raise self._not_finite(f"{surprising} after epoch {self.epoch + 1}, with finite weights")
        return tested

    def _not_finite(self, problem: str) -> NonFiniteError:
        return NonFiniteError(f"{problem}; {REMEDY}", micro_batch=self.pipeline.micro_batches - 1, stage=None)

    def _images_per_second(self, micro_batches: int, seconds: float) -> float:
        return round(micro_batches * self._cell.replicas * self._cell.batch_size / seconds, 1)

    def peaks(self) -> list[dict[str, int]]:
        """Return the peak bytes of every stage: of each kind, and the peak of their sum, `total`."""
        own_rows = [{**stage.peak, "total": stage.peak_total} for stage in self.pipeline.memory().stages]
        now = self._context.group.gather_rows(own_rows)
        if not self._peaks:
            return now
        return [{key: max(old[key], new[key]) for key in new} for old, new in zip(self._peaks, now, strict=True)]

    def observe_staleness(self) -> list[int]:
        """Return, for each stage, the most micro-batches that entered between a forward and its backward.

        The list is empty for forward gradients.
        """
        if not isinstance(self.pipeline, Pipeline):
            return []
        now = self._context.group.gather_rows(list(self.pipeline.observed_staleness))
        return list(map(max, self._observed, now)) if self._observed else now

    def result(self) -> dict[str, Any]:
        """Return the result of the finished run on the leader, and {} on other processes."""
        stages, observed = self.peaks(), self.observe_staleness()
        if not self._context.group.is_leader:
            return {}
        metrics = self._record.own_metrics()
        vector = self.pipeline.staleness if isinstance(self.pipeline, Pipeline) else None
        last_drop = max(self._cell.drops, default=0)
        best = max(metrics[last_drop:], key=lambda line: line["test_accuracy"])  # the first one if several are equal
        seconds = sum(line["train_seconds"] for line in metrics)
        return {
            **{name: value for name, value in metrics[-1].items() if name.startswith("test_")},
            "best_test_accuracy": best["test_accuracy"],
            "best_epoch": best["epoch"],
            "train_loss": metrics[-1]["train_loss"],
            "train_seconds": round(seconds, 4),
            "evaluation_seconds": round(sum(line["evaluation_seconds"] for line in metrics), 4),
            "images_per_second": self._images_per_second(self.pipeline.micro_batches, seconds),
            "parameters": sum(p.numel() for stage in self.pipeline.stages for p in stage.parameters()),
            "micro_batches": self.pipeline.micro_batches,
            "peak_bytes": metrics[-1]["peak_bytes"],
            "stages": stages,
            **({"staleness": list(vector), "observed_staleness": observed} if vector is not None else {}),
        }

    # --- Stop and resume

    def save(self) -> None:
        """Write a checkpoint with the full pipeline, the position and the sums of the current epoch."""
        started = time.monotonic()
        self._record.check_held()
        pipeline = self.pipeline.state_dict()
        workers = pipeline.pop("workers")
        losses = self._losses_at_heads()
        common = {
            "schema": SCHEMA,
            "identity": self._cell.identity,
            "epoch": self.epoch,
            "batch": self.batch,
            "loss_sum": losses[:, 0],
            "losses": losses[:, 1],
            "seconds": self._seconds,
            "peaks": self.peaks(),
            "observed": self.observe_staleness(),
            "data": self._data,
            "network": self._network,
            "pipeline": pipeline,
            "probe": None if self._probe is None else self._probe.state_dict(),
        }
        self._context.group.save(self._record, self.pipeline.micro_batches, common, workers)
        self._saved = time.monotonic()
        self._saving_seconds = self._saved - started

    def resume(self) -> None:
        """Load the checkpoint if there is one, and delete the metrics of later epochs.

        Raises:
            CheckpointError: If the checkpoint is damaged, or of another version, cell or data set.
            UnsupportedError: If another process would resume from another checkpoint.

        """
        saved = load(self._record, self._own_stages, self._replicas.index)
        begun = {} if saved is None else saved[0]
        self._context.group.check_same_position(
            f"{begun.get('epoch', 0)} epochs and {begun.get('batch', 0)} micro-batches"
        )
        if saved is None:
            self._keep_metrics(0)
            return
        state, workers = saved
        if state.get("identity") != self._cell.identity:
            raise misfit(self._record.path, "belongs to another cell")
        if not manifest.same(state.get("data") or {}, self._data):
            problem = f"was trained on other files of {self._cell.dataset} than the current ones"
            raise misfit(self._record.path, problem, "prepare the same files")
        if state.get("network", {}) != self._network:  # checkpoints of older versions have none
            problem = f"was trained by another version of the file of {self._cell.model}"
            raise misfit(self._record.path, problem, "restore that file")
        with explain_errors(self._record.path):
            check_position(state, epochs=self._cell.epochs, batches=self.batches)
            check_optimizers(self.pipeline.state_dict()["workers"], workers)
            self.pipeline.load_state_dict({**state["pipeline"], "workers": workers})
            if self._probe is not None:
                self._probe.load_state_dict(state["probe"])
            self.epoch, self.batch = state["epoch"], state["batch"]
            self._loss_sum = float(state["loss_sum"][self._replicas.index])
            self._losses = int(state["losses"][self._replicas.index])
            self._seconds, self._peaks = float(state["seconds"]), list(state["peaks"])
            self._observed = list(state.get("observed", ()))  # checkpoints of older versions have none
        self._keep_metrics(state["epoch"])

    def _keep_metrics(self, count: int) -> None:
        if self._context.group.is_leader:
            self._record.keep_metrics(count)


def optimizer(cell: TrainedCell) -> OptimizerFactory:
    """Return a factory of the cell's optimizer, which is called with the parameters of each stage."""
    if cell.optimizer != "sgd":
        make = adamw if cell.optimizer == "adamw" else nadam
        return make(cell.learning_rate, beta1=cell.momentum, weight_decay=cell.weight_decay)
    return sgd(cell.learning_rate, momentum=cell.momentum, nesterov=cell.momentum > 0, weight_decay=cell.weight_decay)


def correction_value(cell: TrainedCell, batches: int) -> float:
    """Return the constant of the cell's correction. That of `rate` is in epochs in a cell, and in updates here.

    Args:
        cell: The cell.
        batches: Number of micro-batches of an epoch.

    """
    is_rate = cell.correction == Rate.name
    return cell.correction_value * batches / cell.accumulation if is_rate else cell.correction_value


def autocast(cell: TrainedCell) -> torch.dtype | None:
    """Return the dtype of the cell's automatic mixed precision, if it uses any."""
    return torch.bfloat16 if cell.precision == "bf16" else None


def save_model(pipeline: Engine, context: Context) -> None:
    """Write the state dict of the plain sequential model, on the CPU, to `context.model_file`.

    Raises:
        StorageFullError: If the disk is full.

    """
    assert context.model_file is not None
    model = sequential(pipeline.stages)
    with context.group.replicas.average_statistics(model):
        own_entries = {name: tensor.cpu() for name, tensor in model.state_dict().items() if not tensor.is_meta}
    state = context.group.gather_state(own_entries)
    if not context.group.is_leader:
        return
    with explain_full_disk(f"to write {context.model_file}"):
        checkpoint.save(context.model_file, state)
