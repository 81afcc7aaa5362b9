"Many cases of one property as one test."

import functools
import inspect
from collections.abc import Callable, Iterable

import pytest


def each(
    names: str,  # parameters of the test, separated by commas
    cases: Iterable,  # values, tuples of them where there are several names, or pytest.param
    ids: Callable
    | list
    | None = None,  # of a case, or of each: what a failure is called
    after: Callable
    | None = None,  # called after each case with the test's fixtures: puts back what the case changed
) -> Callable:
    """Like `pytest.mark.parametrize`, but as one test: each case is tried, and all that fail are reported with their names.

    Raises an ExceptionGroup of the failures. A case that skips itself is passed over; if all do, the test is skipped.
    """
    names, cases = [name.strip() for name in names.split(",")], list(cases)

    def values_of(case) -> tuple:
        if hasattr(case, "values") and hasattr(case, "marks"):
            return case.values
        return (case,) if len(names) == 1 else tuple(case)

    def name_of(i: int, case) -> str:
        if getattr(case, "id", None) is not None and hasattr(case, "marks"):
            return case.id
        if isinstance(ids, list):
            return ids[i]
        return "-".join(
            str(ids(value)) if ids else repr(value)[:80] for value in values_of(case)
        )

    def fold(test: Callable) -> Callable:
        @functools.wraps(test)
        def all_cases(**fixtures):
            failed, n_skipped, skipped = [], 0, None
            for i, case in enumerate(cases):
                try:
                    test(**fixtures, **dict(zip(names, values_of(case), strict=True)))
                except pytest.skip.Exception as e:
                    n_skipped, skipped = n_skipped + 1, e
                except (
                    KeyboardInterrupt,
                    SystemExit,
                    GeneratorExit,
                    pytest.exit.Exception,
                ):
                    raise
                except (
                    BaseException
                ) as e:  # what pytest.raises and an alarm raise is no Exception
                    e.add_note(f"case: {', '.join(names)} = {name_of(i, case)}")
                    failed.append(e)
                finally:
                    if after:
                        after(**fixtures)
            if failed:
                raise BaseExceptionGroup(
                    f"{len(failed)} of {len(cases)} cases failed", failed
                )
            if skipped and n_skipped == len(cases):
                raise skipped
            assert cases, "there are no cases"

        signature = inspect.signature(test)
        left = [
            parameter
            for name, parameter in signature.parameters.items()
            if name not in names
        ]
        all_cases.__signature__ = signature.replace(parameters=left)
        del all_cases.__wrapped__  # pytest would read the parameters of what is wrapped
        return all_cases

    return fold
