"""Stop strings in text that comes in pieces."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.text.stop_strings import StopStringFilter, first_match, num_held_chars

TEXT = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def run(
    pieces: list[str], stops: list[str], *, include_stop: bool = False
) -> tuple[str, str | None]:
    stop_filter = StopStringFilter(stops, include_stop=include_stop)
    out = ""
    for piece in pieces:
        text, stop = stop_filter.push(piece)
        out += text
        if stop is not None:
            return out, stop
    return out + stop_filter.flush(), None


@given(TEXT, STOPS, st.lists(st.integers(0, 30), max_size=8), st.booleans())
def test_result_does_not_depend_on_how_the_text_is_cut(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    by_char = run(list(text), stops, include_stop=include_stop)
    assert run(pieces, stops, include_stop=include_stop) == by_char
    assert run([text], stops, include_stop=include_stop) == by_char


@given(TEXT, STOPS)
def test_text_given_out_is_what_stands_before_the_first_match(text: str, stops: list[str]) -> None:
    out, stop = run(list(text), stops)
    ends = {s: text.find(s) + len(s) for s in stops if s in text}
    if not ends:
        assert (out, stop) == (text, None)
        return
    first_end = min(ends.values())
    longest = max((s for s, end in ends.items() if end == first_end), key=len)
    assert (out, stop) == (text[: first_end - len(longest)], longest)


@given(TEXT, STOPS)
def test_no_more_is_held_back_than_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    num_held = num_held_chars(text, stops)
    held = text[len(text) - num_held :]
    assert num_held == 0 or any(s.startswith(held) and s != held for s in stops)
    longer = (text[len(text) - k :] for k in range(num_held + 1, len(text) + 1))
    assert not any(s.startswith(tail) and s != tail for tail in longer for s in stops)


def test_part_of_a_stop_string_is_released_when_it_turns_out_to_be_text() -> None:
    stop_filter = StopStringFilter(["STOP"], include_stop=False)
    assert stop_filter.push("a ST") == ("a ", None)
    assert stop_filter.push("x") == ("STx", None)


def test_stop_string_is_kept_when_asked_for() -> None:
    assert run(["ab", "cd"], ["bc"], include_stop=True) == ("abc", "bc")


def test_of_two_that_end_together_the_longer_wins() -> None:
    match = first_match("xabc", ["bc", "abc"])
    assert match is not None
    assert match.stop == "abc"
