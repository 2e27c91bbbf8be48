"""One worker: claim lanes, read their events, publish them, settle what became of them. A plain sequential loop."""

from dataclasses import dataclass

__all__ = ["Config"]


@dataclass(frozen=True, slots=True)
class Config:
    """What a relay needs to know besides its database and its publisher. Times are seconds."""

    target: str
    outboxes: tuple[str, ...] = ("default",)
    batch_size: int = 500
    concurrency: int = 4
    lease: float = 30.0
    poll: float = 5.0
    max_attempts: int = 10
    backoff_min: float = 1.0
    backoff_max: float = 300.0
    grace: float = 20.0
    startup_timeout: float = 30.0
    drain: bool = False
    take_over: bool = False
