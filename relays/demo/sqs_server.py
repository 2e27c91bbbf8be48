"""SQS for the demo: moto's server as a process of its own, `python -m relays.demo.sqs_server`, until SIGTERM.

Says its port in one line on stdout.
"""

import logging
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

__all__ = ["OneAtATime", "count_cheaply", "main"]

COUNTERS = (
    "approximate_number_of_messages",
    "approximate_number_of_messages_delayed",
    "approximate_number_of_messages_not_visible",
)


class OneAtATime:
    """A WSGI application that handles one request after the other.

    moto's server handles them in threads, but its queue is not made for that: it deletes by putting a new list in the
    place of the old one, and a message that another request adds to the old list meanwhile is gone.
    """

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        with self._lock:
            return list(self._application(environ, start_response))


def count_cheaply(queue_class: type) -> None:
    """Have moto's queues say how many messages they hold without looking at each of them.

    moto computes these attributes several times for every message that comes or goes, and nobody asks for them here:
    with 100 messages in the queue that is nine tenths of its time.
    """
    for name in COUNTERS:
        setattr(queue_class, name, property(lambda queue: len(queue._messages)))  # noqa: SLF001 (it has no other name)


def main() -> None:
    """Serve on a free port of 127.0.0.1 until SIGTERM."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # slow, and an extra
    from moto.sqs.models import Queue
    from werkzeug.serving import make_server

    count_cheaply(Queue)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it would log every request
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
