"""Nothing that is put into the page can be more than text."""

from __future__ import annotations

import json
import unicodedata
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.reporting.html.markup import breakable, clean, escape, script_data, shorten, tag

ANY = st.text(st.characters(), max_size=60) | st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        "\"'><img src=x onerror=alert(1)>",
        "a&lt;b",
        "@SCRIPT@",
        "\ud800",
        "\u202eabc",
    ]
)


class Reader(HTMLParser):
    """What a browser makes of a piece of HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(ANY, ANY)
def test_an_element_holds_its_text_and_its_attributes_and_nothing_else(text: str, value: str) -> None:
    reader = read(tag("b", text, data_value=value))
    assert reader.tags == [("b", {"data-value": clean(value)})]
    assert reader.text == clean(text)


@given(ANY)
def test_no_control_characters_and_nothing_that_cannot_be_written(text: str) -> None:
    markup = escape(text)
    assert not [char for char in markup if char != "\n" and unicodedata.category(char) in ("Cc", "Cs")]
    assert not set(markup) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
    markup.encode("utf-8")


@given(st.lists(ANY))
def test_data_for_the_script_cannot_end_it_and_comes_back(values: list[str]) -> None:
    data = script_data(values)
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


def test_attributes_can_be_left_out_or_bare() -> None:
    assert tag("input", checked=True, hidden=False, id=None, class_="a", data_x=1.5) == (
        '<input checked class="a" data-x="1.5">'
    )


@given(st.text("a/<&", max_size=20))
def test_a_name_that_may_be_broken_is_the_same_name(name: str) -> None:
    reader = Reader()
    reader.feed(tag("code", breakable(name)))
    assert reader.text == name
    assert {found for found, _ in reader.tags} == ({"code", "wbr"} if "/" in name[:-1] else {"code"})
