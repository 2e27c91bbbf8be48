# The relay, for both brokers: docker run -e OUTBOX_DATABASE_URL=... outbox-relay --target rabbitmq
# Written where no container engine was at hand; its commands have been run one by one, not as an image.

FROM python:3.12-slim AS build
WORKDIR /source
RUN python -m venv /opt/outbox-relay
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY outbox outbox
COPY relays relays
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && /opt/outbox-relay/bin/pip install --no-cache-dir --constraint constraints.txt \
        "outbox-relay[binary,rabbitmq,sqs] @ file://$(echo /wheels/*.whl)"

FROM python:3.12-slim
COPY --from=build /opt/outbox-relay /opt/outbox-relay
ENV PATH=/opt/outbox-relay/bin:$PATH
USER 10001:10001
# In exec form the relay itself is process 1: SIGTERM reaches it, and it finishes what is in flight.
ENTRYPOINT ["outbox-relay"]
