"""page.py: one file that needs nothing else and shows everything."""

from html.parser import HTMLParser
from pathlib import Path

from swift_diloco.tools.quickstart.result.figures import parse_tape
from swift_diloco.tools.quickstart.result.page import write_page
from swift_diloco.tools.quickstart.result.plots import all_charts
from swift_diloco.tools.quickstart.result.report import build_report
from tests.tools.quickstart import samples

VOID = {"meta", "line", "circle", "rect", "polyline"}


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order; gathers what was met."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids.update(value for name, value in attrs if name == "id" and value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def page(folder: Path, **measured: object) -> str:
    tape = parse_tape(samples.tape_lines())
    curves = {0: samples.points(), 1: samples.points(begin=7.1)}
    report = build_report(curves, samples.points(), tape, samples.measured(**measured), samples.facts())
    path = folder / "report.html"
    write_page(path, report, all_charts({"island 0": curves[0], "island 1": curves[1], "alone": curves[0]}, tape))
    return path.read_text()


def test_the_page_has_each_plot_and_is_well_formed(tmp_path: Path) -> None:
    parser = Balanced()
    parser.feed(page(tmp_path))
    assert parser.open == []
    assert parser.ids == {"plot-loss", "plot-versions", "plot-staleness", "plot-bytes"}


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = page(tmp_path)
    parser = Balanced()
    parser.feed(text)
    assert not parser.tags & {"script", "link", "img", "iframe", "object"}
    assert not any(word in text for word in ("http", "url(", "@import", "src=", "href="))


def test_the_page_shows_the_numbers_and_escapes_what_comes_from_outside(tmp_path: Path) -> None:
    text = page(tmp_path)
    for shown in ("1,234,567 parameters", "7.500", "5.100", "48 KiB", "80 KiB fetched", "120 s", "✓ holds"):
        assert shown in text
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in text and "<b>&</b>" not in text
    assert "failed" not in text


def test_a_failed_check_is_seen_at_once(tmp_path: Path) -> None:
    text = page(tmp_path, final_digests={0: "ab", 1: "cd"})
    assert '<span class="bad">failed</span>' in text and "2 exports, 2 distinct digests" in text
