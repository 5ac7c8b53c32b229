"""Shared set-up of the arithmetic's tests: compiling is no part of any test's time."""

from __future__ import annotations

from typing import Any

import pytest

from swift_diloco.core.numbers import kernels


@pytest.fixture(scope="session", autouse=True)
def _warm() -> None:
    kernels.warm_up()


@pytest.fixture(scope="session")
def torch() -> Any:
    """torch, which only an island has; imported here because that takes seconds."""
    module: Any = pytest.importorskip("torch")
    module.optim.SGD([module.zeros(1)], lr=1.0)  # its first optimizer imports some more
    return module
