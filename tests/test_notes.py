"""Notes reach the block that is open where they are written, and no other."""

import pytest

from credo.notes import note, notes


def test_the_last_word_counts_and_blocks_within_have_their_own():
    note("place", 0)  # nobody's
    with notes() as outer:
        note("place", 1)
        note("place", 2)
        with notes() as inner:
            note("place", 3)
        note("other", 4)
    note("place", 5)
    assert outer == {"place": 2, "other": 4}
    assert inner == {"place": 3}


def test_a_block_that_fails_is_closed():
    with pytest.raises(KeyError, match="cause"), notes() as found:
        raise KeyError("cause")
    note("place", 1)
    assert found == {}
