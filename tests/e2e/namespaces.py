"""Network namespaces with links of a given rate, for tests that must cross a real network stack. Needs root."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Namespace:
    """One namespace that reaches this one: `here` is our address on its link."""

    name: str
    here: str
    there: str

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command, run inside."""
        return ["ip", "netns", "exec", self.name, *words]


def why_not() -> str:
    """Why namespaces cannot be made here; empty when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} (iproute2) not installed"
    name = f"sdl-{secrets.token_hex(3)}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces are not permitted: {tried.stderr.strip()}"
    try:
        inside = subprocess.run(["ip", "netns", "exec", name, "true"], capture_output=True, text=True)
        return f"cannot enter a network namespace: {inside.stderr.strip()}" if inside.returncode else ""
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@contextmanager
def namespaces(count: int, rate: str) -> Iterator[list[Namespace]]:
    """So many namespaces, each with its own link to this one, both directions held to `rate` by a token bucket."""
    made: list[Namespace] = []
    tag, net = secrets.token_hex(2), secrets.randbelow(200) + 16
    try:
        for number in range(count):
            space = Namespace(f"sdl-{tag}-{number}", f"10.{net}.{number}.1", f"10.{net}.{number}.2")
            _run("ip", "netns", "add", space.name)
            made.append(space)
            ours, theirs = f"sdl{tag}{number}a", f"sdl{tag}{number}b"
            _run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", space.name)
            _run("ip", "addr", "add", f"{space.here}/24", "dev", ours)
            _run("ip", "link", "set", ours, "up")
            _run(*space.command(["ip", "addr", "add", f"{space.there}/24", "dev", theirs]))
            for device in (theirs, "lo"):
                _run(*space.command(["ip", "link", "set", device, "up"]))
            _run(*space.command(["ip", "route", "add", "default", "via", space.here]))
            shape = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms"]
            _run("tc", "qdisc", "add", "dev", ours, *shape)
            _run(*space.command(["tc", "qdisc", "add", "dev", theirs, *shape]))
        yield made
    finally:
        for space in made:
            subprocess.run(["ip", "netns", "del", space.name], check=False)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
