import pytest

from pipeline.errors import UserError


def complaint(function, *arguments, **words):
    """Return the message of the UserError that a function raises for these arguments."""
    with pytest.raises(UserError) as raised:
        function(*arguments, **words)
    return str(raised.value)
