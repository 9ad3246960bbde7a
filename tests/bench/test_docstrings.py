"""The examples in the docstrings of the benchmarks' parts."""

import doctest

import pytest

from bench import tabular_q, traffic


@pytest.mark.parametrize("module", [tabular_q, traffic], ids=lambda module: module.__name__)
def test_examples(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
