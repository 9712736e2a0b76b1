"""The pool's state machine again, over a real ledger: each crash opens the file anew, and it is sound at the end."""

import pytest
from hypothesis import settings

from aurora_p2p.store.proof import problems_of
from aurora_p2p.store.reading import open_copy
from tests.lease.test_pool_machine import PoolMachine
from tests.store.books import DurableWorld

SMALL = settings(max_examples=15, stateful_step_count=30, deadline=None)
"""A commit waits for the disk: about 500 of them, in seconds."""


class BooksMachine(PoolMachine):
    make_world = DurableWorld

    def teardown(self):
        self.world.restart()
        with open_copy(self.world.path) as reading:
            assert list(problems_of(reading, 1)) == []
        self.world.close()


@pytest.mark.slow
class TestBooks(BooksMachine.TestCase):
    """Any interleaving with reopened files admits each sample at most once."""

    settings = SMALL
