"""What a contract's words mean to an island. The only place where they are read."""

from __future__ import annotations

from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import Contract
from swift_diloco.island.events import Align

_ORDINARY = {align.value: align for align in (Align.OVERWRITE, Align.BLEND, Align.CARRY)}


def ordinary_align(contract: Contract) -> Align:
    """How an ordinary install treats local values. Raises `PeerError` at a word no island knows."""
    if contract.align not in _ORDINARY:
        raise PeerError(f"the syncer wants installs to {contract.align!r}; expected one of {sorted(_ORDINARY)}")
    return _ORDINARY[contract.align]


def published_exactly(contract: Contract) -> bool:
    """Whether published values are the global ones to the bit."""
    return contract.publish_encoding == Encoding.F32.value
