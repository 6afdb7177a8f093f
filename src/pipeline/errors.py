"""The two ways in which a run ends without figures, apart from a bug."""


class UserError(Exception):
    """Input that cannot be used; its message is one line for the person who gave it."""


class Skipped(Exception):
    """A measurement that this machine cannot make; its message is the reason."""
