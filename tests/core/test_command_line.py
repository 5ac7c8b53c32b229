"""The one parser: a mistake is told as every mistake is."""

import pytest

from swift_diloco.core.command_line import Parser
from swift_diloco.core.errors import UserError


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--step", "3"], "unrecognized arguments: --step 3 (see program --help)"),
        (["--steps", "many"], "argument --steps: invalid int value: 'many' (see program --help)"),
        (["--steps"], "argument --steps: expected one argument (see program --help)"),
    ],
)
def test_a_mistake_or_a_shortened_flag_is_a_users_error_that_names_the_help(argv: list[str], said: str) -> None:
    parser = Parser(prog="program", description="does something")
    parser.add_argument("--steps", type=int)
    with pytest.raises(UserError) as caught:
        parser.parse_args(argv)
    assert str(caught.value) == said
