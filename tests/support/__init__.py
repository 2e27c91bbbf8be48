"""What the tests share: servers, fixtures' helpers, vendored schemas."""
