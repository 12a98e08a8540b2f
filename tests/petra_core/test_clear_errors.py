"""Test errors of users in one table: each message names the object, the expected value and a remedy."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import (
    BufferedStage,
    CheckpointError,
    HeadStage,
    NonFiniteError,
    Pipeline,
    ReversibleStage,
    Stage,
    methods,
)
from petra_core.methods import Method
from tests.compare import assert_bitwise_equal
from tests.petra_core.test_user_modules import batches, head, made, network, residual, sgd, step, trained

X, Y = batches(1)[0]


def stepped(method: Method = methods.PETRA, *, x: Any = X, y: Any = Y, net: list[Stage] | None = None) -> object:
    p = made(network() if net is None else net, method)
    return [p.step(x, y) for _ in range(8)]


def with_loss(loss: Callable[[Tensor, Tensor], Any]) -> list[Stage]:
    return [*network()[:3], HeadStage(head().double(), loss)]


def with_residual(change: Callable[[nn.Module], nn.Module]) -> list[Stage]:
    net = network()
    net[1] = ReversibleStage(change(net[1].function))
    return net


def narrow(dtype: torch.dtype) -> Pipeline:
    return Pipeline([stage.to(dtype) for stage in network()], methods.PETRA)


def sparse(kind: type[nn.Embedding]) -> Pipeline:
    return Pipeline([BufferedStage(kind(4, 4, sparse=True)), *network()[1:]], methods.PETRA)


def gathered() -> object:
    """Run a step with `F.embedding`, whose sparse gradient cannot be detected from the modules."""

    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(5, 4, dtype=torch.float64))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = F.embedding(x, self.table, sparse=True)
            return y, y.clone()

    return stepped(net=[BufferedStage(Looked()), *network()[1:]], x=torch.arange(5))


def post_accumulate() -> Pipeline:
    net = network()
    next(net[1].parameters()).register_post_accumulate_grad_hook(lambda parameter: None)
    return Pipeline(net, methods.BACKPROPAGATION)


def scripted(method: Method) -> Pipeline:
    return made(with_residual(lambda f: torch.jit.trace(f, torch.ones(5, 4, dtype=torch.float64))), method)


class Differentiating(nn.Module):
    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        (force,) = torch.autograd.grad(self.f(x).sum(), x, create_graph=True)
        return force


def loaded(
    saved: Callable[[list[nn.Parameter]], torch.optim.Optimizer], other: Any, steps: int = 12, *, older: bool = False
) -> Pipeline:
    first, second = made(network(), methods.PETRA, optimizer=saved), made(network(), methods.PETRA, optimizer=other)
    for x, y in batches(steps):
        first.step(x, y)
    state = first.state_dict()
    if older:
        for worker in state["workers"]:
            del worker["optimizer_class"]
    second.load_state_dict(state)
    return second


def reverse(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return sgd(parameters[::-1])


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def after_a_failed_load() -> object:
    p = made(network(), methods.PETRA)
    with pytest.raises(CheckpointError):
        p.load_state_dict(made(network(), methods.PETRA, optimizer=adamw).state_dict())
    return p.step(X, Y)


def after_a_wrong_first_batch() -> object:
    p = made(network(), methods.PETRA)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        p.step(X[:, :2], Y)
    return p.step(X, Y)


def copied_in_flight(method: Method, copier: Callable[[Any], object]) -> object:
    p = made(network(), method)
    p.step(X, Y)
    return copier(p)


def state_with_a_broken_weight() -> object:
    p = made(network(), methods.PETRA)
    for _ in range(8):
        p.step(X, Y)
    with torch.no_grad():
        next(p.stages[2].parameters()).fill_(float("nan"))
    return p.state_dict()


def in_inference_mode() -> object:
    with torch.inference_mode():
        return made(network(), methods.PETRA).step(X, Y)


TABLE: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "target: dict": (
        lambda: stepped(y={0: Y}),
        TypeError,
        r"target must be .* a dict of tensors by name, .* got a dict of \['Tensor'\]",
    ),
    "target: list": (lambda: stepped(y=[1, 0]), TypeError, r"target must be .* got a list of \['int', 'int'\]"),
    "target: empty": (lambda: stepped(y=()), TypeError, "target must be .* got a tuple;"),
    "target: number": (lambda: stepped(y=1), TypeError, r"got a int; .* torch\.tensor\(number\)"),
    "loss: number": (
        lambda: stepped(net=with_loss(lambda o, y: F.cross_entropy(o, y).item())),
        TypeError,
        r"the loss function must return a scalar tensor .*, got a float; .* without \.item\(\)",
    ),
    "loss: with a metric": (
        lambda: stepped(net=with_loss(lambda o, y: (F.cross_entropy(o, y), torch.ones(())))),
        TypeError,
        r"must return a scalar tensor .*, got a tuple of Tensor, Tensor; return .* with a dict of metrics by name",
    ),
    "loss: detached": (
        lambda: stepped(net=with_loss(lambda o, y: F.cross_entropy(o.detach(), y))),
        ValueError,
        r"the loss has no graph, so nothing would be trained: got a tensor of torch\.float64 .* leave out detach\(\)",
    ),
    "loss: argmax": (
        lambda: stepped(net=with_loss(lambda o, y: (o.argmax(1) == y).double().mean())),
        ValueError,
        "the loss has no graph, .*argmax",
    ),
    "loss: integers": (
        lambda: stepped(net=with_loss(lambda o, y: (o.argmax(1) != y).sum())),
        ValueError,
        r"got a tensor of torch\.int64",
    ),
    "loss: no_grad": (
        lambda: stepped(net=with_loss(torch.no_grad()(F.cross_entropy))),
        ValueError,
        "the loss has no graph",
    ),
    "weights: bfloat16": (
        lambda: narrow(torch.bfloat16),
        ValueError,
        r"parameter module\.0\.weight of stage 0 is torch\.bfloat16, .*autocast=torch\.bfloat16",
    ),
    "weights: float16": (lambda: narrow(torch.float16), ValueError, r"of stage 0 is torch\.float16, .*float\(\)"),
    "sparse: Embedding": (
        lambda: sparse(nn.Embedding),
        ValueError,
        "module of stage 0 is an Embedding with sparse=True, .*leave sparse=True out",
    ),
    "sparse: EmbeddingBag": (
        lambda: sparse(nn.EmbeddingBag),
        ValueError,
        "module of stage 0 is an EmbeddingBag with sparse=True",
    ),
    "sparse: function": (
        gathered,
        ValueError,
        r"stage 0: parameter table has a gradient of layout torch\.sparse_coo; .*leave out sparse=True",
    ),
    "hook: post-accumulate": (
        post_accumulate,
        ValueError,
        r"parameter residual\.0\.weight of stage 1 has a hook from register_post_accumulate_grad_hook.*before_update",
    ),
    **{
        f"scripted: {method}": (
            lambda method=method: scripted(method),
            ValueError,
            r"stage 1: its module is a module of torch\.jit, .*such as PETRA",
        )
        for method in methods.ALL
        if method.stashes_weights
    },
    **{
        f"differentiates in its forward: {method}": (
            lambda method=method: stepped(method, net=with_residual(Differentiating)),
            RuntimeError,
            "does not require grad",
        )
        for method in methods.ALL
        if not method.keeps_graph
    },
    "optimizer: LBFGS": (
        lambda: made(network(), methods.PETRA, optimizer=lambda q: torch.optim.LBFGS(q)),
        TypeError,
        r"optimizer of stage 0 is LBFGS, whose step\(\) needs closure: .*SGD or AdamW",
    ),
    "state: of AdamW into SGD": (
        lambda: loaded(adamw, sgd),
        CheckpointError,
        r"stage 0 does not fit .*its optimizer is AdamW, this one is SGD; create the pipeline with the optimizer of",
    ),
    "state: older, of AdamW into SGD": (
        lambda: loaded(adamw, sgd, older=True),
        CheckpointError,
        r"stage 0 does not fit .*its optimizer is not SGD: it has amsgrad, betas.* but not dampening",
    ),
    "state: of SGD into AdamW": (
        lambda: loaded(sgd, adamw),
        CheckpointError,
        "its optimizer is SGD, this one is AdamW",
    ),
    "state: other order": (
        lambda: loaded(sgd, reverse),
        CheckpointError,
        r"its momentum_buffer of parameter \d has shape \(.*\), but .*in the order of the checkpoint",
    ),
    "state: other groups": (
        lambda: loaded(sgd, lambda q: torch.optim.SGD([{"params": [p]} for p in q], lr=0.1)),
        CheckpointError,
        r"its optimizer has groups of \[2\] parameters, this one of \[1, 1\]",
    ),
    "state: not finite": (state_with_a_broken_weight, NonFiniteError, r"residual\.0\.weight of stage 2 is not finite"),
    "step: after a failed load": (
        after_a_failed_load,
        RuntimeError,
        "loading a state .* failed, .* into this pipeline or",
    ),
    "step: after a wrong first batch": (after_a_wrong_first_batch, RuntimeError, "an exception broke off a step"),
    "step: in inference mode": (in_inference_mode, RuntimeError, r"cannot train inside torch\.inference_mode\(\)"),
    "copy: deepcopy of graphs": (
        lambda: copied_in_flight(methods.DELAYED_GRADIENTS, copy.deepcopy),
        TypeError,
        r"DELAYED_GRADIENTS with 1 micro-batches in flight cannot be copied or pickled, .*state_dict\(\)",
    ),
    "copy: pickle of threads": (
        lambda: copied_in_flight(methods.PAREPROP, pickle.dumps),
        TypeError,
        "PAREPROP with 0 micro-batches in flight cannot be copied",
    ),
    "loss: all ignored": (
        lambda: stepped(y=torch.full_like(Y, -100)),
        NonFiniteError,
        r"all weights are finite, so check the input and the targets of this micro-batch first .*loss ignores\)(\n|$)",
    ),
    "input: not finite": (
        lambda: stepped(x=X * float("nan")),
        NonFiniteError,
        "all weights are finite, so check the input",
    ),
    "shared: trained": (
        lambda: Pipeline([network()[0], *[ReversibleStage(residual())] * 2, network()[-1]], methods.PETRA),
        ValueError,
        "parameter residual.0.weight of stage 2 belongs to stage 1 too; .*untie them with copy.deepcopy of the module",
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace(_method)?` is deprecated")
@pytest.mark.parametrize("case", TABLE)
def test_clear_errors(case: str) -> None:
    """Each mistake raises an error whose message names the object, the expected value and a remedy."""
    make, error, message = TABLE[case]
    with pytest.raises(error, match=message) as caught:
        make()
    if case.startswith("differentiates"):
        assert any("torch.enable_grad()" in note for note in caught.value.__notes__)


def test_non_finite_weights_suggest_lower_learning_rate() -> None:
    """If weights are not finite, NonFiniteError suggests a lower learning rate."""
    p = made(network(), methods.PETRA, optimizer=lambda q: torch.optim.SGD(q, lr=float("inf")))
    with pytest.raises(NonFiniteError, match="lower the learning rate") as caught:
        step(p, 12)
    assert "all weights are finite" not in str(caught.value)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_evaluate_supports_inference_mode(method: Method) -> None:
    """`evaluate` gives the same output in inference mode and for tensors that were made in it."""
    p = made(network(), method)
    expected = p.evaluate(X)
    with torch.inference_mode():
        assert_bitwise_equal(p.evaluate(X).clone(), expected)
        batch = X.clone()
    assert_bitwise_equal(p.evaluate(batch), expected)
    trained(network(), method)


def test_interrupted_step_requires_load() -> None:
    """The next step once kept the old inputs with new targets."""

    class Interrupting(Tensor):
        def clone(self, *args: Any, **kwargs: Any) -> Tensor:
            raise KeyboardInterrupt

    p = made(network(), methods.PETRA)
    p.step(X, Y)
    state = p.state_dict()
    with pytest.raises(KeyboardInterrupt):
        p.step(X, Y.as_subclass(Interrupting))
    with pytest.raises(RuntimeError, match="an exception broke off a step"):
        p.step(X, Y)
    p.load_state_dict(state)
    p.step(X, Y)


def test_load_recovers_from_failed_load() -> None:
    """After a failed load, a valid state loads and training resumes bitwise."""
    data = batches(12)
    p, other = made(network(), methods.PETRA), made(network(), methods.PETRA)
    for x, y in data[:6]:
        p.step(x, y)
        other.step(x, y)
    state = other.state_dict()
    with pytest.raises(CheckpointError):
        p.load_state_dict(made(network(), methods.PETRA, optimizer=adamw).state_dict())
    p.load_state_dict(state)
    for x, y in data[6:]:
        p.step(x, y)
        other.step(x, y)
    assert_bitwise_equal(p.state_dict(), other.state_dict())


@pytest.mark.parametrize("method", [methods.PETRA, methods.BACKPROPAGATION], ids=str)
def test_set_learning_rate_overrides_other_changes(method: Method) -> None:
    """`set_learning_rate` overrides changes of a scheduler and writes a tensor only if its value differs."""
    p = made(network(), method, optimizer=lambda q: torch.optim.SGD(q, lr=torch.tensor(0.1)))
    p.set_learning_rate(0.1)
    optimizer = p.optimizers[0]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    scheduler.step()
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.01)
    version = optimizer.param_groups[0]["lr"]._version
    p.set_learning_rate(0.1)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
    p.set_learning_rate(0.1)
    assert optimizer.param_groups[0]["lr"]._version == version + 1, "a kernel at every step"
    optimizer.param_groups[0]["lr"] = torch.tensor(0.3)
    p.set_learning_rate(0.1)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)


def test_stages_may_share_frozen_modules() -> None:
    """Stages may share a module without trained parameters under every method."""
    shared = nn.Linear(4, 4).double().requires_grad_(False)
    net = network(lambda f: nn.Sequential(f, shared))
    for method in methods.ALL:
        trained(net, method)


def test_deepcopy_of_pipeline_trains_identically() -> None:
    """A deep copy of a pipeline has bitwise the losses and states of the original in later steps."""
    for method in (methods.PETRA, methods.DSP, methods.BACKPROPAGATION):
        p = made(network(lambda f: nn.Sequential(f, nn.BatchNorm1d(4))), method)
        for x, y in batches(6):
            p.step(x, y)
        other = copy.deepcopy(p)
        for x, y in batches(6):
            assert p.step(x, y) == other.step(x, y)
        assert_bitwise_equal(other.state_dict(), p.state_dict())
