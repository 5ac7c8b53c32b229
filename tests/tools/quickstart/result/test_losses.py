"""losses.py: the trainer's log as a curve."""

from pathlib import Path

import pytest

from swift_diloco.tools.quickstart.result import losses
from swift_diloco.tools.quickstart.result.losses import Point
from tests.tools.quickstart import samples


def test_the_curve_is_what_was_logged_without_the_summary(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "logging.jsonl", samples.log_rows())
    points = losses.read_points(tmp_path)
    assert points == samples.points()
    assert losses.first_loss(points) == 7.0
    assert losses.final_loss(points) == pytest.approx(7.0 - 0.1 * 24.5)


def test_a_step_that_was_made_twice_shows_as_it_was_made_last() -> None:
    first, second = [Point(1, 5.0), Point(2, 4.0), Point(3, 3.5)], [Point(3, 3.4), Point(4, 3.0)]
    assert losses.joined(first, second) == [Point(1, 5.0), Point(2, 4.0), Point(3, 3.4), Point(4, 3.0)]


def test_rows_without_step_or_loss_are_passed_over() -> None:
    rows: list[samples.Row] = [{"eval_loss": 1.0, "iteration": "3/9"}, {"loss": 2.0}, {"loss": 1.5, "iteration": "4/9"}]
    assert losses.parse_points(rows) == [losses.Point(4, 1.5)]


def test_the_log_of_the_transformers_trainer_is_read_too() -> None:
    rows: list[samples.Row] = [{"loss": 1.5, "global_step/max_steps": "4/9"}, {"train_loss": 1.2, "epoch": 1.0}]
    assert losses.parse_points(rows) == [losses.Point(4, 1.5)]
