"""Memory of a policy: numbers of hosts that were too few."""

from __future__ import annotations

from penstock.control.diagnose.peaks import Lessons


def test_a_lesson_learnt_again_lasts_twice_as_long() -> None:
    lessons = Lessons(memory_ms=1_000.0)
    lessons.note(0.0, hosts=3, rate=100.0)
    assert lessons.forbid(999.0, 3, 100.0)
    assert not lessons.forbid(1_000.0, 3, 100.0)
    lessons.note(1_500.0, hosts=3, rate=100.0)
    assert lessons.forbid(3_499.0, 3, 100.0)
    assert not lessons.forbid(3_500.0, 3, 100.0)


def test_long_after_it_was_forgotten_a_lesson_is_new() -> None:
    lessons = Lessons(memory_ms=1_000.0)
    lessons.note(0.0, hosts=3, rate=100.0)
    lessons.note(9_000.0, hosts=3, rate=100.0)
    assert not lessons.forbid(10_001.0, 3, 100.0)


def test_a_much_higher_load_teaches_something_else() -> None:
    lessons = Lessons(memory_ms=1_000.0)
    lessons.note(0.0, hosts=3, rate=100.0)
    lessons.note(1_500.0, hosts=3, rate=200.0)
    assert not lessons.forbid(2_600.0, 3, 200.0)
    assert not lessons.forbid(2_000.0, 3, 150.0)
