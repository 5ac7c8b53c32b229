"""Shared test set-up: no setting of the developer's shell reaches a test, nor a process that a test starts."""

import os

from swift_diloco.core.settings.island_settings import ENVIRONMENT_PREFIX

for _name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
    del os.environ[_name]
os.environ.setdefault("OMP_NUM_THREADS", "1")
