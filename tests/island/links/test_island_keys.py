"""The keys of an island: from its settings, and on their way to its other ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.key_files import CurveKeys, KeyPair, load_pair, load_public
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.island.links.island_keys import decode_keys, encode_keys, island_keys
from swift_diloco.tools.keygen.cli import main as keygen

KEYS = CurveKeys(KeyPair("public", "secret"), "server")


def test_island_without_keys_talks_in_the_clear() -> None:
    assert island_keys(IslandSettings()) is None


@pytest.mark.parametrize(("given", "missing"), [("curve_key", "syncer_key"), ("syncer_key", "curve_key")])
def test_one_key_without_the_other_is_a_mistake_that_names_both(given: str, missing: str) -> None:
    with pytest.raises(UserError, match=f"--diloco_{given} is given without --diloco_{missing}; an encrypted"):
        island_keys(IslandSettings(**{given: "somewhere"}))  # type: ignore[arg-type]


def test_own_pair_comes_from_its_file_and_the_syncers_key_from_its(tmp_path: Path) -> None:
    assert keygen([str(tmp_path), "syncer", "island-0"]) == 0
    own, server = tmp_path / "island-0.key", tmp_path / "syncer.pub"
    found = island_keys(IslandSettings(curve_key=str(own), syncer_key=str(server)))
    assert found is not None
    assert (found.own, found.server) == (load_pair(own), load_public(server))


@pytest.mark.parametrize("keys", [KEYS, None])
def test_keys_come_to_the_other_ranks_as_they_were(keys: CurveKeys | None) -> None:
    assert decode_keys(encode_keys(keys)) == keys
