"""The brokers that the demo can use, each as the environment in which its clients find it."""

import importlib.util

from outbox.errors import MissingExtra
from relays.demo.processes import Child, Family, clean_environment, python
from relays.sources import load

__all__ = ["check_extras", "find_rabbitmq", "moto_environment", "start_sqs"]

SETTLE_IN = 5.0
"""Seconds for RabbitMQ to close a connection."""


def check_extras() -> None:
    """Raise MissingExtra unless what the embedded SQS is made of is installed."""
    for package in ("boto3", "moto", "flask"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(
                f"--target sqs: the embedded SQS needs the package {package}: run `pip install 'outbox-relay[demo]'`"
            )


def start_sqs(family: Family) -> Child:
    """Start moto's server; the first line it prints is its port."""
    return family.start("sqs", python("relays.demo.sqs_server"), clean_environment())


def moto_environment(port: str) -> dict[str, str]:
    """Where boto3 finds moto's server, and nothing of the user's own: no profile, no credentials, no proxy."""
    return {
        "AWS_ENDPOINT_URL_SQS": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def find_rabbitmq() -> dict[str, str]:
    """Where the broker of OUTBOX_RABBITMQ_URL is, once it has let us in.

    Raises ConfigurationError when the setting is missing or wrong, MissingExtra without pika, PublisherError when the
    broker refuses us or can't be reached.
    """
    if importlib.util.find_spec("pika") is None:
        raise MissingExtra("--target rabbitmq needs the package pika: run `pip install 'outbox-relay[rabbitmq]'`")
    from relays.publishers import Options
    from relays.publishers.rabbitmq import RabbitMQPublisher, RabbitMQSettings

    # The default exchange: the demo's queue is its own, whatever the user's relays publish to.
    settings = load(RabbitMQSettings, {"rabbitmq_exchange": ""}, None, "rabbitmq")
    publisher = RabbitMQPublisher(settings, Options())
    publisher.open()
    publisher.close(SETTLE_IN)
    return {"OUTBOX_RABBITMQ_URL": settings.url.get_secret_value()}
