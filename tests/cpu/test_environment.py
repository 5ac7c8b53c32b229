"""Environment variables of the CPU platform."""

from swift_diloco.cpu.environment import DEFAULTS, set_defaults


def test_the_user_s_values_stay_and_the_rest_is_filled_in() -> None:
    environment = {"OMP_NUM_THREADS": "4"}
    set_defaults(environment)
    assert environment == {**DEFAULTS, "OMP_NUM_THREADS": "4", "YETO_DILOCO_PLATFORM": "cpu"}


def test_children_get_the_platform_even_if_another_was_set() -> None:
    environment = {"YETO_DILOCO_PLATFORM": "auto"}
    set_defaults(environment)
    assert environment["YETO_DILOCO_PLATFORM"] == "cpu"
