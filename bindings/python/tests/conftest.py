"""Fixtures and helpers of the tests."""

import gc

import gdsync
import pytest

LONG = 30.0


@pytest.fixture
def pd():
    return gdsync.ProtectionDomain()


@pytest.fixture
def pair(pd):
    """Two connected queue pairs."""
    left, right = gdsync.QueuePair(pd), gdsync.QueuePair(pd)
    left.connect(right.endpoint)
    right.connect(left.endpoint)
    return left, right


@pytest.fixture
def collect():
    """Releases everything that can be released."""

    def run():
        for _ in range(3):
            gc.collect()

    return run
