"""Laws are tried on a busy machine: none has a deadline."""

import pytest
from hypothesis import given, settings, strategies as st

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="session")
def _hypothesis_has_begun():
    """From its first test on Hypothesis observes collections, and leaves that in place."""
    given(st.none())(lambda _: None)()
