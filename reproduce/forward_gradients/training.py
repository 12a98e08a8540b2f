"""Train a list of stages by forward gradients (`reproduce.forward_gradients.settings` defines the options).

The stages are the blocks. Each block except the last may have an auxiliary network with a loss on its output; the last
block trains by exact backpropagation. A step in reverse mode has two passes:

    upwards     each block from a detached input, with a separate graph; BatchNorm updates its running statistics here
    downwards   each block from the top: target and guess at its output, their product, the gradient along the guess

In forward mode (`Derivative.JVP`) a step is one pass upwards, with one graph at a time. The guess is computed right
after the block's forward, and a `torch.func.jvp` through the blocks above gives the factor.
"""

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from petra_core.buffers import FrozenBuffers
from petra_core.checkpoint import copy_tree
from petra_core.errors import CheckpointError, NonFiniteError
from petra_core.inspection.modules import check_stages
from petra_core.inspection.values import REMEDY, PendingLosses, Shapes, check_shapes
from petra_core.ledger import Ledger, MemoryReport, SavedTensors, payload
from petra_core.optimizers import OptimizerFactory, optimizer_of, set_rate
from petra_core.randomness import RandomStream
from petra_core.stages import HeadStage, Loss, Stage, in_evaluation_mode, sequential
from petra_core.worker import devices_of
from reproduce.forward_gradients.evaluation import BlockEvaluation, Guessed, LocalBlock, dot, factors, trainable
from reproduce.forward_gradients.layers import Layer, layers_of, shares, shift
from reproduce.forward_gradients.settings import Derivative, ForwardGradient, Guess, Space, Target

STATE_FORMAT = "forward gradients 1"
Auxiliary = Callable[[int], nn.Module]


class ForwardGradients:
    """Trains a list of stages by forward gradients. The interface is that of `petra_core.Pipeline`.

    Args:
        stages: The blocks. Each returns one tensor [B, ...]; the last is a `HeadStage`.
        settings: Target, guess, space, scaling and derivative.
        auxiliary: Function from the index of a block to a new auxiliary network, initialised from torch's global
            generator. The network maps the block's output to an output for the loss. Required if target or guess is a
            gradient of an auxiliary network.
        optimizer: Function that is called once per block with the list of the block's and its auxiliary network's
            parameters. With None the weights stay constant, and each parameter's `.grad` holds the last gradient.
        seed: Seed of noise, redrawn networks and dropout. None uses torch's global generators.

    Attributes:
        micro_batches: Number of micro-batches trained so far.
        graphs_peak: Largest number of bytes of graphs and their inputs that were held at the same time.
        cosines: Cosine similarity of target and guess in the last step, [J - 1]: for each block the mean over samples,
            in the space of the settings. NaN in forward mode, where the norm of the target is unknown, and in weight
            spaces for a block without trained parameters.

    Raises:
        ValueError: If the last stage is not a head or is the only stage, auxiliary networks are required and missing,
            or per-sample gradients of a layer are not implemented.
        TypeError: If an element of `stages` is not a stage.

    """

    def __init__(
        self,
        stages: Sequence[Stage],
        settings: ForwardGradient,
        *,
        auxiliary: Auxiliary | None = None,
        optimizer: OptimizerFactory | None = None,
        seed: int | None = None,
    ) -> None:
        self.stages = tuple(stages)
        check_stages(self.stages)
        if len(self.stages) < 2:
            raise ValueError(
                "forward gradients need at least two blocks, got one; the last block trains by backpropagation"
            )
        self.settings = settings
        if auxiliary is None and (settings.has_auxiliary or settings.draws_networks):
            raise ValueError(f"the settings {settings} need auxiliary networks; pass auxiliary=...")
        self._auxiliary = auxiliary
        self.device = devices_of(self.stages)[0]
        head = self.stages[-1].parts()[-1]
        assert isinstance(head, HeadStage)
        self._loss: Loss = head.loss
        self.blocks = [
            self._block(index, stage, optimizer, RandomStream(self.device, seed, index))
            for index, stage in enumerate(self.stages)
        ]
        self.optimizers = [block.optimizer for block in self.blocks if block.optimizer is not None]
        modules = [module for block in self.blocks for module in block.modules.values()]
        self._frozen = FrozenBuffers(nn.ModuleList(modules))
        self._shapes: Shapes = None
        self._losses = _Losses(())
        self.micro_batches = 0
        self._graphs = self.graphs_peak = 0
        self._cosine_sums, self._summed = torch.zeros([len(self.stages) - 1], device=self.device), 0
        self.cosines = torch.full([len(self.stages) - 1], torch.nan)

    def _block(self, index: int, stage: Stage, optimizer: OptimizerFactory | None, stream: RandomStream) -> LocalBlock:
        last = index == len(self.stages) - 1
        weights = self.settings.space is not Space.ACTIVATIONS

        def network(wanted: bool) -> nn.Module | None:
            return self._auxiliary(index).to(self.device) if wanted and not last and self._auxiliary else None

        layers = layers_of(stage) if weights and not last else []
        auxiliary, drawn = network(self.settings.has_auxiliary), network(self.settings.draws_networks)
        block = LocalBlock(index, stage, layers, auxiliary, drawn, None, stream, Ledger(index))
        if optimizer is not None and block.parameters:
            of_modules = ((kind, module.named_parameters()) for kind, module in block.modules.items())
            names = {p: f"{kind}.{name}" for kind, parameters in of_modules for name, p in parameters}
            block.optimizer = optimizer_of(optimizer, index, [(names[p], p) for p in block.parameters])
        block.ledger.set("parameters", payload(p for module in block.modules.values() for p in module.parameters()))
        block.ledger.set("buffers", payload(b for module in block.modules.values() for b in module.buffers()))
        return block

    @property
    def model(self) -> nn.Sequential:
        """The network as a plain model from input to logits, which shares the stages' weights."""
        return sequential(self.stages)

    # --- a step

    def step(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Train on one batch.

        Args:
            inputs: Input of stage 0; images [B, channels, height, width].
            target: Target of the loss; int64 [B] for cross-entropy.

        Returns:
            The network's loss, a detached scalar.

        Raises:
            ValueError: If the shape or dtype differs from earlier batches, or the network has dropout in forward mode.
            TypeError: If a block takes or returns anything but one floating-point tensor.
            NonFiniteError: If the loss is infinite or NaN. On a GPU the error may be raised some steps later.

        """
        self._shapes = check_shapes(self._shapes, self.micro_batches, (inputs, target))
        self._graphs = 0
        for block in self.blocks:
            block.ledger.set("gradients", 0)
            for parameter in block.parameters:
                parameter.grad = None
        self.cosines = torch.full([len(self.blocks) - 1], torch.nan, device=self.device)
        forward_mode = self.settings.derivative is Derivative.JVP
        loss = (self._upwards if forward_mode else self._downwards)(inputs, target)
        self._cosine_sums, self._summed = self._cosine_sums + self.cosines, self._summed + 1
        self.micro_batches += 1
        self._losses.add(self.micro_batches - 1, loss)
        for block in self.blocks:
            block.ledger.set("gradients", payload(p.grad for p in block.parameters if p.grad is not None))
            if block.optimizer is not None:
                block.optimizer.step()
                states = block.optimizer.state.values()
                block.ledger.set("optimizer", payload(v for s in states for v in s.values() if isinstance(v, Tensor)))
        return loss

    def _downwards(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Make a step in reverse mode: record all graphs, then process the blocks from the top."""
        evaluations: list[BlockEvaluation] = []

        def source(evaluation: BlockEvaluation, name: Target | Guess) -> Tensor:
            if name.value == "global":
                return evaluations[evaluation.block.index + 1].pull(name)[0]
            if name.value == "next":
                above = evaluations[evaluation.block.index + 1]
                return above.pull(Target.GLOBAL if above.block is self.blocks[-1] else Target.LOCAL)[0]
            return self._own_gradient(evaluation, name, target)

        x = inputs
        for block in self.blocks[:-1]:
            evaluations.append(self._evaluation(block, x, source))
            x = evaluations[-1].output
        top = self._evaluation(self.blocks[-1], x, source)
        loss = self._last(top, target)
        evaluations.append(top)
        kept: list[Guessed] = []
        while len(evaluations) > 1:  # a block's graph is freed as soon as no lower block needs it
            evaluation = evaluations[-2]
            self._train_auxiliary(evaluation, target)
            kept += self._follow(evaluation, self._compare(evaluation))
            self._end(evaluation)
            evaluations.pop()
        if kept:
            self._follow_together(kept, torch.stack([guessed.product for guessed in kept]).sum(0))
        return loss

    def _upwards(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Make a step in forward mode, with one graph at a time."""

        def source(evaluation: BlockEvaluation, name: Target | Guess) -> Tensor:
            return self._own_gradient(evaluation, name, target)

        x, unknown = inputs, torch.full([1], torch.nan, device=self.device)
        kept: list[Guessed] = []
        tangents: dict[Layer, Tensor] = {}
        for block in self.blocks[:-1]:
            evaluation = self._evaluation(block, x, source)
            self._train_auxiliary(evaluation, target)
            if self.settings.space is Space.ALL_WEIGHTS:
                for layer, guesses in self._guesses(evaluation):
                    assert layer is not None
                    for name, guess in guesses.items():
                        tangents[layer] = tangents.get(layer, 0) + self._shift(evaluation, layer, name, guess)
                        kept.append(Guessed(guess, unknown, unknown, layer, name))
            else:
                self._follow(evaluation, self._push(evaluation, target))
            self._end(evaluation)
            x = evaluation.output.detach()
            del evaluation  # frees its graph before the next one is recorded
        if kept:
            derivatives = self._derivative(range(len(self.blocks)), None, inputs, target, tangents)
            self._follow_together(kept, derivatives.sum()[None])
        top = self._evaluation(self.blocks[-1], x, source)
        return self._last(top, target)

    def _evaluation(
        self, block: LocalBlock, x: Tensor, source: Callable[[BlockEvaluation, Any], Tensor]
    ) -> BlockEvaluation:
        with contextlib.ExitStack() as stack:
            if block.graph_bytes is None:
                accounted = (x, *block.stage.parameters(), *block.stage.buffers())
                saved = stack.enter_context(SavedTensors(accounted))
            stack.enter_context(block.stream)
            if self.settings.guess is Guess.REDRAWN and block.drawn is not None and self._auxiliary is not None:
                block.drawn = self._auxiliary(block.index).to(self.device)
            evaluation = BlockEvaluation(block, x, source)
        if block.graph_bytes is None:
            block.graph_bytes = saved.bytes
        block.ledger.set("inputs", payload([evaluation.input]))
        block.ledger.set("graph", block.graph_bytes)
        self._graphs += block.graph_bytes + payload([evaluation.input])
        self.graphs_peak = max(self.graphs_peak, self._graphs)
        return evaluation

    def _end(self, evaluation: BlockEvaluation) -> None:
        self._graphs -= (evaluation.block.graph_bytes or 0) + payload([evaluation.input])
        evaluation.block.ledger.set("inputs", 0)
        evaluation.block.ledger.set("graph", 0)

    def _last(self, top: BlockEvaluation, target: Tensor) -> Tensor:
        """Compute the loss and the last block's exact gradients, and store the global gradient at its input."""
        loss: Tensor = self._loss(top.output, target)
        parameters = trainable(top.block.stage)
        below, *gradients = torch.autograd.grad(loss, [top.input, *parameters])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        top.note(Target.GLOBAL, below)
        self._end(top)
        return loss.detach()

    # --- guesses and targets

    def _own_gradient(self, evaluation: BlockEvaluation, name: Target | Guess, target: Tensor) -> Tensor:
        """Return the gradient of the block's own auxiliary loss at its output.

        For `Guess.FIXED` and `Guess.REDRAWN` the loss is that of the drawn network.
        """
        network = evaluation.block.auxiliary if name.value == "local" else evaluation.block.drawn
        assert network is not None
        output = evaluation.output.detach().requires_grad_()
        with evaluation.block.stream:
            loss = self._loss(network(output), target)
        trained = name.value == "local" and self.settings.has_auxiliary
        parameters = trainable(network) if trained else []
        activation, *gradients = torch.autograd.grad(loss, [output, *parameters])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return activation

    def _train_auxiliary(self, evaluation: BlockEvaluation, target: Tensor) -> None:
        """Compute the gradients of the block's auxiliary network, unless target or guess have already done so."""
        if self.settings.has_auxiliary:
            evaluation.at_output(Target.LOCAL)

    def _noise(self, block: LocalBlock, like: Tensor) -> Tensor:
        with block.stream:
            if self.settings.guess is Guess.GAUSSIAN:
                return torch.randn_like(like)
            return torch.randint_like(like, 2).mul_(2).sub_(1)

    def _guesses(self, evaluation: BlockEvaluation) -> Iterator[tuple[Layer | None, dict[str, Tensor]]]:
        """Yield the guesses for each layer of a block by parameter, or that for the block's output, without a layer."""
        guess, space = self.settings.guess, self.settings.space
        if space is Space.ACTIVATIONS:
            noise = self._noise(evaluation.block, evaluation.output) if guess.is_noise else None
            yield None, {"": evaluation.at_output(guess) if noise is None else noise}
            return
        for layer in evaluation.block.layers:
            count = len(evaluation.seen.features[layer.name]) if space is Space.WEIGHTS else 1
            if guess.is_noise:
                guesses = {
                    name: self._noise(evaluation.block, parameter.detach().expand(count, *parameter.shape))
                    for name, parameter in layer.parameters.items()
                }
            else:
                guesses = self._shares(evaluation, layer, guess)
            yield layer, {name: value for name, value in guesses.items() if layer.parameters[name].requires_grad}

    def _shares(self, evaluation: BlockEvaluation, layer: Layer, source: Target | Guess) -> dict[str, Tensor]:
        """Return a gradient of a layer's parameters: each sample's share [B, ...], or their sum [1, ...]."""
        gradients = evaluation.pull(source)[1][layer.name]
        parts = shares(layer, evaluation.seen.features[layer.name], gradients)
        evaluation.block.ledger.add("gradients", count := 2 * payload(parts.values()))  # of target and guess
        evaluation.block.ledger.add("gradients", -count)
        if self.settings.space is Space.WEIGHTS:
            return parts
        return {name: value.sum(0, keepdim=True) for name, value in parts.items()}

    def _compare(self, evaluation: BlockEvaluation) -> Iterator[Guessed]:
        """Yield the guesses with their products, from the target that reverse mode has computed."""
        target = self.settings.target
        for layer, guesses in self._guesses(evaluation):
            wanted = {"": evaluation.at_output(target)} if layer is None else self._shares(evaluation, layer, target)
            for name, guess in guesses.items():
                t = wanted[name]
                yield Guessed(guess, dot(t, guess), dot(t, t), layer, name)

    def _push(self, evaluation: BlockEvaluation, target: Tensor) -> Iterator[Guessed]:
        """Yield the guesses with their products, each from one jvp."""
        index = evaluation.block.index
        end = {Target.LOCAL: index + 1, Target.NEXT: index + 2, Target.GLOBAL: len(self.blocks)}[self.settings.target]
        x, output = evaluation.input.detach(), evaluation.output.detach()
        for layer, guesses in self._guesses(evaluation):
            for name, guess in guesses.items():
                if layer is None:
                    products = self._derivative(range(index + 1, end), guess, output, target, {})
                else:
                    tangent = {layer: self._shift(evaluation, layer, name, guess)}
                    products = self._derivative(range(index, end), None, x, target, tangent)
                product = products if self.settings.space is not Space.BATCH_WEIGHTS else products.sum()[None]
                yield Guessed(guess, product, torch.full_like(product, torch.nan), layer, name)

    def _shift(self, evaluation: BlockEvaluation, layer: Layer, name: str, guess: Tensor) -> Tensor:
        """Return the change of a layer's output, [B, ...], if one of its parameters changes by the guess."""
        features = evaluation.seen.features[layer.name]
        return shift(layer, features, {name: guess.expand(len(features), *guess.shape[1:])})

    @torch.no_grad()
    def _derivative(
        self, blocks: range, tangent: Tensor | None, x: Tensor, target: Tensor, tangents: Mapping[Layer, Tensor]
    ) -> Tensor:
        """Return the directional derivative of each sample's loss, divided by B, from one `torch.func.jvp`: [B].

        Args:
            blocks: Indices of the blocks to evaluate. If the last block is not among them, the loss is auxiliary.
            tangent: Tangent of `x`, [B, ...]; None means zero.
            x: Input of the first of these blocks, or output of the block below if there are none.
            target: Target of the loss.
            tangents: Tangents of the outputs of layers of these blocks.

        Raises:
            ValueError: If random numbers are drawn, which would differ from those of the evaluation.

        """
        final = blocks.stop - 1  # the block that has the loss
        auxiliary = None if final == len(self.blocks) - 1 else self.blocks[final].auxiliary
        layers = list(tangents)

        def losses(start: Tensor, *changes: Tensor) -> Tensor:
            with _add_to_outputs({layer.module: change for layer, change in zip(layers, changes, strict=True)}):
                for index in blocks:
                    start = self.stages[index](start)
            output = start if auxiliary is None else auxiliary(start)
            of_samples: Tensor = vmap(lambda o, t: self._loss(o[None], t[None]))(output, target)
            return of_samples / len(target)

        primals = (x, *(torch.zeros_like(tangents[layer]) for layer in layers))
        directions = (torch.zeros_like(x) if tangent is None else tangent, *(tangents[layer] for layer in layers))
        drawing = RandomStream(self.device, None, 0)
        # Fused attention does not support forward mode.
        with self._frozen.freeze(), drawing, sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            # In the first jvp of a process torch uses torch.jit.script, and warns that this is deprecated. The category
            # of the warning depends on the version.
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")
            derivatives: Tensor = jvp(losses, primals, directions)[1]
        if drawing.drawn is not None:
            raise ValueError(
                "forward mode does not support dropout, because a jvp draws other masks than the evaluation; use the "
                "derivative 'projection', or no dropout"
            )
        return derivatives

    # --- the update

    def _follow(self, evaluation: BlockEvaluation, guesses: Iterator[Guessed]) -> list[Guessed]:
        """Set a block's gradients along its guesses.

        Returns:
            In the space ALL_WEIGHTS all guesses, whose factor depends on the guesses of the other blocks; else none.

        """
        kept = []
        sums: list[Tensor] = []  # for each tensor of the block, <T, G>, ||T||^2 and ||G||^2: [3, n]
        for guessed in guesses:
            squared = guessed.squared
            sums.append(torch.stack([guessed.product, guessed.target_squared, squared]))
            if self.settings.space is Space.ALL_WEIGHTS:
                kept.append(guessed)
                continue
            along = guessed.along(factors(guessed.product, squared, self.settings.scaling))
            if guessed.layer is None:
                evaluation.train(along)
            else:
                guessed.layer.parameters[guessed.name].grad = along.sum(0)
        if not sums:  # a weight space, and a block without trained parameters
            return kept
        product, target, guess = torch.stack(sums).sum(0)
        lengths = (target.sqrt() * guess.sqrt()).clamp_min(torch.finfo(product.dtype).tiny)
        self.cosines[evaluation.block.index] = (product / lengths).mean()
        return kept

    def _follow_together(self, guesses: Sequence[Guessed], product: Tensor) -> None:
        """Set the gradients in the space ALL_WEIGHTS: scale all guesses by one factor, from their total product [1]."""
        squared = torch.stack([guessed.squared for guessed in guesses]).sum(0)
        factor = factors(product, squared, self.settings.scaling)
        for guessed in guesses:
            assert guessed.layer is not None
            guessed.layer.parameters[guessed.name].grad = guessed.along(factor).sum(0)

    # --- the remaining interface of a pipeline

    def drain(self) -> None:
        """Do nothing, since no micro-batch is ever in flight."""

    @torch.no_grad()
    def evaluate(self, inputs: Tensor) -> Tensor:
        """Return the network's output (logits) with the current weights, in evaluation mode."""
        with in_evaluation_mode(self.stages):
            output: Tensor = self.model(inputs)
        return output

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use `learning_rate` for every parameter, starting with the next step."""
        for optimizer in self.optimizers:
            set_rate(optimizer, learning_rate)

    def memory(self) -> MemoryReport:
        """Return the bytes of each block by kind, as if each block were on a separate device.

        Auxiliary networks are counted with their block. `gradients` includes the per-sample gradients of the largest
        layer. Temporary tensors of a jvp are not counted.
        """
        return MemoryReport(copy.deepcopy(tuple(block.ledger for block in self.blocks)))

    def mean_cosines(self) -> tuple[int, list[float | None]]:
        """Return the number of steps since the last call and the mean of `cosines` over them, None if unknown."""
        steps, sums = self._summed, self._cosine_sums.tolist()
        self._cosine_sums, self._summed = torch.zeros_like(self._cosine_sums), 0
        return steps, [None if math.isnan(total) or not steps else total / steps for total in sums]

    def check_finite(self) -> None:
        """Check that all losses so far and all weights are finite.

        Raises:
            NonFiniteError: If one is not.

        """
        self._losses.look()
        for block in reversed(self.blocks):
            for name, parameter in block.stage.named_parameters():
                if not torch.isfinite(parameter).all():
                    raise NonFiniteError(
                        f"{name} of block {block.index} is not finite after {self.micro_batches} updates; {REMEDY}",
                        micro_batch=self.micro_batches - 1,
                        stage=block.index,
                    )

    def state_dict(self) -> dict[str, Any]:
        """Return a copy on the CPU of all state that a bitwise resume needs, as tensors and plain data.

        Without a seed, the caller has to save the state of torch's global generators.

        Raises:
            NonFiniteError: If a loss that was not checked before is not finite.

        """
        self._losses.look()
        state: dict[str, Any] = copy_tree(
            {
                "format": STATE_FORMAT,
                "settings": str(self.settings),
                "micro_batches": self.micro_batches,
                "shapes": self._shapes,
                "cosines": [self._cosine_sums, self._summed],
                "workers": [
                    {
                        **{name: module.state_dict() for name, module in block.modules.items()},
                        "optimizer": None if block.optimizer is None else block.optimizer.state_dict(),
                        "random": block.stream.state,
                    }
                    for block in self.blocks
                ],
            }
        )
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of a training with the same stages and settings.

        Raises:
            CheckpointError: If the state does not match.

        """
        expected = {"format": STATE_FORMAT, "settings": str(self.settings)}
        for key, value in expected.items():
            if state.get(key) != value:
                raise CheckpointError(f"the state has {key} {state.get(key)!r}, this training has {value!r}")
        if len(state["workers"]) != len(self.blocks):
            raise CheckpointError(f"the state has {len(state['workers'])} blocks, this training {len(self.blocks)}")
        state = copy_tree(state)
        for block, saved in zip(self.blocks, state["workers"], strict=True):
            try:
                for name, module in block.modules.items():
                    module.load_state_dict(saved[name])
                if block.optimizer is not None:
                    block.optimizer.load_state_dict(saved["optimizer"])
                block.stream.load(saved["random"])
            except (KeyError, ValueError, RuntimeError) as error:
                raise CheckpointError(f"the state of block {block.index} does not fit: {error}") from error
        self.micro_batches, self._shapes = state["micro_batches"], state["shapes"]
        sums, self._summed = state["cosines"]
        self._cosine_sums = sums.to(self.device)
        self._losses = _Losses(())


class _Losses(PendingLosses):
    """Losses of a network without workers: an error cannot name the stage that a non-finite loss comes from."""

    def error(self, micro_batch: int, loss: float, current: int | None) -> NonFiniteError:
        del current
        message = f"the loss of micro-batch {micro_batch} is {loss}; {REMEDY}"
        return NonFiniteError(message, micro_batch=micro_batch, stage=None)


@contextlib.contextmanager
def _add_to_outputs(changes: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Add a tensor to the output of each of these modules in a context."""

    def hook(change: Tensor) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        return lambda module, inputs, output: output + change

    with contextlib.ExitStack() as stack:
        for module, change in changes.items():
            stack.callback(module.register_forward_hook(hook(change)).remove)
        yield
