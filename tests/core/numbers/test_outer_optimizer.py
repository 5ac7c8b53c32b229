"""The outer optimizer against a scalar float32 reference, torch and a table computed by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from swift_diloco.core.numbers import outer_optimizer as outer_module
from swift_diloco.core.numbers.outer_optimizer import OuterSettings, OuterState, outer_step

F32 = NDArray[np.float32]
PLAIN = OuterSettings(lr=0.7)
HEAVY_BALL = OuterSettings(lr=0.7, momentum=0.9)
NESTEROV = OuterSettings(lr=0.7, momentum=0.9, nesterov=True)
ALL = pytest.mark.parametrize("settings", [PLAIN, HEAVY_BALL, NESTEROV], ids=["plain", "momentum", "nesterov"])


def scalar_step(t: np.float32, b: np.float32, g: np.float32, s: OuterSettings) -> tuple[np.float32, np.float32]:
    """The rule, one float32 operation after the other."""
    lr, mu = np.float32(s.lr), np.float32(s.momentum)
    if s.momentum == 0:
        return t - lr * g, b
    b = mu * b + g
    return t - lr * (g + mu * b if s.nesterov else b), b


def random_state(n: int, seed: int = 0) -> tuple[OuterState, F32]:
    rng = np.random.default_rng(seed)
    values, momentum, gradient = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    return OuterState(values, momentum), gradient


def blank(n: int) -> OuterState:
    return OuterState(np.full(n, np.nan, np.float32), np.full(n, np.nan, np.float32))


@ALL
def test_step_has_the_bits_of_the_scalar_reference(settings: OuterSettings) -> None:
    n = 1500
    state, gradient = random_state(n)
    out = OuterState(np.empty(n, np.float32), np.zeros(n, np.float32))
    assert outer_step(state, gradient, settings, out)
    assert state.momentum is not None and out.momentum is not None
    expected = [scalar_step(*row, settings) for row in zip(state.values, state.momentum, gradient, strict=True)]
    assert out.values.tobytes() == np.array([t for t, _ in expected], np.float32).tobytes()
    if settings.momentum > 0:
        assert out.momentum.tobytes() == np.array([b for _, b in expected], np.float32).tobytes()


@ALL
def test_step_is_torch_sgd_to_one_unit_in_the_last_place(settings: OuterSettings, torch: Any) -> None:
    n = 4096
    # Parameters larger than their update, as in training: near zero a unit of the update is many units of the result.
    start = np.float32(1) + np.abs(random_state(n)[0].values)
    state = OuterState(start.copy(), np.zeros(n, np.float32))
    parameter = torch.from_numpy(start.copy())
    sgd = torch.optim.SGD([parameter], lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)
    for seed in range(4):
        gradient = random_state(n, seed + 1)[1] * np.float32(0.01)
        parameter.grad = torch.from_numpy(gradient)
        sgd.step()
        assert outer_step(state, gradient, settings, state)
        theirs = parameter.numpy()
        assert np.all(np.abs(state.values - theirs) <= np.spacing(theirs))
        assert np.abs(theirs - start).max() > 0.01
        # From the same numbers again, so that the roundings of different steps do not add up.
        parameter.copy_(torch.from_numpy(state.values))
        if settings.momentum > 0:
            assert state.momentum is not None
            buffer = sgd.state[parameter]["momentum_buffer"]
            assert np.abs(state.momentum - buffer.numpy()).max() <= np.spacing(np.float32(0.05))
            buffer.copy_(torch.from_numpy(state.momentum))


def test_nesterov_matches_the_table_computed_by_hand() -> None:
    # lr 0.5, μ 0.5 and g = 1 are exact in binary: b = 1, 1.5, 1.75; d = 1.5, 1.75, 1.875; T = 10 − Σ d/2.
    settings = OuterSettings(lr=0.5, momentum=0.5, nesterov=True)
    state = OuterState(np.array([10.0], np.float32), np.zeros(1, np.float32))
    seen = []
    for _ in range(3):
        outer_step(state, np.ones(1, np.float32), settings, state)
        assert state.momentum is not None
        seen.append((float(state.values[0]), float(state.momentum[0])))
    assert seen == [(9.25, 1.0), (8.375, 1.5), (7.4375, 1.75)]


@ALL
def test_bits_do_not_depend_on_the_number_of_threads(settings: OuterSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_module, "RANGE_ELEMENTS", 4096)
    n = 20 * 4096 + 17
    state, gradient = random_state(n)
    inline, threaded = OuterState(np.empty(n, np.float32), np.zeros(n, np.float32)), blank(n)
    assert outer_step(state, gradient, settings, inline)
    with ThreadPoolExecutor(3) as pool:
        assert outer_step(state, gradient, settings, threaded, pool)
    assert inline.values.tobytes() == threaded.values.tobytes()
    if settings.momentum > 0:
        assert inline.momentum is not None and threaded.momentum is not None
        assert inline.momentum.tobytes() == threaded.momentum.tobytes()


def test_plain_step_with_rate_one_subtracts_the_gradient() -> None:
    state, gradient = random_state(300)
    out = OuterState(np.empty(300, np.float32))
    assert outer_step(OuterState(state.values), gradient, OuterSettings(lr=1.0), out)
    assert np.array_equal(out.values, state.values - gradient)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@ALL
def test_result_that_is_not_finite_is_told(settings: OuterSettings, bad: float) -> None:
    state, gradient = random_state(1500)
    gradient[1234] = bad
    assert not outer_step(state, gradient, settings, blank(1500))


def test_step_in_place_equals_step_into_a_new_state() -> None:
    state, gradient = random_state(1500)
    out = blank(1500)
    outer_step(state, gradient, NESTEROV, out)
    outer_step(state, gradient, NESTEROV, state)
    assert np.array_equal(state.values, out.values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "learning rate"),
        ({"lr": float("nan")}, "learning rate"),
        ({"lr": 1.0, "momentum": 1.0}, "momentum"),
        ({"lr": 1.0, "momentum": 0.0, "nesterov": True}, "Nesterov"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OuterSettings(**settings)  # type: ignore[arg-type]


def test_sizes_and_types_that_do_not_fit_are_named() -> None:
    state, gradient = random_state(8)
    with pytest.raises(ValueError, match=r"gradient: expected 8 .* \(7,\)"):
        outer_step(state, gradient[:7], NESTEROV, blank(8))
    with pytest.raises(ValueError, match="new values: expected 8"):
        outer_step(state, gradient, NESTEROV, blank(9))
    with pytest.raises(ValueError, match="new momentum is missing"):
        outer_step(state, gradient, NESTEROV, OuterState(np.empty(8, np.float32)))
    with pytest.raises(ValueError, match="float64"):
        outer_step(state, gradient.astype(np.float64), NESTEROV, blank(8))
