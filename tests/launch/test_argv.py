"""Translation of our command-line words into ms-swift's."""

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.launch.argv import is_flag, read_request, translate

FILE = "/p/entry/swift_diloco_plugin.py"


def translated(line: str) -> list[str]:
    """The command line after translation with the plugin `diloco`, if it is asked for."""
    request = read_request(line.split())
    return translate(request, [FILE] * bool(request.plugins), request.plugins)


def test_plugin_becomes_a_file_and_a_callback() -> None:
    assert translated("--model m --plugin diloco --lr 1e-3") == (
        f"--model m --lr 1e-3 --external_plugins {FILE} --callbacks diloco".split()
    )


def test_the_users_own_plugins_and_callbacks_stay_and_come_first() -> None:
    line = "--callbacks a b --external_plugins own.py --plugin diloco --x y"
    assert translated(line) == f"--x y --external_plugins own.py {FILE} --callbacks a b diloco".split()


def test_the_last_of_a_repeated_flag_counts_as_in_argparse() -> None:
    assert translated("--callbacks a --callbacks=b --plugin diloco")[-3:] == ["--callbacks", "b", "diloco"]


def test_dashes_and_equals_signs_are_understood() -> None:
    line = "--external-plugins=own.py --plugin=diloco --diloco-island-id=3"
    assert translated(line) == f"--external_plugins own.py {FILE} --callbacks diloco".split()
    assert read_request(line.split()).settings == {"island_id": "3"}


@pytest.mark.parametrize("line", ["--plugin a,b", "--plugin a b", "--plugin a --plugin b", "--plugin=a,b --plugin a"])
def test_several_plugins_are_given_by_comma_space_or_repetition(line: str) -> None:
    assert read_request(line.split()).plugins == ("a", "b")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--model m --callbacks a --lr -1 --flag",
        "config.json --callbacks=a",
        "--plugin diloco --callbacks x --diloco_island_id 1",
        f"--external_plugins {FILE} --callbacks diloco --plugin diloco",
    ],
)
def test_translation_is_idempotent(line: str) -> None:
    once = translated(line)
    assert translated(" ".join(once)) == once
    assert once.count("diloco") <= 1


def test_words_that_are_not_ours_keep_order_and_spelling() -> None:
    words = ["--a=b c", "--system", "--plugins are nice", "-1", "--b", '{"--plugin": 1}', "--", "x"]
    assert translate(read_request(words), [], ()) == words


def test_settings_leave_the_command_line() -> None:
    request = read_request("--diloco_syncer embedded --lr 1 --diloco_syncer tcp://h:1 --diloco_save_anchors".split())
    assert request.settings == {"syncer": "tcp://h:1", "save_anchors": "true"}
    assert translate(request, [], ()) == ["--lr", "1"]


def test_a_value_that_looks_like_flags_is_one_word() -> None:
    assert read_request(["--diloco_syncer_args", "--min-islands 2 --quorum 1"]).settings == {
        "syncer_args": "--min-islands 2 --quorum 1"
    }
    assert read_request(["--diloco_syncer_args=--insecure"]).settings == {"syncer_args": "--insecure"}
    assert [is_flag(word) for word in ("--a", "-b", "--a-b=c d", "-1", "--a b", "--", "-")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


def test_null_in_a_yaml_file_means_not_given() -> None:
    request = read_request(["--plugin", "None", "--diloco_run_dir", "None", "--diloco_island_id", "1"])
    assert (request.plugins, dict(request.settings)) == ((), {"island_id": "1"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--plugin", "--plugin is given without a name; expected for example --plugin diloco"),
        ("--plugin --lr 1", "--plugin is given without a name"),
        (
            "--diloco_island_id",
            "--diloco_island_id takes one value, found none; expected a whole number from 0 to 9999",
        ),
        ("--diloco_syncer a b", "--diloco_syncer takes one value, found 2 values (a b); expected a text"),
    ],
)
def test_a_flag_without_its_value_is_refused(line: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_request(line.split())
    assert str(caught.value).startswith(message)
