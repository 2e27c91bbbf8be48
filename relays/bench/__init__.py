"""`outbox-relay bench`: what the relay reaches on the user's own database and broker, beside one confirm at a time."""
