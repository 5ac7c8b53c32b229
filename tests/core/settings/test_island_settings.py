"""Settings of an island: which source wins, and what each refusal says."""

import subprocess
import sys
from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.island_settings import (
    IslandSettings,
    load_island_settings,
    require_syncer,
)
from swift_diloco.core.settings.presets import Preset


def refused(*, flags: dict[str, str] | None = None, environ: dict[str, str] | None = None, preset: Preset) -> str:
    """The message with which island settings are refused."""
    with pytest.raises(UserError) as caught:
        load_island_settings(flags or {}, environ or {}, preset)
    return str(caught.value)


def test_defaults_need_no_source() -> None:
    assert load_island_settings({}, {}) == IslandSettings()


def test_flag_beats_environment_beats_preset_beats_default() -> None:
    preset = Preset(source="p", island={"heartbeat_s": 1, "connect_timeout_s": 1, "init_probe_s": 1})
    environ = {"YETO_DILOCO_HEARTBEAT_S": "2", "YETO_DILOCO_CONNECT_TIMEOUT_S": "2"}
    settings = load_island_settings({"heartbeat_s": "3"}, environ, preset)
    assert settings == IslandSettings(heartbeat_s=3.0, connect_timeout_s=2.0, init_probe_s=1.0)


def test_preset_named_by_flag_or_environment_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("island:\n  island_id: 4\n")
    by_flag = load_island_settings({"preset": str(file)}, {"YETO_DILOCO_PRESET": "pretrain"})
    by_environment = load_island_settings({}, {"YETO_DILOCO_PRESET": str(file)})
    assert by_flag == IslandSettings(island_id=4, preset=str(file))
    assert by_environment == by_flag


def test_unknown_names_are_refused_with_the_nearest_valid_name() -> None:
    no_preset = Preset()
    assert refused(flags={"heartbeats": "1"}, preset=no_preset) == (
        "unknown setting --diloco_heartbeats in the flags; the nearest valid name is --diloco_heartbeat_s"
    )
    assert refused(environ={"YETO_DILOCO_SYNCR": "x"}, preset=no_preset) == (
        "unknown setting YETO_DILOCO_SYNCR in the environment; the nearest valid name is YETO_DILOCO_SYNCER"
    )
    assert refused(preset=Preset(source="my{}.yaml", island={"islandid": 1})) == (
        "unknown setting island.islandid in my{}.yaml; the nearest valid name is island.island_id"
    )


def test_bad_value_names_setting_value_and_what_is_expected() -> None:
    message = refused(environ={"YETO_DILOCO_HEARTBEAT_S": "often"}, preset=Preset())
    assert message == "YETO_DILOCO_HEARTBEAT_S is 'often'; expected a number of at least 0 (s) (default 30.0)"
    message = refused(flags={"platform": "tpu"}, preset=Preset())
    assert message == "--diloco_platform is 'tpu'; expected one of auto, cpu (default 'auto')"
    message = refused(preset=Preset(source="p.yaml", island={"island_id": -1}))
    assert message == "island.island_id of p.yaml is -1; expected a whole number from 0 to 9999 (default 0)"


def test_a_weak_source_is_checked_even_where_a_stronger_one_wins() -> None:
    assert "YETO_DILOCO_ISLAND_ID is 'x'" in refused(
        flags={"island_id": "1"}, environ={"YETO_DILOCO_ISLAND_ID": "x"}, preset=Preset()
    )


def test_internal_variables_and_empty_ones_are_no_settings() -> None:
    environ = {"YETO_DILOCO_INTERNAL_CPU": "1", "YETO_DILOCO_HOOK": "off", "YETO_DILOCO_SYNCER": "", "PATH": "x"}
    assert load_island_settings({}, environ) == IslandSettings()


@pytest.mark.parametrize("address", ["embedded", "tcp://10.0.0.1:29410", "tcp://[::1]:5"])
def test_a_syncer_address_is_accepted(address: str) -> None:
    assert require_syncer(IslandSettings(syncer=address)) == address


@pytest.mark.parametrize("address", ["", "host:29410", "tcp://host", "tcp://host:port", "embeded"])
def test_a_run_without_a_usable_syncer_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="expected --diloco_syncer tcp://HOST:PORT"):
        require_syncer(IslandSettings(syncer=address))


@pytest.mark.net
def test_importing_the_settings_brings_in_nothing_heavy() -> None:
    names = "swift_diloco.core.settings.island_settings, swift_diloco.core.settings.syncer_settings"
    code = f"import sys, {names}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "msgspec" in loaded
    assert not {"numpy", "torch", "zmq", "numba", "swift", "transformers"} & set(loaded)
