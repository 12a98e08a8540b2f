"""The backends over which the processes of a run talk: Gloo, or NCCL where every process has a GPU of its own.

Two kinds of traffic. Decisions and small objects (stop, save, who has which stages) always go over Gloo and the CPU:
with NCCL each would wait for the GPU. Messages between stages, and gradients between replicas, go from GPU to GPU over
NCCL. That refuses two processes on one GPU, and a process without one; then they go through the CPU's memory, over
Gloo, and a line says so.

A peer that dies is noticed by Gloo at once, from the closed connection, and by NCCL through torch's watchdog, which
ends this process when its patience is over; `reproduce.teams.launch` then starts all again. (No machine with several
GPUs has run this: what is written here of NCCL is from torch's documentation.)

So a CUDA process joins with both (`cpu:gloo,cuda:nccl`; torch makes NCCL's communicators only when they are used), all
tell each other where they are, and each decides from the same list, by a pure function.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Place", "Wiring", "backend", "decide"]

Place = tuple[str, str]  # a machine's name, and the device of a process there: cpu, cuda:0 …


@dataclass(frozen=True)
class Wiring:
    """The decision over what messages go.

    Attributes:
        nccl: whether messages go from GPU to GPU.
        note: what a person should know of it; may be empty.

    """

    nccl: bool
    note: str = ""


def backend(device_type: str, *, nccl_available: bool) -> str:
    """Backend for `init_process_group`, for a process with a device of this type."""
    return "cpu:gloo,cuda:nccl" if device_type == "cuda" and nccl_available else "gloo"


def decide(places: Sequence[Place], *, nccl_available: bool) -> Wiring:
    """The wiring of processes in these places.

    Args:
        places: of each process.
        nccl_available: whether torch was built with it, everywhere.

    """
    on_gpu = [place for place in places if place[1].startswith("cuda")]
    if not on_gpu:
        return Wiring(nccl=False)
    through = "messages between them go through the CPU's memory, over Gloo"
    if len(on_gpu) < len(places):
        return Wiring(False, f"{len(places) - len(on_gpu)} of {len(places)} processes have no GPU: {through}")
    (_, device), most = Counter(places).most_common(1)[0]
    if most > 1:
        return Wiring(False, f"{most} processes share {device}, which NCCL refuses: {through}")
    if not nccl_available:
        return Wiring(False, f"this build of torch has no NCCL: {through}")
    return Wiring(nccl=True)
