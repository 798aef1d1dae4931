from hypothesis import given
from hypothesis import strategies as st

from rl_record.look.html.markup import Markup, joined, tag


def test_text_and_attributes_are_escaped_and_markup_is_not():
    made = tag("a", "<b>", Markup("<i>"), ["&", None], href='"><script>', class_="x", data_rows=3)
    assert made == (
        '<a href="&quot;&gt;&lt;script&gt;" class="x" data-rows="3">&lt;b&gt;<i>&amp;</a>'
    )


@given(st.text())
def test_no_text_opens_an_element(text):
    assert "<" not in joined(text)
    assert tag("p", text).count("<") == 2
    assert tag("p", title=text).count('"') == 2
