"""Text of a model, a runtime or a user stays text, whatever it holds."""

from __future__ import annotations

import json
import unicodedata
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.report.mixed import in_tolerances
from bisect_trt.report.page import environment
from bisect_trt.report.text import clean, shorten

HOSTILE = [
    "</script><script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "a&lt;b",
    "{{ 1 }}",
    "\ud800",
    "\u202eabc",
]
ANY = st.text(st.characters(), max_size=60) | st.sampled_from(HOSTILE)


class Reader(HTMLParser):
    """The tags and the text that a browser sees."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def render(source: str, **values: object) -> str:
    return environment().from_string(source).render(**values)


@given(ANY, ANY)
def test_a_template_escapes_text_and_attributes(text: str, value: str) -> None:
    reader = Reader(render('<b data-value="{{ value }}">{{ text }}</b>', text=text, value=value))
    assert reader.tags == [("b", {"data-value": clean(value)})]
    assert reader.text == clean(text)


@given(ANY)
def test_a_page_holds_no_control_characters_and_can_be_encoded(text: str) -> None:
    markup = render("{{ text }}{{ text | breakable }}", text=text)
    assert not [
        char for char in markup if char != "\n" and unicodedata.category(char) in ("Cc", "Cs")
    ]
    assert not set(markup) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
    markup.encode("utf-8")


@given(st.lists(ANY))
def test_data_for_the_script_cannot_end_it_and_comes_back(values: list[str]) -> None:
    data = render("{{ values | tojson }}", values=values)
    assert "<" not in data
    assert json.loads(data) == values


@given(ANY, st.integers(3, 80))
def test_a_shortened_name_is_short_and_keeps_both_ends(text: str, length: int) -> None:
    short = shorten(text, length)
    whole = " ".join(clean(text).split())
    assert len(short) <= length
    if len(whole) <= length:
        assert short == whole
    else:
        head, tail = short.split("\u2026", 1) if "\u2026" not in whole else ("", "")
        assert whole.startswith(head)
        assert whole.endswith(tail)


@given(st.text("a/<&", max_size=20))
def test_a_breakable_name_is_the_same_name(name: str) -> None:
    reader = Reader(render("<code>{{ name | breakable }}</code>", name=name))
    assert reader.text == name
    assert {found for found, _ in reader.tags} == ({"code", "wbr"} if "/" in name else {"code"})


def test_an_error_just_within_the_tolerance_is_all_of_it() -> None:
    assert [*map(in_tolerances, (0.4367, 0.997, 1.0, 1.17))] == [
        "44% of the tolerance",
        "100% of the tolerance",
        "100% of the tolerance",
        "1.17 times the tolerance",
    ]
