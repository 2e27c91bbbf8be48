"""The demo's consumer, a process of its own: `python -m relays.demo.consumer TARGET QUEUE LEDGER`.

Makes the queue, says so in one line on stdout, and moves messages into the ledger until SIGTERM.
"""

import signal
import sys
import threading
from pathlib import Path

from relays.demo.ledger import Ledger
from relays.demo.queues import Queue, open_queue

__all__ = ["consume", "main"]

BETWEEN_LOOKS = 0.05
"""Seconds between two looks into an empty queue."""


def consume(queue: Queue, ledger: Ledger, stop: threading.Event) -> None:
    """Receive, keep, acknowledge, in this order: a message is never forgotten before it is kept."""
    while not stop.is_set():
        if deliveries := queue.receive():
            ledger.write((delivery.idempotency_key, delivery.body) for delivery in deliveries)
            queue.acknowledge(deliveries)
        else:
            ledger.write_empty()
            stop.wait(BETWEEN_LOOKS)


def main() -> None:
    """Run until SIGTERM, or SIGQUIT: that is how a guardian ends what a killed demo has left behind."""
    target, name, path = sys.argv[1:]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, lambda *_: stop.set())
    with open_queue(target, name) as queue:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        consume(queue, Ledger(Path(path)), stop)


if __name__ == "__main__":
    main()
