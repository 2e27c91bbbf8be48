"""The state of one `publish`: what became of each message so far, and which call may be made next. Pure."""

from collections.abc import Mapping, Sequence

from relays.publishers import Confirmed, Deferred, Message, Outcome, Paused, Rejected
from relays.publishers.sqs_answers import Fault, Kind
from relays.publishers.sqs_packing import MAX_BYTES, Call, Packing, Queue, make_entry
from relays.schedule import KeyedSchedule

__all__ = ["Batch"]


class Batch:
    """Hands out calls and takes what became of them. Used by one thread, but any may stop it.

    Parameters:
        messages: the batch.
        queues: where each message goes, in the same order; a Fault where its queue can't be used.
        key_window: how many messages of one key may be in flight at once.
        unroutable_pauses: whether a missing queue is its own fault, and not that of the messages for it.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        queues: Sequence[Queue | Fault],
        key_window: int,
        *,
        unroutable_pauses: bool,
    ) -> None:
        self.outcomes: list[Outcome] = [Deferred()] * len(messages)
        self.interruption: Fault | None = None
        """Why SQS as a whole failed, if it did."""
        self.stopped = False
        """No further call is to be made; what has no outcome yet stays Deferred."""
        self._messages = messages
        self._queues = queues
        self._schedule = KeyedSchedule([message.key for message in messages], key_window)
        self._packing = Packing()
        self._unroutable_pauses = unroutable_pauses
        self._refused: dict[Queue, Outcome] = {}

    def next_call(self) -> Call | None:
        """A call that may be made now; None when there is none, for the moment or for good."""
        while not self.stopped:
            self._pack()
            call = self._packing.take()
            if call is None or call.queue not in self._refused:
                return call
            for entry in call.entries:
                self._finish(entry.position, self._refused[call.queue])
        return None

    def settle(self, call: Call, answer: Mapping[int, Outcome] | Fault | None) -> None:
        """Note what became of a call: an outcome for each of its messages, why it failed, or None: it was not made."""
        match answer:
            case None:
                self.stopped = True
            case Fault():
                self._settle_fault(call, answer)
            case _:
                for position, outcome in answer.items():
                    self._finish(position, outcome)

    def _settle_fault(self, call: Call, fault: Fault) -> None:
        match fault.kind:
            case Kind.AWAY | Kind.REFUSED:
                self.stopped = True
                self.interruption = fault
            case Kind.MISSING | Kind.QUEUE:
                self._refused[call.queue] = outcome = self._refusal(fault)
                for entry in call.entries:
                    self._finish(entry.position, outcome)
            case Kind.MESSAGE if len(call.entries) > 1:
                self._packing.split(call)
            case Kind.MESSAGE:
                self._finish(call.entries[0].position, Rejected(_with_sizes(call, fault.reason)))

    def _pack(self) -> None:
        """Put everything that may be sent into calls."""
        while (position := self._schedule.take()) is not None:
            queue = self._queues[position]
            if isinstance(queue, Fault):
                self._finish(position, self._refusal(queue))
                continue
            entry = make_entry(position, self._messages[position], fifo=queue.fifo)
            if entry.size > MAX_BYTES:
                self._finish(
                    position, Rejected(f"SQS takes up to {MAX_BYTES} bytes in a message, this has {entry.size}")
                )
            else:
                self._packing.add(queue, entry)

    def _refusal(self, fault: Fault) -> Outcome:
        """What becomes of a message whose queue can't be used."""
        if fault.kind is Kind.MISSING and not self._unroutable_pauses:
            return Rejected(fault.reason)
        return Paused(fault.reason)

    def _finish(self, position: int, outcome: Outcome) -> None:
        self.outcomes[position] = outcome
        if isinstance(outcome, Confirmed):
            self._schedule.confirmed(position)
        else:
            self._schedule.failed(position)


def _with_sizes(call: Call, reason: str) -> str:
    size, limit = call.entries[0].size, call.queue.limit
    return f"{reason} (it has {size} bytes, the queue's limit is {limit})" if size > limit else reason
