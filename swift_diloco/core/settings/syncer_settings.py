"""Settings of the syncer: its flags, the preset's `syncer:` section, default, in this order of strength.

Settings that all islands must share are the syncer's alone and reach islands in Welcome. Imports nothing heavier than
msgspec and yaml. Invariant: each field carries help text, and `configs/reference.yaml` lists every field.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from swift_diloco.core.command_line import Parser
from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.presets import NO_PRESET, Preset, load_preset
from swift_diloco.core.settings.schema import Setting, Source, fields_of, nearest, read_settings

GIB = 1 << 30


class SyncerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the syncer decides, for itself and for all islands."""

    bind: Annotated[str, Setting("address to listen on; port 0 or * takes any free port")] = "tcp://127.0.0.1:29410"
    insecure: Annotated[bool, Setting("listen beyond loopback without encryption keys")] = False
    curve_key: Annotated[str, Setting("secret key file of the syncer; encrypts and authenticates every connection")] = (
        ""
    )
    curve_allow: Annotated[str, Setting("public key file of an island, or a folder of them: who may connect")] = ""
    admin_keys: Annotated[str, Setting("public key file of an operator, or a folder of them: who may give orders")] = ""
    run_dir: Annotated[str, Setting("folder for the log, the tape and the address file")] = "."
    tape: Annotated[str, Setting("event tape, JSON lines; empty means tape.jsonl in the run folder")] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Setting("least severe log line that is shown")
    ] = "info"
    # Who takes part.
    expected_islands: Annotated[
        int, Setting("islands to wait for before the first round; 0 means min_islands", minimum=0, maximum=1024)
    ] = 0
    min_islands: Annotated[
        int, Setting("members needed to take any outer step; below it the run pauses", minimum=1, maximum=1024)
    ] = 1
    quorum: Annotated[
        int, Setting("answers that close a round; 0 means half the members, rounded up", minimum=0, maximum=1024)
    ] = 0
    # What is merged, and when.
    sync_every_steps: Annotated[
        int,
        Setting(
            "H: local steps between an install and the next push of a fragment", unit="steps", minimum=1, kept=True
        ),
    ] = 24
    fragments: Annotated[
        int,
        Setting(
            "P: number of fragments; 0 chooses from the model's layers, at most 8", minimum=0, maximum=4096, kept=True
        ),
    ] = 0
    fragmenting: Annotated[
        Literal["binpack", "strided"], Setting("how tensors are grouped: by size, or every P-th layer", kept=True)
    ] = "binpack"
    pipeline: Annotated[
        int, Setting("rounds open at once; 0 chooses max(2, ceil(P/H) + 1), at most P", minimum=0, maximum=4096)
    ] = 0
    merge: Annotated[
        Literal["rda", "avg"], Setting("radial-directional averaging or plain averaging of deltas", kept=True)
    ] = "rda"
    weights: Annotated[
        Literal["tokens2_per_step", "equal"], Setting("weight of an island's delta in the merge", kept=True)
    ] = "tokens2_per_step"
    correction: Annotated[
        Literal["none", "heloco"], Setting("correct deltas against the outer momentum before merging", kept=True)
    ] = "none"
    outer_lr: Annotated[float, Setting("learning rate of the outer optimizer", minimum=0, maximum=10, kept=True)] = 1.0
    outer_momentum: Annotated[
        float, Setting("momentum of the outer optimizer", minimum=0, maximum=0.9999, kept=True)
    ] = 0.0
    nesterov: Annotated[bool, Setting("Nesterov momentum (no effect at momentum 0)", kept=True)] = True
    outer_steps_max: Annotated[
        int, Setting("outer steps after which the run is finished; 0 is no budget", unit="steps", minimum=0)
    ] = 0
    # How an island takes new global values.
    align: Annotated[
        Literal["overwrite", "blend", "carry"],
        Setting("carry keeps local progress that was not pushed yet; overwrite and blend lose it", kept=True),
    ] = "carry"
    alpha: Annotated[
        float, Setting("share of the local value when align is blend", minimum=0, maximum=1, kept=True)
    ] = 0.5
    delta_encoding: Annotated[
        Literal["f32", "bf16", "int8", "q4"], Setting("how deltas travel to the syncer", kept=True)
    ] = "f32"
    error_feedback: Annotated[
        bool,
        Setting(
            "islands add what a delta lost in its encoding to the next one; costs them 8 bytes a parameter", kept=True
        ),
    ] = False
    publish_encoding: Annotated[
        Literal["f32", "bf16"],
        Setting("how global values travel to the islands; the last ones always as f32", kept=True),
    ] = "f32"
    # Patience.
    grace_gamma: Annotated[float, Setting("share of the spare time spent waiting after quorum", minimum=0)] = 0.8
    grace_tau: Annotated[float, Setting("local steps a round may take before grace shrinks", minimum=0)] = 2.0
    grace_cap_s: Annotated[
        float,
        Setting(
            "longest grace after quorum; a local step where that is longer; 0 waits for nobody", unit="s", minimum=0
        ),
    ] = 1.0
    quorum_timeout_s: Annotated[
        float, Setting("how long a round waits for its quorum before it starts again", unit="s", minimum=0.1)
    ] = 900.0
    upload_grace_s: Annotated[
        float, Setting("how long after quorum an upload that makes progress is waited for", unit="s", minimum=0)
    ] = 60.0
    island_lease_s: Annotated[float, Setting("membership without a sign of life", unit="s", minimum=1)] = 120.0
    reconnect_grace_s: Annotated[
        float, Setting("how long the rounds wait for an island whose process died", unit="s", minimum=0)
    ] = 5.0
    launch_floor_s: Annotated[float, Setting("least time between two round launches", unit="s", minimum=0)] = 0.0
    # Late answers.
    max_base_lag: Annotated[
        int, Setting("how many versions of its fragment a push may be behind", unit="versions", minimum=0)
    ] = 0
    late_carry: Annotated[
        bool,
        Setting(
            "merge a good push that missed its round into the next one; its lag may then be one more than max_base_lag"
        ),
    ] = True
    late_discount: Annotated[
        float, Setting("weight factor per version of lag of a late push", minimum=0, maximum=1)
    ] = 1.0
    carried_bytes_max: Annotated[
        int, Setting("memory for late pushes; the oldest is dropped first", unit="bytes", minimum=0)
    ] = 4 * GIB
    pinned_fragments_max: Annotated[
        int, Setting("old values kept alive for running fetches", unit="fragments", minimum=1, maximum=4096)
    ] = 8
    # The end.
    final_linger_s: Annotated[
        float, Setting("how long a finished syncer waits for the islands' last saves", unit="s", minimum=0)
    ] = 600.0
    shutdown_timeout_s: Annotated[
        float, Setting("how long a stopping syncer waits for gathering rounds", unit="s", minimum=0)
    ] = 600.0
    # Checkpoints of the syncer.
    checkpoint_path: Annotated[str, Setting("folder of the syncer's checkpoint; empty writes none")] = ""
    checkpoint_every: Annotated[int, Setting("outer steps between checkpoints", unit="steps", minimum=1)] = 8
    checkpoint_keep: Annotated[int, Setting("checkpoints kept", minimum=1)] = 2
    checkpoint_on_start: Annotated[bool, Setting("write one checkpoint before the first round")] = False
    background_checkpoint: Annotated[bool, Setting("write checkpoints beside the rounds")] = False
    durable_publish: Annotated[bool, Setting("publish a value only when it is on disk")] = False
    resume: Annotated[bool, Setting("continue from the checkpoint")] = False
    # Set by an island that starts the syncer itself.
    embedded: Annotated[bool, Setting("started by island 0: stay until the run ends, then exit")] = False


SYNCER_FIELDS = fields_of(SyncerSettings)

KEPT = tuple(name for name in SYNCER_FIELDS if SYNCER_FIELDS[name].info.kept)
"""What a run keeps from its start to its end."""


def add_syncer_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser one flag per syncer setting (`min_islands` is `--min-islands`), and `--preset`."""
    parser.add_argument("--preset", metavar="NAME_OR_PATH", default="", help="a shipped preset, or a YAML file")
    for name, field in SYNCER_FIELDS.items():
        described = f"{field.info.help} (default: {field.default!r})".replace("%", "%%")
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if field.kind is bool else {}
        parser.add_argument(
            _syncer_flag(name),
            dest=name,
            metavar=field.info.unit.upper() or "VALUE",
            default=argparse.SUPPRESS,
            help=described,
            **switch,
        )


def load_syncer_settings(flags: Mapping[str, str], preset: Preset | str = NO_PRESET) -> SyncerSettings:
    """The settings of the syncer. `flags` are by setting name; `preset` is a name, a path or one already loaded."""
    loaded = load_preset(preset) if isinstance(preset, str) else preset
    sources = [
        Source(loaded.syncer, loaded.source, "syncer.{}".format, is_file=True),
        Source(flags, "the syncer's flags", _syncer_flag),
    ]
    return read_settings(SyncerSettings, SYNCER_FIELDS, sources)


def parse_syncer_argv(argv: Sequence[str], program: str = "swift-diloco-syncer") -> SyncerSettings:
    """The settings of the syncer from its whole command line. `--help` prints and exits; mistakes raise `UserError`."""
    flags = syncer_flags(argv, program)
    preset = flags.pop("preset")
    return load_syncer_settings(flags, preset)


def syncer_flags(argv: Sequence[str], program: str = "swift-diloco-syncer") -> dict[str, str]:
    """What a command line gives, as text by setting name, and `preset`. Ends as `parse_syncer_argv` does."""
    parser = Parser(prog=program, description="The syncer of a DiLoCo run.")
    add_syncer_arguments(parser)
    known, unknown = parser.parse_known_args(list(argv))
    flags: dict[str, str] = vars(known)
    if unknown:
        valid = [_syncer_flag(name) for name in SYNCER_FIELDS] + ["--preset", "--help"]
        near = nearest(unknown[0].partition("=")[0], valid)
        raise UserError(f"unknown argument {unknown[0]}; the nearest valid name is {near}")
    return flags


def _syncer_flag(name: str) -> str:
    """`min_islands` is `--min-islands` on the syncer's command line."""
    return "--" + name.replace("_", "-")
