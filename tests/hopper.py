"""Count the kernels of a compiled tick on a Hopper GPU, without having one.

    python -m tests.hopper --precision bf16        JSON: the launches of each branch's function
    python -m tests.hopper --timing 1f1b           the same in asynchronous 1F1B, where a stage has two branches

Inductor decides what it fuses from shapes and from a few properties of the device. So the engine takes its steps on
fake tensors, which have shapes and no content, and Inductor generates its code for fake tensors "on cuda". What it asks
of the device is answered by the stand-ins below. They replace functions of torch for the rest of the process, so run
this module as a program. It cannot measure times, nor tell whether a kernel is right.
"""

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch._dynamo.device_interface as device_interface
import torch._inductor.config as inductor
import torch._inductor.fx_passes.reinplace as reinplace
import triton
from torch import Tensor, fx, nn
from torch._inductor import compile_fx
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.backends.compiler import GPUTarget

from petra_core import Pipeline, checks, methods, models
from petra_core.devices.compiled_steps import CompiledSteps
from petra_core.devices.operations import BranchFunction
from petra_core.inspection import modules
from petra_core.optimizers import sgd
from petra_core.randomness import RandomStream
from petra_core.staleness import lockstep, one_f_one_b

CUDA = torch.device("cuda", 0)
TIMINGS = {"lockstep": lockstep, "1f1b": one_f_one_b}
#: Properties of an H200, from NVIDIA's data sheet.
H200 = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "total_memory": 141 * 10**9,
    "warp_size": 32,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "L2_cache_size": 60 * 2**20,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "gcnArchName": "",
}


class Launches(NamedTuple):
    """What a compiled function asks of the device."""

    triton: int  # kernels that Inductor generated
    library: int  # calls of cuDNN and cuBLAS; a backward of a convolution is one and launches two kernels or more


class _Generated(Exception):  # noqa: N818  # carries the code out of the compiler; nothing has failed
    def __init__(self, code: str) -> None:
        super().__init__()
        self.code = code


def stand_in_for_a_gpu() -> None:
    """Answer what Inductor asks of a device, for the rest of the process."""
    properties = SimpleNamespace(**H200)
    fields = {name: H200[name] for name in DeviceProperties._fields if name in H200}

    def create(device: torch.device) -> DeviceProperties:
        if torch.device(device).type == "cpu":
            return DeviceProperties(type="cpu", index=None, multi_processor_count=2, cc="")
        return DeviceProperties(**{**fields, "type": "cuda", "index": 0, "cc": 90})

    @contextlib.contextmanager
    def nothing(*_: Any, **__: Any) -> Iterator[None]:
        yield

    def replace(owner: Any, name: str, value: Any) -> None:
        if hasattr(owner, name):
            setattr(owner, name, value)

    DeviceProperties.create = classmethod(lambda cls, device: create(device))
    for name, value in {
        "is_available": lambda: True,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (9, 0),
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_, **__: None,
        "synchronize": lambda *_: None,
        "_exchange_device": lambda *_: 0,
        "_maybe_exchange_device": lambda *_: 0,
        "_lazy_init": lambda: None,
        "device": nothing,
        "_DeviceGuard": nothing,
    }.items():
        replace(torch.cuda, name, value)
    torch._C._cuda_getCurrentRawStream = lambda *_: 0
    interface = device_interface.CudaInterface
    interface.Worker.get_device_properties = staticmethod(lambda *_, **__: properties)
    interface.get_compute_capability = staticmethod(lambda *_, **__: 90)
    interface.device = nothing
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._inductor"):
            replace(module, "has_triton", lambda *_, **__: True)
    compile_fx.preserve_rng_state = nothing
    triton.runtime.driver.set_active(_Driver())
    torch._C._conv_determine_backend_memory_format = _memory_format
    replace(torch._subclasses.fake_tensor, "init_gpu_context", lambda *_, **__: None)

    def generate(self: GraphLowering, *_: Any, **__: Any) -> Any:
        code = self.codegen()[0]
        raise _Generated(getattr(code, "value", code))

    GraphLowering.compile_to_module = generate
    GraphLowering._compile_to_module = generate
    call_function = reinplace.graph_call_function

    def scattered(graph: fx.Graph, function: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Give a scatter the layout of its argument; the real one would compute it on the device."""
        if getattr(function, "__name__", "") not in ("_generalized_scatter", "_inplace_generalized_scatter"):
            return call_function(graph, function, *args, **kwargs)
        node = graph.call_function(function, args, kwargs)
        given = args[0].meta["val"]
        with V.fake_mode:
            node.meta["val"] = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
        return node

    reinplace.graph_call_function = scattered
    reinplace._inplace_generalized_scatter.__code__ = (lambda inp, src, view_ops: inp).__code__
    inductor.combo_kernels = True
    inductor.compile_threads = 1
    inductor.fx_graph_cache = False


class _Driver:
    """Triton's driver of a GPU that is not there."""

    utils = None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_: Any) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_benchmarker(self) -> None:
        return None

    def get_empty_cache_for_benchmark(self) -> None:
        return None

    @staticmethod
    def is_active() -> bool:
        return True


def _memory_format(images: Tensor, weight: Tensor, backend: Any) -> torch.memory_format:
    """Return the layout of a convolution's result: cuDNN's rule."""
    del backend
    last = torch.channels_last
    both = (images.is_contiguous(memory_format=last), weight.is_contiguous(memory_format=last))
    return last if any(both) else torch.contiguous_format


def launches(function: BranchFunction) -> Launches:
    """Generate the code of a function for the GPU, and count what it launches."""
    on_cpu = FakeTensorMode()
    with on_cpu:
        inputs = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in function.inputs]
        effects = torch.func.functionalize(function.module, remove="mutations")
        graph = make_fx(effects, decomposition_table=select_decomp_table(), tracing_mode="real")(*inputs)
    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": CUDA}
    graph.recompile()
    on_gpu = FakeTensorMode(allow_non_fake_inputs=True)
    with on_gpu:
        placed = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in function.inputs]
    FakeTensorProp(graph, on_gpu).propagate_dont_convert_inputs(*placed)
    code = _code(graph, placed, on_gpu)
    body = code[code.rindex("def call") :] if "def call" in code else code
    generated = re.findall(r"(triton_\w+)\.run\(", body)
    library = re.findall(r"(extern_kernels\.\w+|torch\.ops\.[\w\.]+)\(", body)
    return Launches(len(generated), len(library))


def _code(graph: fx.GraphModule, inputs: Sequence[Tensor], mode: FakeTensorMode) -> str:
    try:
        with V.set_fake_mode(mode):
            compile_fx.compile_fx_inner(graph, inputs, is_inference=True)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _Generated):
            cause = cause.__cause__ or cause.__context__ or getattr(cause, "inner_exception", None)
        if cause is None:
            raise
        return cause.code
    raise AssertionError("Inductor compiled a graph without generating code")


def tick(
    network: Callable[[], list[Any]],
    batch: int,
    size: int,
    autocast: torch.dtype | None,
    staleness: Callable[[int], Sequence[int]],
) -> list[BranchFunction]:
    """Return the functions of a tick of PETRA, from steps on fake tensors; `staleness` is of so many stages."""
    # What looks at contents cannot be asked of tensors that have none.
    modules.check_residual = lambda residual: None
    checks.PendingLosses.add = lambda *_, **__: None
    checks.PendingLosses.look = lambda *_, **__: None
    RandomStream.__enter__ = lambda self: None
    RandomStream.__exit__ = lambda self, *error: None
    with FakeTensorMode():
        stages = network()
        for module in (module for stage in stages for module in stage.modules()):
            for name, parameter in list(module._parameters.items()):  # `Module.to` cannot exchange fake tensors
                if parameter is not None and parameter.dim() == 4:
                    laid_out = parameter.detach().contiguous(memory_format=torch.channels_last)
                    module._parameters[name] = nn.Parameter(laid_out)
        images = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
        labels = torch.randint(10, (batch,))
        optimizer = sgd(0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
        late = staleness(len(stages))
        pipeline = Pipeline(
            stages, methods.PETRA, optimizer=optimizer, autocast=autocast, staleness=late, inspect=False
        )  # tensors without values cannot be inspected
        ticks = CompiledSteps(pipeline, lambda work: work, lambda module, inputs: lambda *given: ())
        while not ticks.logged:
            ticks.step(images, labels)
        return next(iter(ticks.logged.values()))


def main() -> None:
    """Count the launches of RevNet-18 in the paper's setting, and print them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("float32", "bf16"), default="bf16")
    parser.add_argument("--depth", type=int, default=18, choices=(18, 34, 50), help="of the RevNet (default 18)")
    parser.add_argument("--timing", choices=tuple(TIMINGS), default="lockstep", help="default lockstep")
    options = parser.parse_args()
    functions = tick(
        lambda: models.revnet(options.depth, num_classes=10, width=64),
        batch=64,
        size=32,
        autocast=torch.bfloat16 if options.precision == "bf16" else None,
        staleness=TIMINGS[options.timing],
    )
    stand_in_for_a_gpu()
    print(json.dumps({str(function.branch): launches(function)._asdict() for function in functions}, indent=1))


if __name__ == "__main__":
    main()
