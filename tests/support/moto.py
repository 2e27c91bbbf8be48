"""SQS for the tests: moto's server, in a thread of this process."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.requirements import unavailable

__all__ = ["aws_environment", "forget_everything", "running_moto"]


@contextmanager
def running_moto() -> Iterator[str]:
    """A moto server on a free port; yields its address."""
    try:
        from moto.server import ThreadedMotoServer  # slow to import: only tests that need it pay
    except ImportError as error:
        unavailable(f"the SQS tests need moto's server ({error}): run `pip install 'outbox-relay[demo]'`")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def aws_environment(endpoint: str) -> dict[str, str]:
    """The environment in which boto3 talks to this endpoint and looks nowhere else for settings or credentials."""
    return {
        "AWS_ENDPOINT_URL_SQS": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def forget_everything(endpoint: str) -> None:
    """Remove every queue, so that a test finds nothing of the one before."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST"), timeout=10).close()
