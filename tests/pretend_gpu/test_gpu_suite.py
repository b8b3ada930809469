"""The tests of `tests/gpu` that the pretend GPU can run: all without kernels of their own and without Unsloth."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.gpu import evidence
from tests.gpu.conftest import load  # noqa: F401
from tests.gpu.test_memory import test_a_second_seat_costs_its_weights_its_gradients_and_its_optimizer_state  # noqa: F401
from tests.gpu.test_seats import (  # noqa: F401
    test_both_seats_move_and_the_base_does_not,
    test_every_seat_speaks_for_itself_and_says_the_same_again,
    test_flash_attention_runs_where_the_card_should_have_it,
    test_log_probabilities_of_samples_are_those_that_are_computed_again,
    test_the_base_is_held_in_four_bits_and_the_adapters_in_float32,
    test_the_kernels_of_a_gated_product_compile_and_are_right,
    test_what_is_said_follows_the_weights,
)
from tests.pretend_gpu import pretend

# Imported: the tests of a real GPU that take seconds here. Its twenty steps of learning, its thousands of rows and its
# gradients from processes of their own have smaller counterparts beside this file.
pytestmark = pytest.mark.usefixtures("card")


@pytest.fixture(params=["t4", pytest.param("4090", marks=pytest.mark.long)])
def card(request: pytest.FixtureRequest) -> Iterator[pretend.Card]:
    with pretend.card(pretend.PROFILES[request.param]) as found:
        yield found


@pytest.fixture
def device(card: pretend.Card) -> torch.device:
    return torch.device("cuda")


@pytest.fixture
def backend_name(card: pretend.Card) -> str:
    return "transformers"


@pytest.fixture
def model_name() -> str:
    return "tiny"


@pytest.fixture
def worker() -> Any:
    return evidence
