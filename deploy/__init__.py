"""A recommendation as files that go to production."""
