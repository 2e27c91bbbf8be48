"""The private RabbitMQ that fault tests stop and kill."""

import pika
import pytest

from tests.support.rabbitmq import PrivateRabbitMQ, connect

pytestmark = [pytest.mark.rabbitmq, pytest.mark.slow]


def test_a_killed_broker_comes_back_with_what_it_confirmed() -> None:
    with PrivateRabbitMQ() as broker:
        with connect(broker.url) as connection:
            channel = connection.channel()
            channel.queue_declare("kept", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "kept", b"still here", pika.BasicProperties(delivery_mode=2))
        broker.keep_declared()
        broker.kill()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(broker.url)
        broker.start()
        with connect(broker.url) as connection:
            assert connection.channel().basic_get("kept", auto_ack=True)[2] == b"still here"
        assert broker.ctl("list_queues", "name", "--no-table-headers").split() == ["kept"]
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(broker.url)
