import pytest

from pipeline.errors import UserError


def complaint(function, *arguments, **words):
    """Return the line by which a function refuses what it is given."""
    with pytest.raises(UserError) as raised:
        function(*arguments, **words)
    return str(raised.value)
