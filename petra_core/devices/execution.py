"""Execute the actions of a step, one after the other.

Other executors run some actions concurrently (`petra_core.devices`), or record when actions run.
"""

import contextlib
from collections.abc import Callable, Sequence

import torch

from petra_core.messages import Message
from petra_core.staleness import Action
from petra_core.worker import Worker

Sent = list[tuple[int, Message]]  # pairs of the receiving stage and the message
Act = Callable[[Worker, Action, Sent], None]


class SequentialExecutor:
    """An executor that runs one action after the other.

    Attributes:
        streams: CUDA streams in which actions run, if not in the caller's.
        after_action: Function that is called as (worker, action, sent) after each action, and returns the messages to
            send instead; None for no function.

    """

    streams: Sequence[torch.cuda.Stream] = ()
    after_action: Callable[[Worker, Action, Sent], Sent] | None = None

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for actions that may run concurrently. All have finished when the context ends."""
        return contextlib.nullcontext()

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> None:
        """Run an action. If it raises an exception, add a note that names the action.

        Args:
            act: Function that performs the action.
            worker: The worker of the stage.
            action: The action.
            sent: List that receives the messages to stages of this process.

        """
        try:
            new: Sent = []
            act(worker, action, new)
            sent += new if self.after_action is None else self.after_action(worker, action, new)
        except Exception as error:
            if "modified by an inplace operation" in str(error):
                error.add_note("a later forward wrote the tensor; replace such a buffer (self.mean = new_mean) instead")
            error.add_note(f"in {action.kind.name.lower()} {action.number} of stage {worker.index}")
            raise

    def waiting(self, worker: Worker, step: int) -> contextlib.AbstractContextManager[None]:
        """Return a context for the time that a worker waits for messages from other processes.

        Args:
            worker: The worker.
            step: Number of the step, which is that of the last micro-batch that entered.

        """
        return contextlib.nullcontext()
