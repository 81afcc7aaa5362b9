"Many cases as one test: none is lost, each failure has its case's name."

import pytest
from fold import each


def failures(test, **fixtures) -> list[BaseException]:
    with pytest.raises(BaseExceptionGroup) as caught:
        test(**fixtures)
    return list(caught.value.exceptions)


def test_every_case_is_tried_and_every_failure_named():
    seen = []

    @each("n", [1, 2, 3, 4])
    def odd(n):
        seen.append(n)
        assert n % 2

    found = failures(odd)
    assert seen == [1, 2, 3, 4] and [e.__notes__ for e in found] == [
        ["case: n = 2"],
        ["case: n = 4"],
    ]
    assert all(isinstance(e, AssertionError) for e in found)


def test_what_pytest_raises_is_a_failure_too():
    @each("n", [0, 1])
    def divides(n):
        with pytest.raises(ZeroDivisionError):
            1 / n

    (failed,) = failures(divides)
    assert failed.__notes__ == ["case: n = 1"]


def test_fixtures_several_names_and_several_lists():
    seen, put_back = [], []

    @each("c", "xy")
    @each(
        "a, b",
        [(1, 2), pytest.param(3, 4, id="three")],
        after=lambda folder, **_: put_back.append(folder),
    )
    def case(a, b, c, folder):
        seen.append((a, b, c, folder))
        assert a == 1

    outer = failures(case, folder="here")
    assert seen == [
        (1, 2, "x", "here"),
        (3, 4, "x", "here"),
        (1, 2, "y", "here"),
        (3, 4, "y", "here"),
    ]
    assert [e.__notes__ for e in outer] == [
        ["case: c = 'x'"],
        ["case: c = 'y'"],
    ] and put_back == ["here"] * 4
    assert [e.__notes__ for group in outer for e in group.exceptions] == [
        ["case: a, b = three"]
    ] * 2


@each("n", [1, 2])
def test_pytest_gives_the_fixtures_and_not_the_cases(n, tmp_path):
    assert n in (1, 2) and tmp_path.is_dir()


def test_skipped_cases():
    def skips(n):
        pytest.skip("not here") if n else None

    each("n", [0, 1])(skips)()
    with pytest.raises(pytest.skip.Exception, match="not here"):
        each("n", [1, 2])(skips)()


def test_an_empty_list_is_no_pass():
    with pytest.raises(AssertionError, match="no cases"):
        each("n", [])(lambda n: None)()


def test_an_interrupt_ends_it():
    def interrupted(n):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        each("n", [1, 2])(interrupted)()
