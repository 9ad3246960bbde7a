"""Every public name has a docstring with an example, which pytest runs with the other doctests."""

import pytest

import shoal


@pytest.mark.parametrize("name", shoal.__all__)
def test_a_public_name_has_an_example(name):
    assert ">>> " in (getattr(shoal, name).__doc__ or "")
