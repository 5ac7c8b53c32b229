"""What a syncer says of itself, as a table for a terminal."""

from __future__ import annotations

from swift_diloco.core.formats.status import MemberStatus, Status

ROWS_MAX = 64
"""Most members shown in the table."""


def table(facts: Status) -> str:
    """The status for people."""
    lines = [
        f"{facts.phase}: waiting for {facts.waiting_for}",
        f"outer step {facts.t}, versions {' '.join(map(str, facts.versions)) or 'none yet'}",
    ]
    for each in facts.open:
        lines.append(
            f"  round {each.t} (fragment {each.fragment}, attempt {each.attempt}): {each.stage}, "
            f"{each.complete} of {each.needed} answers"
        )
    rows = [("island", "host", "step", "s/step", "")]
    rows += [_row(member) for member in facts.members[:ROWS_MAX]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(facts.members) > ROWS_MAX:
        lines.append(f"… and {len(facts.members) - ROWS_MAX} more")
    if facts.joining:
        lines.append(f"joining: {' '.join(map(str, facts.joining))}")
    lines.append(
        f"pushed {_size(facts.bytes_pushed)}, fetched {_size(facts.bytes_fetched)}; "
        f"{facts.bad_messages} bad and {facts.stale_messages} stale messages"
    )
    return "\n".join(lines)


def _row(member: MemberStatus) -> tuple[str, str, str, str, str]:
    seconds = member.step_s
    notes = [
        word
        for word, holds in (
            ("done", member.done),
            ("owes an answer", member.waiting),
            ("link down", not member.linked),
        )
        if holds
    ]
    pace = "?" if seconds is None else f"{seconds:.2f}"
    return str(member.island), member.host, str(member.step), pace, ", ".join(notes)


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"
