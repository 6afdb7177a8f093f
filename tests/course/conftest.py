from ..ranks import context, host, pytest_collection_finish, pytest_pyfunc_call, pytest_unconfigure  # noqa: F401
