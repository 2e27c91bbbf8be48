"""`outbox-relay demo`: the whole product on one machine, without Docker and without anything installed beside it."""
