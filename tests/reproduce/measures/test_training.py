"""Test the training of a cell: it learns, stops anywhere, resumes bitwise, and every failure is recorded."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import weakref
from collections import Counter

import pytest
import torch

from petra_core import Pipeline, checkpoint
from petra_core.inspection.values import PendingLosses
from petra_core.models import sequential
from reproduce.cells import networks
from reproduce.data.sources import open_data
from reproduce.distributed.group import SINGLE_PROCESS, UnsupportedError
from reproduce.distributed.replicas import Replicas
from reproduce.distributed.trace_file import TraceFile
from reproduce.measures import training
from reproduce.measures.context import Context, Observer, Stopped
from reproduce.records.record import Record, Status
from reproduce.records.storage import StorageFullError
from reproduce.running.grid_options import GridOptions
from reproduce.running.runner import run_grid
from tests.example_cells import CHAIN, SMALL
from tests.faults import full_disk
from tests.trainings import assert_stops_change_no_bit, outcome, recorded, run, stop_after

pytestmark = pytest.mark.convolutions

EXACT = dataclasses.replace(CHAIN, method="BACKPROPAGATION")
BATCHES = 7


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folders of uninterrupted runs, by cell."""

    @functools.cache
    def folder_of(cell):
        folder = tmp_path_factory.mktemp(cell.method)
        assert run(cell, folder)[1].status is Status.DONE
        return folder

    return folder_of


def test_cell_trains_to_a_result(tmp_path):
    """A cell trains to an accurate result with the expected metrics, and deletes its checkpoint."""
    cell = dataclasses.replace(EXACT, batch_size=16, width=8, epochs=2, drops=())
    record, state = run(cell, tmp_path)
    assert state.status is Status.DONE
    result, metrics = record.read().result, record.read().metrics
    assert [line["epoch"] for line in metrics] == [1, 2]
    assert result["test_accuracy"] == metrics[-1]["test_accuracy"] > 80
    assert result["micro_batches"] == 2 * 89
    assert len(result["stages"]) == 5
    assert result["staleness"] == result["observed_staleness"] == [0] * 5
    assert metrics[0]["train_loss"] > metrics[1]["train_loss"]
    assert metrics[1]["learning_rate"] == cell.learning_rate
    assert not record.checkpoint.exists()


def test_observed_staleness_is_that_of_the_timing(tmp_path):
    """The observed staleness of every block equals that of the timing."""
    cell = dataclasses.replace(CHAIN, method="PETRA", timing="1f1b", stages=(2, 2, 1))
    record, _ = run(cell, tmp_path)
    assert record.read().result["staleness"] == record.read().result["observed_staleness"] == [2, 2, 1, 1, 0]


def test_saved_model_has_recorded_accuracy(whole, monkeypatch):
    """The saved model has the recorded accuracy, and a finished cell is not run again."""
    folder = whole(SMALL)
    plain = sequential(networks.build(SMALL, 10))
    plain.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    (batch,) = open_data(SMALL, torch.device("cpu")).test
    with torch.no_grad():
        predicted = plain.eval()(batch[0]).argmax(1)
    accuracy = recorded(folder)[1]["test_accuracy"]
    assert 100 * (predicted == batch[1]).double().mean().item() == pytest.approx(accuracy)
    monkeypatch.setattr(training, "Trainer", None)
    assert run(SMALL, folder)[1].status is Status.DONE


@pytest.mark.parametrize(
    ("cell", "stops"),
    [(SMALL, (1, 7, 10, 19, 21)), (dataclasses.replace(CHAIN, method="DELAYED_GRADIENTS"), (10,)), (EXACT, (10,))],
    ids=lambda value: getattr(value, "method", None),
)
def test_stopped_run_resumes_to_the_same_bits(tmp_path, whole, cell, stops):
    """Stops: the first micro-batch, the end of an epoch, a filling pipeline, a full one, and the end of the last epoch.

    The methods keep no stashes, stashed weights, and graphs.
    """
    assert_stops_change_no_bit(stops, cell, tmp_path, whole(cell))


def test_metrics_without_checkpoint_are_not_repeated(tmp_path, whole, monkeypatch):
    """The process died between the line of epoch 2 and the checkpoint after it. The line must not be there twice."""

    class Killed(BaseException):
        pass

    def die(trainer):
        if trainer.epoch == 2:
            raise Killed
        save(trainer)

    save = training.Trainer.save
    monkeypatch.setattr(training, "QUICK", 1e9)  # also on a busy machine
    monkeypatch.setattr(training.Trainer, "save", die)
    with pytest.raises(Killed):
        run(CHAIN, tmp_path)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    monkeypatch.undo()
    run(CHAIN, tmp_path)
    assert outcome(tmp_path) == outcome(whole(CHAIN))


@pytest.fixture
def saved(monkeypatch):
    """Return the finished epochs and the micro-batches of the next one at which checkpoints are saved."""
    save, places = training.Trainer.save, []

    def note(trainer):
        places.append((trainer.epoch, trainer.batch))
        save(trainer)

    monkeypatch.setattr(training.Trainer, "save", note)
    return places


@pytest.fixture
def slow_disk(monkeypatch):
    """Make every checkpoint slow to write."""
    monkeypatch.setattr(training, "PAUSE", 1e9)
    monkeypatch.setattr(training, "QUICK", 0.0)


@pytest.mark.usefixtures("slow_disk")
def test_slow_checkpoint_is_not_written_every_epoch(tmp_path, whole, saved):
    """If a checkpoint is slow to write, it is not written after every epoch, but still on a stop."""
    stop_after(2 * BATCHES + 1, tmp_path, CHAIN)
    assert saved == [(1, 0), (2, 1)], "not after the second epoch; where it is stopped in the third"
    run(CHAIN, tmp_path)
    assert outcome(tmp_path) == outcome(whole(CHAIN))


@pytest.mark.usefixtures("slow_disk")
def test_checkpoint_interval_limits_the_pause(tmp_path, saved):
    """With an interval of 0 minutes, a checkpoint is saved after every micro-batch and every epoch."""
    run(CHAIN, tmp_path, checkpoint_minutes=0.0)
    assert saved == [(epoch, batch) for epoch in range(CHAIN.epochs) for batch in range(BATCHES + 1)][1:]


def test_run_without_checkpoint_restarts(tmp_path, whole):
    """A stopped run whose checkpoint was deleted restarts and ends with the same bits."""
    stop_after(2 * BATCHES, tmp_path, CHAIN)
    (tmp_path / "checkpoint.pt").unlink()
    run(CHAIN, tmp_path)
    assert outcome(tmp_path) == outcome(whole(CHAIN))


@pytest.mark.parametrize("epoch", [1, 3])
def test_stop_during_evaluation_saves_training_statistics(tmp_path, whole, monkeypatch, epoch):
    """Evaluation uses the mean of all replicas' statistics. If it were saved there, training would resume from it."""
    begun, evaluating = [], []

    @contextlib.contextmanager
    def averaged(self, model):
        begun.append(True)
        evaluating.append(True)
        yield
        evaluating.clear()

    save = training.Trainer.save

    def see(self):
        assert not evaluating
        save(self)

    with monkeypatch.context() as patch:
        patch.setattr(Replicas, "average_statistics", averaged)
        patch.setattr(training.Trainer, "save", see)
        with pytest.raises(Stopped, match=f"in the evaluation after epoch {epoch} of 3"):
            run(CHAIN, tmp_path, should_stop=lambda: bool(evaluating) and len(begun) == epoch)
    run(CHAIN, tmp_path)
    assert outcome(tmp_path) == outcome(whole(CHAIN))


def test_pipeline_is_full_between_epochs_and_drained_at_end(tmp_path, monkeypatch):
    """The pipeline stays full during evaluations between epochs and is drained at the end."""
    in_flight = []
    evaluate = Pipeline.evaluate

    def spy(pipeline, images):
        in_flight.append(pipeline.in_flight)
        return evaluate(pipeline, images)

    monkeypatch.setattr(Pipeline, "evaluate", spy)
    record, _ = run(CHAIN, tmp_path)
    assert in_flight == [7, 8, 0]
    assert all(line["train_loss"] is not None for line in record.read().metrics)
    record, _ = run(dataclasses.replace(CHAIN, batch_size=300), tmp_path / "short")  # 4 micro-batches per epoch
    assert all(line["train_loss"] is not None for line in record.read().metrics), "each is known in the same step"


def test_methods_share_initial_weights_and_data_order(tmp_path, monkeypatch):
    """Methods with the same seed have the same initial weights and first batch; seeds differ."""
    seen = {}
    step = Pipeline.step

    def spy(pipeline, images, labels):
        if pipeline.micro_batches == 0:
            weights = torch.cat([parameter.detach().flatten() for parameter in pipeline.model.parameters()])
            seen[pipeline.method.name] = (weights, images.clone(), labels.clone())
        return step(pipeline, images, labels)

    monkeypatch.setattr(Pipeline, "step", spy)
    for number, (method, seed) in enumerate([("PETRA", 0), ("DSP", 0), ("BACKPROPAGATION", 1)]):
        stop_after(1, tmp_path / str(number), dataclasses.replace(CHAIN, method=method, seed=seed))
    assert all(torch.equal(a, b) for a, b in zip(seen["PETRA"], seen["DSP"], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(seen["PETRA"], seen["BACKPROPAGATION"], strict=True))


def test_bf16_gives_another_result(tmp_path, whole):
    """Training in bf16 finishes with other losses than in float32."""
    record, state = run(dataclasses.replace(CHAIN, precision="bf16"), tmp_path)
    assert state.status is Status.DONE
    assert record.read().metrics[0]["train_loss"] != recorded(whole(CHAIN))[0][0]["train_loss"]


def test_divergence_records_stage_and_keeps_last_checkpoint(tmp_path, monkeypatch):
    """Divergence is recorded with stage and micro-batch, and the last finite checkpoint is kept."""
    cell = dataclasses.replace(SMALL, batch_size=128, learning_rate=30.0, warmup_epochs=0)
    record, state = run(cell, tmp_path / "whole")
    assert (state.status, state.reason) == (Status.FAILED, "diverged")
    assert state.result["data"]["dataset"] == "digits", "a failure says of which data, too"
    result = record.read().result
    assert result["micro_batch"] > 0
    assert 0 <= result["stage"] < 10
    assert f"micro-batch {result['micro_batch']}" in result["detail"]
    state = checkpoint.load(record.checkpoint)
    assert state["epoch"] >= 1
    assert all(
        bool(torch.isfinite(tensor).all()) for worker in state["workers"] for tensor in worker["module"].values()
    )
    # As on a GPU, where losses are checked in groups: the mean of an epoch with such a loss is not a number.
    monkeypatch.setattr(PendingLosses, "add", lambda losses, *given, **_: losses._waiting.append(given))
    record, state = run(cell, tmp_path / "late")
    assert (state.status, state.reason, record.read().result["stage"]) == (Status.FAILED, "diverged", None)
    assert "the stage in which it originated is unknown" in record.read().result["detail"]


def test_replicas_without_processes_and_captured_traces_fail(tmp_path):
    """Replicas in one process, and a trace of recorded steps, are refused."""
    with pytest.raises(UnsupportedError, match=r"the cell has 3 replicas, .* processes for 1: .* train --replicas 3`"):
        run(dataclasses.replace(SMALL, replicas=3), tmp_path / "replicas")
    with pytest.raises(UnsupportedError, match=r"--trace with --cuda-graphs: .* give one of the two"):
        run(SMALL, tmp_path, cuda_graphs=1, trace=TraceFile(tmp_path / "trace.json", 4, SINGLE_PROCESS))


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried …"), None),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), None),
        (torch.AcceleratorError("CUDA error: out of memory"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
        (
            torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture"),
            RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ),
    ],
    ids=["cuda", "cpu", "driver", "cublas", "cudnn, at the end of a capture"],
)
def test_out_of_memory_is_recorded(tmp_path, monkeypatch, error, cause):
    """Out-of-memory errors of all allocators are recorded, also as the context of another error."""
    error.__context__ = cause

    def fail(*_):
        raise error

    monkeypatch.setattr(Pipeline, "step", fail)
    record, state = run(CHAIN, tmp_path)
    assert (state.status, state.reason) == (Status.FAILED, "out of memory")
    assert str(cause or error) in record.read().result["detail"]


def test_other_errors_are_raised(tmp_path, monkeypatch):
    """Any error except lack of memory is raised, and the run can be repeated."""

    def fail(*_):
        raise RuntimeError("something else")

    monkeypatch.setattr(Pipeline, "step", fail)
    record = Record(tmp_path, CHAIN)
    with pytest.raises(RuntimeError, match="something else"):
        run(CHAIN, tmp_path)
    assert record.state().status is Status.PARTIAL


def test_pipeline_is_freed_before_memory_is_released(tmp_path, monkeypatch):
    """The error once kept the frames of the pipeline, and so all its memory, while it was handled."""
    pipelines = []

    def fail(pipeline, *_):
        pipelines.append(weakref.ref(pipeline))
        raise MemoryError

    def give_back(_):
        gc.collect()
        assert pipelines[0]() is None
        pipelines.append(None)

    monkeypatch.setattr(Pipeline, "step", fail)
    monkeypatch.setattr("reproduce.running.execution.give_back", give_back)
    assert run(CHAIN, tmp_path)[1].reason == "out of memory"
    assert pipelines[-1] is None


def test_too_large_allocation_is_out_of_memory(tmp_path):
    """A real allocation that is too large is recorded as out of memory."""
    # 158 TB for one convolution is more than the address space, so every system refuses it.
    _, state = run(dataclasses.replace(SMALL, width=2**21), tmp_path)
    assert state.reason == "out of memory"


def test_full_disk_stops_the_run_which_can_resume(tmp_path, whole):
    """A full disk stops the run, keeps the last checkpoint, and the run can resume."""
    stop_after(10, tmp_path, CHAIN)
    good = (tmp_path / "checkpoint.pt").read_bytes()
    with full_disk(10_000), pytest.raises(StorageFullError, match=r"no room to write .*checkpoint.pt"):
        run(CHAIN, tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == good
    assert not list(tmp_path.glob("*.tmp"))
    run(CHAIN, tmp_path)
    assert outcome(tmp_path) == outcome(whole(CHAIN))


def test_observer_sees_every_tick_and_global_state_is_restored(tmp_path):
    """The observer is called for every tick and epoch, and global torch settings are restored."""
    calls, inside = Counter(), set()
    allocation = torch.utils.deterministic

    class Count(Observer):
        def tick(self, done, total, loss):
            calls["ticks"] += 1
            calls["losses"] += loss is not None
            assert (done, total) == (calls["ticks"], 21)
            flags = torch.are_deterministic_algorithms_enabled(), allocation.fill_uninitialized_memory
            inside.add((*flags, torch.backends.cudnn.benchmark))

        def epoch(self, metrics):
            calls["epochs"] += 1
            assert metrics["epoch"] == calls["epochs"]

    before = torch.get_rng_state()
    run(CHAIN, tmp_path, observer=Count())
    assert calls == {"ticks": 21, "losses": 21, "epochs": 3}
    assert inside == {(True, False, False)}, "deterministic kernels, and no pass over memory that is not needed"
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()
    assert allocation.fill_uninitialized_memory


def test_learning_rates_and_losses_of_epochs(tmp_path):
    """The rate of an epoch, that of its last micro-batch, follows the warm-up and the drops. Its loss is the mean."""
    losses = []

    class Keep(Observer):
        def tick(self, done, total, loss):
            losses.append(loss.item())

    record, _ = run(dataclasses.replace(EXACT, warmup_epochs=1.0, drops=(2,)), tmp_path, observer=Keep())
    lines = record.read().metrics
    rates = [line["learning_rate"] / EXACT.learning_rate for line in lines]
    assert rates == pytest.approx([(BATCHES - 1) / BATCHES, 1.0, EXACT.drop_factor])
    means = [sum(losses[at : at + BATCHES]) / BATCHES for at in range(0, len(losses), BATCHES)]
    assert [line["train_loss"] for line in lines] == pytest.approx(means)


def test_best_accuracy_is_after_last_drop_and_times_are_summed(tmp_path, monkeypatch):
    """The best accuracy is that after the last drop, and times are sums over epochs."""
    reached = iter([90.0, 60.0, 50.0])
    monkeypatch.setattr(training.Trainer, "_evaluate", lambda _: {"test_accuracy": next(reached)})
    record, _ = run(dataclasses.replace(EXACT, drops=(1,)), tmp_path)
    result = record.read().result
    assert (result["test_accuracy"], result["best_test_accuracy"], result["best_epoch"]) == (50.0, 60.0, 2)
    for name in ("train_seconds", "evaluation_seconds"):
        assert result[name] == pytest.approx(sum(line[name] for line in record.read().metrics))


def test_time_before_a_stop_counts(tmp_path, monkeypatch):
    """The training time of an epoch includes the time before a stop."""
    clock = itertools.count()
    monkeypatch.setattr(training.time, "perf_counter", lambda: float(next(clock)))
    run(EXACT, tmp_path / "whole")
    stop_after(BATCHES - 1, tmp_path / "pieces", EXACT)
    run(EXACT, tmp_path / "pieces")
    whole, pieces = (Record(tmp_path / name, EXACT).read().metrics[0]["train_seconds"] for name in ("whole", "pieces"))
    assert pieces == pytest.approx(whole, abs=3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"momentum": SMALL.momentum, "nesterov": True}),
        ({"momentum": 0.0}, {"momentum": 0.0, "nesterov": False}),
        ({"optimizer": "adamw", "momentum": 0.8}, {"betas": (0.8, 0.999)}),
        ({"optimizer": "nadam", "momentum": 0.8}, {"betas": (0.8, 0.999), "momentum_decay": 0.004}),
    ],
)
def test_optimizer_has_the_settings_of_the_cell(changes, expected):
    """The optimizer has the learning rate, weight decay and momentum of the cell."""
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    (group,) = training.optimizer(dataclasses.replace(SMALL, **changes))([weight]).param_groups
    assert {"lr": SMALL.learning_rate, "weight_decay": SMALL.weight_decay, **expected}.items() <= group.items()


def test_checkpoint_next_to_a_result_is_removed(tmp_path):
    """The next command that finds it removes it: for the paper's networks it has a gigabyte."""
    record, _ = run(EXACT, Record.for_cell(EXACT, tmp_path).path)
    for again in (lambda: run(EXACT, record.path), lambda: run_grid([EXACT], GridOptions(root=tmp_path, jobs=1))):
        record.checkpoint.write_bytes(b"left by a kill")
        again()
        assert not record.checkpoint.exists()
        assert Record.for_cell(EXACT, tmp_path).state().status is Status.DONE  # first in its folder, then in its volume


def test_seeds_have_different_dropout_streams(tmp_path):
    """Different seeds have different random streams in every stage."""
    states = []
    for seed in (0, 1):
        cell = dataclasses.replace(CHAIN, seed=seed)
        trainer = training.Trainer(cell, Record(tmp_path, cell), Context())
        states.append([worker.stream.state for worker in trainer.pipeline.workers])
        trainer.close()
    for (one,), (other,) in zip(*states, strict=True):
        assert not torch.equal(one, other)
