import pytest


def refusal(error, function, *arguments):
    """Return what a function says as it raises this error."""
    with pytest.raises(error) as raised:
        function(*arguments)
    return str(raised.value)
