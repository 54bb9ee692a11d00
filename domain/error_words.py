"""What is said of errors that nobody foresaw: their class and words, without the input that they were about."""

from __future__ import annotations

from traceback import format_exception_only

from pydantic import ValidationError

from domain.text import clean


def describe_error(error: Exception) -> str:
    """An error that nobody foresaw, by its class and what it says, without the input that it was about."""
    if isinstance(error, ValidationError):
        return f"ValidationError: {first_problem(error)}"
    return clean("".join(format_exception_only(error)).strip())[:1000]


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong, and where, without the input that it was about."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}"
