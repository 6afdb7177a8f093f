import pytest


def refusal(error, function, *arguments):
    """Return the message of this error, which a function must raise."""
    with pytest.raises(error) as raised:
        function(*arguments)
    return str(raised.value)
