"""The start-up hook tells ms-swift's processes from all others."""

import sys

import pytest

from swift_diloco.launch import start
from swift_diloco.launch.roles import COMMAND, HELPER, INTERNAL_CPU, MEGATRON, SWIFT, TRAINER, Role
from swift_diloco.launch.start import role_of

SITE = "/env/lib/python3.11/site-packages"
SPAWN = ["-c", "--multiprocessing-fork"]


@pytest.mark.parametrize(
    ("script", "role"),
    [
        (f"{SITE}/swift/cli/_megatron/sft.py", Role(TRAINER, MEGATRON, "sft")),
        (f"{SITE}/swift/cli/_megatron/pt.py", Role(TRAINER, MEGATRON, "pt")),
        (f"{SITE}/swift/cli/_megatron/export.py", Role(TRAINER, MEGATRON, "export")),
        ("swift/cli/_megatron/rlhf.py", Role(TRAINER, MEGATRON, "rlhf")),
        (f"{SITE}/swift/cli/sft.py", Role(TRAINER, SWIFT, "sft")),
        (f"{SITE}/swift/cli/deploy.py", None),
        (f"{SITE}/myswift/cli/sft.py", None),
        (f"{SITE}/swift/cli/_megatron/sft.pyc", None),
        ("/home/me/swift-notes.py", None),
        ("-c", None),
        ("", None),
    ],
)
def test_a_trainer_is_told_by_its_script(script: str, role: Role | None) -> None:
    argv = [script, "--plugin", "diloco"]
    assert role_of(argv, ["python", "-u", *argv], {}) == role


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (["/env/bin/megatron", "sft", "--lr", "1"], Role(COMMAND, MEGATRON, "sft")),
        (["/env/bin/swift", "sft"], Role(COMMAND, SWIFT, "sft")),
        ([f"{SITE}/swift/cli/_megatron/main.py", "pt"], Role(COMMAND, MEGATRON, "pt")),
        (["/env/bin/swift", "merge-lora"], None),
        (["/env/bin/swift", "upload", "container", "sft"], None),
        (["/env/bin/swift"], None),
        (["/env/bin/megatron"], None),
        (["/src/megatron", "sft"], None),
    ],
)
def test_the_outer_command_is_told_by_its_name_and_method(words: list[str], role: Role | None) -> None:
    assert role_of(words, ["python", *words], {}) == role


@pytest.mark.parametrize(
    ("orig_argv", "role"),
    [
        (["python", "-m", "swift.cli._megatron.sft", "x"], Role(TRAINER, MEGATRON, "sft")),
        (["python", "-X", "dev", "-m", "swift.cli.pt", "x"], Role(TRAINER, SWIFT, "pt")),
        (["python", "-mswift.cli._megatron.sft", "x"], Role(TRAINER, MEGATRON, "sft")),
        (["python", "-um", "swift.cli._megatron.sft", "x"], Role(TRAINER, MEGATRON, "sft")),
        (["python", "-m", "swift.cli._megatron.main", "sft"], Role(COMMAND, MEGATRON, "sft")),
        (["python", "-m", "swift.cli.main", "infer"], None),
        (["python", "-m", "torch.distributed.run", "swift/cli/_megatron/sft.py"], None),
        (["python", "-m", "pytest", "swift.cli.pt"], None),
    ],
)
def test_a_module_is_told_from_the_original_command_line(orig_argv: list[str], role: Role | None) -> None:
    assert role_of(["-m", orig_argv[-1]], orig_argv, {}) == role


def test_only_helpers_of_a_trainer_on_the_cpu_platform_are_helpers() -> None:
    orig_argv = ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork"]
    assert role_of(SPAWN, orig_argv, {INTERNAL_CPU: "1"}) == Role(HELPER, MEGATRON, "")
    assert role_of(SPAWN, orig_argv, {}) is None
    assert role_of(["-m", "x"], ["python", "-m", "syncer", "x"], {INTERNAL_CPU: "1"}) is None


def test_an_embedding_program_without_argv_is_not_ours() -> None:
    assert role_of([], [], {INTERNAL_CPU: "1"}) is None


@pytest.mark.parametrize("word", ["off", "OFF", "0", "false"])
def test_the_switch_turns_the_hook_off(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("YETO_DILOCO_HOOK", word)
    argv = [f"{SITE}/swift/cli/_megatron/sft.py", "--plugin", "nosuch"]
    monkeypatch.setattr(sys, "argv", argv)
    start.run()
    assert sys.argv == [f"{SITE}/swift/cli/_megatron/sft.py", "--plugin", "nosuch"]
