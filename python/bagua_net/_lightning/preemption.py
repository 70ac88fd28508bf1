# SPDX-License-Identifier: MIT
"""Lightning's signal handlers at the beginning of a batch, of the same one on all ranks.

Lightning's handlers of SIGTERM and of SLURM's requeue signal call collectives, and the ranks get a signal at different
places: one in a step's collectives, one in a backward pass, where no handler runs. The collectives of the handlers
would meet those of the step. So during training a signal is only noted. In each batch the ranks tell each other what
they have noted, by an all_reduce that nobody waits for before the next batch, and then all of them call the handler. It
is enough that one rank gets the signal.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import torch
import torch.distributed as dist

from ..algorithms._groups import Groups

#: Where both packages, lightning.pytorch and pytorch_lightning, have the class of their handlers.
_MODULE = ".trainer.connectors.signal_connector"


class Preemption:
    """Of one process. Ranks call the methods in the same order."""

    def __init__(self) -> None:
        self._groups = Groups()
        self._group: dist.ProcessGroup | None = None
        self._meets = False
        self._handlers: dict[int, Any] = {}  # Lightning's, which wait; ranks may have different ones
        self._noted: set[int] = set()
        self._told = torch.zeros(signal.NSIG, dtype=torch.uint8)  # what any rank has noted, once this is over:
        self._exchange: Any = None

    def begin(self) -> None:
        """Training begins. From now on signals wait for :meth:`meet`, where there is more than one rank."""
        if dist.get_world_size() > 1 and threading.current_thread() is threading.main_thread():
            self._group = self._groups.on_host(dist.group.WORLD)
            self.resume()

    def resume(self) -> None:
        """After :meth:`pause`."""
        self._meets = self._group is not None
        for number in signal.valid_signals() if self._meets else ():
            handler = signal.getsignal(number)
            if type(handler).__module__.endswith(_MODULE):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def _note(self, number: int, _: Any) -> None:
        self._noted.add(number)

    def meet(self) -> None:
        """At the beginning of a batch: calls the handlers of what any rank had noted at that of the batch before."""
        if not self._meets:
            return
        self._handle()
        mine, self._noted = self._noted, set()
        self._told.zero_()[sorted(mine)] = 1
        self._exchange = dist.all_reduce(self._told, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def _handle(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.wait()
        for number in self._told.nonzero().flatten().tolist():
            if number in self._handlers:
                self._handlers[number](number, None)

    def pause(self) -> None:
        """Calls the handlers of what any rank has noted. From now on they run at once, as Lightning has it."""
        self.meet()
        self._handle()
        self.stop()
        for number in self._noted:  # just now
            os.kill(os.getpid(), number)
        self._noted = set()

    def stop(self) -> None:
        """The same without the other ranks, where something has failed."""
        self._meets = False
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, handler)
        self._exchange = None

    def end(self) -> None:
        """Training has ended, on all ranks."""
        self.pause()
        self._groups.give_back()
        self._group = None
