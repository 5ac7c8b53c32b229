"""Settings of an island: flags, environment, preset, default, in this order of strength.

Knows no socket and no trainer, and imports nothing heavier than msgspec and yaml: the start-up hook loads it in every
process that ms-swift starts. Invariant: each field carries help text, and `configs/reference.yaml` lists every field.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.presets import Preset, load_preset
from swift_diloco.core.settings.schema import Setting, Source, fields_of, read_settings

FLAG_PREFIX = "--diloco_"

ENVIRONMENT_PREFIX = "YETO_DILOCO_"

INTERNAL_PREFIX = "YETO_DILOCO_INTERNAL_"
"""Variables that our own processes hand to each other; they are no settings."""

HOOK_SWITCH = "YETO_DILOCO_HOOK"
"""`off` switches the start-up hook off. It is read before any setting is."""

EMBEDDED = "embedded"
"""The value of `syncer` that makes island 0 start the syncer itself."""


class IslandSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one island may decide for itself."""

    platform: Annotated[
        Literal["auto", "cpu"], Setting("what Megatron runs on; cpu switches the CPU platform on (tests, trying out)")
    ] = "auto"
    island_id: Annotated[int, Setting("number of this island; each island has its own", minimum=0, maximum=9999)] = 0
    syncer: Annotated[str, Setting("tcp://host:port of the syncer, or embedded: island 0 starts it; must be given")] = (
        ""
    )
    preset: Annotated[str, Setting("name of a shipped preset or path of a YAML file")] = ""
    syncer_args: Annotated[str, Setting("extra command line of the embedded syncer, as for a shell")] = ""
    run_dir: Annotated[
        str, Setting("folder of the embedded syncer: log, tape, address; empty means diloco/ under the output folder")
    ] = ""
    connect_timeout_s: Annotated[float, Setting("how long to try to reach the syncer", unit="s", minimum=0)] = 300.0
    initial_cut_timeout_s: Annotated[
        float, Setting("how long to wait for the first global values; 0 does not wait", unit="s", minimum=0)
    ] = 3600.0
    init_probe_s: Annotated[
        float,
        Setting(
            "how long a syncer must ask a resumed island for initial values before it gets them", unit="s", minimum=0
        ),
    ] = 1800.0
    heartbeat_s: Annotated[float, Setting("time between heartbeats; 0 sends none", unit="s", minimum=0)] = 30.0
    heartbeat_stall_s: Annotated[
        float, Setting("stop heartbeats after this long without a step; 0 never does", unit="s", minimum=0)
    ] = 0.0
    finish_timeout_s: Annotated[
        float, Setting("how long a finished island waits for the final values, then fails", unit="s", minimum=0)
    ] = 3600.0
    save_anchors: Annotated[
        bool, Setting("write the anchors beside each trainer checkpoint, so that a resume keeps local progress")
    ] = False
    curve_key: Annotated[str, Setting("secret key file of this island, for an encrypted connection")] = ""
    syncer_key: Annotated[str, Setting("public key of the syncer, or its file, for an encrypted connection")] = ""
    lr_resume: Annotated[Literal["on", "off"], Setting("set a fresh LR schedule to the resumed iteration")] = "on"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Setting("least severe log line that is shown")
    ] = "info"


ISLAND_FIELDS = fields_of(IslandSettings)


def environment_name(setting: str) -> str:
    """`heartbeat_s` is `YETO_DILOCO_HEARTBEAT_S` in the environment."""
    return ENVIRONMENT_PREFIX + setting.upper()


def environment_values(environ: Mapping[str, str]) -> dict[str, str]:
    """Island settings found in an environment, by lower-case name; empty values count as not given."""
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
        and not name.startswith(INTERNAL_PREFIX)
        and name != HOOK_SWITCH
        and value != ""
    }


def load_island_settings(
    flags: Mapping[str, str], environ: Mapping[str, str], preset: Preset | None = None
) -> IslandSettings:
    """The settings of one island. `flags` are `--diloco_*` without that prefix; without `preset`, they name one."""
    variables = environment_values(environ)
    if preset is None:
        preset = load_preset(flags.get("preset") or variables.get("preset", ""))
    sources = [
        Source(preset.island, preset.source, "island.{}".format, is_file=True),
        Source(variables, "the environment", environment_name),
        Source(flags, "the flags", (FLAG_PREFIX + "{}").format),
    ]
    return read_settings(IslandSettings, ISLAND_FIELDS, sources)


def require_syncer(settings: IslandSettings) -> str:
    """The syncer's address, or `embedded`; refuse a run that names none."""
    where = settings.syncer
    if where == EMBEDDED or (where.startswith("tcp://") and where.rpartition(":")[2].isdigit()):
        return where
    found = f"--diloco_syncer is {where!r}" if where else "no syncer is given"
    raise UserError(
        f"{found}; expected --diloco_syncer tcp://HOST:PORT of a running swift-diloco-syncer, "
        f"or --diloco_syncer {EMBEDDED} to have island 0 start one"
    )
