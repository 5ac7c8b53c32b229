"""What the hook does in a process of ms-swift: check in the outer command, translate in the trainer.

The outer command (`megatron sft …`) is checked, YAML file included, so that a mistake is one line before anything is
started; its command line is left alone. Each trainer process translates its own, which works alike when it was started
plain, by ms-swift's torchrun or by the user's.

Invariant: a process that asks nothing of us keeps its command line, environment and import system.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

import msgspec

from swift_diloco.core.errors import USER_MISTAKE_EXIT_CODE, UserError, one_line
from swift_diloco.core.settings.island_settings import (
    IslandSettings,
    environment_name,
    environment_values,
    load_island_settings,
    require_syncer,
)
from swift_diloco.launch.argv import Request, read_request, translate
from swift_diloco.launch.cpu_switch import arm, complete_arguments
from swift_diloco.launch.plugins import RLHF_REFUSAL, find_plugin, installed_plugins
from swift_diloco.launch.roles import COMMAND, HELPER, MEGATRON, TRAINING_METHODS, Role

DILOCO = "diloco"
INTERNAL_ERROR_EXIT_CODE = 1


class LaunchPlan(msgspec.Struct, frozen=True):
    """What to change in a trainer process."""

    argv: list[str]
    environ: dict[str, str]
    cpu: bool


def prepare(role: Role) -> None:
    """Act on this process. A user's mistake ends it with one line, an error of ours with a traceback."""
    try:
        if role.name == HELPER:
            arm()
        elif role.name == COMMAND:
            check_command(role, sys.argv[2:], os.environ)
        else:
            prepare_trainer(role)
    except UserError as error:
        _leave(f"swift-diloco: error: {one_line(error)}", USER_MISTAKE_EXIT_CODE)
    except Exception:
        _leave(f"swift-diloco: error in the start-up hook\n{traceback.format_exc()}", INTERNAL_ERROR_EXIT_CODE)


def check_command(role: Role, argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise what the trainers of this command would raise."""
    words, variables = expand_config(argv)
    environ = {**variables, **environ}
    if is_ours(words, environ):
        make_plan(role, words, environ)


def prepare_trainer(role: Role) -> None:
    """Translate the command line of this process in place and prepare its platform."""
    argv = sys.argv[1:]
    if not is_ours(argv, os.environ):
        return
    plan = make_plan(role, argv, os.environ)
    os.environ.update(plan.environ)
    sys.argv[1:] = plan.argv
    if plan.cpu:
        arm()


def is_ours(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a command line or an environment asks anything of us."""
    return any(word.startswith(("--plugin", "--diloco")) for word in argv) or bool(environment_values(environ))


def make_plan(role: Role, argv: Sequence[str], environ: Mapping[str, str]) -> LaunchPlan:
    """Decide what to change; reads the installed entry points and the preset, changes nothing."""
    request = read_request(argv)
    files = _plugin_files(request)
    settings = load_island_settings(request.settings, environ)
    _check_plugin(role, request, settings)
    callbacks = request.plugins if role.method in TRAINING_METHODS else ()
    values = {environment_name(name): value for name, value in request.settings.items()}
    cpu = settings.platform == "cpu" and role.family == MEGATRON
    if cpu:
        values[environment_name("platform")] = "cpu"
    words = translate(request, files, callbacks)
    return LaunchPlan(argv=complete_arguments(words) if cpu else words, environ=values, cpu=cpu)


def expand_config(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """A command line with its leading YAML or JSON file written out, and the file's environment, as
    `swift/cli/main.py` does it. A file that cannot be read is left to ms-swift, which says so itself."""
    words = list(argv)
    if not words or not words[0].endswith((".yaml", ".yml", ".json")):
        return words, {}
    try:
        import yaml

        with open(words[0], encoding="utf-8") as file:
            config = json.load(file) if words[0].endswith(".json") else yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError):
        return words, {}
    if not isinstance(config, dict):
        return words, {}
    variables = config.pop("ENV", None) or {}
    expanded: list[str] = []
    for name, value in config.items():
        expanded.append(f"--{name}")
        expanded += [str(each) for each in value] if isinstance(value, list) else [_config_word(value)]
    return expanded + words[1:], {str(name): str(value) for name, value in variables.items()}


def _config_word(value: object) -> str:
    """One value of a configuration file as a command-line word."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def _plugin_files(request: Request) -> list[str]:
    """The files of the plugins asked for. Entry points are looked up only when there are any."""
    if not request.plugins:
        return []
    installed = installed_plugins()
    return [find_plugin(name, installed) for name in request.plugins]


def _check_plugin(role: Role, request: Request, settings: IslandSettings) -> None:
    """Refuse at once what our own plugin would refuse after the model has been loaded."""
    if DILOCO not in request.plugins or role.method not in TRAINING_METHODS:
        return
    if role.family != MEGATRON and role.method == "rlhf":
        raise UserError(RLHF_REFUSAL)
    require_syncer(settings)


def _leave(message: str, exit_code: int) -> NoReturn:
    """End the process now. `SystemExit` while Python starts would be reported as a fatal error of Python itself."""
    print(message, file=sys.stderr, flush=True)
    os._exit(exit_code)
