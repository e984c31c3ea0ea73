"""What rows change in their logits within the sampling pass: masks, biases, penalties."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import octavo_kernels
from octavo_kernels.gpu import sampling
from octavo_kernels.gpu.logit_changes import changes_table
from octavo_kernels.gpu.sampling import PART_LEN
from octavo_kernels.logit_changes import ANY_TOKEN, ForbiddenEndings, LogitChanges
from octavo_kernels.metadata import SamplingTensors
from octavo_kernels.reference.logit_changes import change_logits, unpacked
from octavo_kernels.reference.sampling import sample as reference

SIZES = [50, 5003, PART_LEN + 77]
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.7,
    "frequency_penalty": -0.2,
}


def params_of(num_rows: int, device: torch.device, *, temperature: float = 0.0,
              top_k: int = 0) -> SamplingTensors:  # fmt: skip
    return SamplingTensors(
        temperature=torch.full((num_rows,), temperature, device=device),
        top_k=torch.full((num_rows,), top_k, dtype=torch.int32, device=device),
        top_p=torch.ones(num_rows, device=device),
        min_p=torch.zeros(num_rows, device=device),
        seeds=torch.arange(num_rows, device=device),
        positions=torch.arange(num_rows, device=device),
        all_greedy=temperature == 0,
        any_filter=top_k > 0,
    )


class Rows:
    """Random numbers of one test."""

    def __init__(self, num_ids: int, device: torch.device, generator: torch.Generator) -> None:
        self.num_ids, self.device, self._generator = num_ids, device, generator

    def logits(self, num_rows: int) -> torch.Tensor:
        return 3 * torch.randn(
            num_rows, self.num_ids, device=self.device, generator=self._generator
        )

    def ids(self, num: int) -> torch.Tensor:
        """Half of them few, so that many come twice; first and last of the vocabulary too."""
        drawn = torch.randint(self.num_ids, (num,), device=self.device, generator=self._generator)
        drawn[num // 2 :] %= 7
        drawn[:2] = torch.tensor([0, self.num_ids - 1])[: min(2, num)]
        return drawn.int()

    def distinct(self, num: int) -> torch.Tensor:
        order = torch.randperm(self.num_ids, device=self.device, generator=self._generator)
        return order[:num].int()

    def words(self) -> torch.Tensor:
        num = -(-self.num_ids // 32)
        bits = torch.randint(2**32, (num,), device=self.device, generator=self._generator)
        return (bits - 2**31).int()

    def changes(self, num_tokens: int = 40, num_prompt: int = 15, **wanted: Any) -> LogitChanges:
        return LogitChanges(
            history=self.ids(num_tokens), num_prompt_tokens=num_prompt, **wanted
        )  # fmt: skip

    def endings(self, history: torch.Tensor) -> ForbiddenEndings:
        """Some whose prefixes the history ends in, some not."""
        a, b, c = history[-3:].tolist()
        prefixes = [[a, b, c], [ANY_TOKEN, b, c], [ANY_TOKEN] * 3, [b, b, c], [ANY_TOKEN, c, b]]
        return ForbiddenEndings(
            torch.tensor(prefixes, dtype=torch.int32, device=self.device), self.ids(5)
        )


@pytest.fixture(params=SIZES)
def rows(request: pytest.FixtureRequest, device: torch.device, generator: torch.Generator) -> Rows:
    return Rows(request.param, device, generator)


def sample(
    logits: torch.Tensor, params: SamplingTensors, changes: Sequence[LogitChanges | None]
) -> torch.Tensor:
    return sampling.sample(logits, params, changes_table(changes, logits.device))


def check(logits: torch.Tensor, changes: Sequence[LogitChanges | None]) -> torch.Tensor:
    """The kernel's logits, which are the reference's, as is what is drawn."""
    expected, actual = logits.clone(), logits.clone()
    change_logits(expected, changes)
    params = params_of(len(logits), logits.device, temperature=0.7)
    ids = sample(actual, params, changes)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    assert ids.tolist() == reference(actual, params).tolist()
    return actual


def test_a_mask_leaves_the_ids_whose_bits_are_set(rows: Rows) -> None:
    logits, words = rows.logits(2), rows.words()
    changed = check(logits, [rows.changes(allowed=words), None])
    allowed = unpacked(words, rows.num_ids)
    assert torch.equal(changed[0].isneginf(), ~allowed)
    assert torch.equal(changed[0][allowed], logits[0][allowed])
    assert torch.equal(changed[1], logits[1])


def test_biases_are_added_and_ids_forbidden(rows: Rows) -> None:
    biased, num_biases = rows.distinct(40), 40
    biases = torch.linspace(-100, 100, num_biases, device=rows.device)
    changed = check(
        rows.logits(1),
        [rows.changes(bias_ids=biased, biases=biases, forbidden_ids=biased[-2:].clone())],
    )
    assert changed[0].isneginf().nonzero().flatten().tolist() == sorted(biased[-2:].tolist())


def test_an_ending_is_forbidden_behind_its_prefix(rows: Rows) -> None:
    plain = rows.changes()
    endings = rows.endings(plain.history)
    changed = check(rows.logits(1), [replace(plain, endings=endings)])
    assert set(changed[0].isneginf().nonzero().flatten().tolist()) == set(
        endings.last_ids[:3].tolist()
    )


def test_a_prefix_is_looked_for_in_the_output_alone(rows: Rows) -> None:
    plain = rows.changes(num_tokens=5, num_prompt=4)
    changed = check(rows.logits(1), [replace(plain, endings=rows.endings(plain.history))])
    assert changed[0].isneginf().sum() == 1  # of the ending without a prefix


@pytest.mark.parametrize("penalty", list(PENALTIES))
@pytest.mark.parametrize(("num_tokens", "num_prompt"), [(1, 1), (1, 0), (3000, 1500)])
def test_each_penalty(rows: Rows, penalty: str, num_tokens: int, num_prompt: int) -> None:
    plain = rows.changes(num_tokens, num_prompt)
    logits = rows.logits(1)
    changed = check(logits, [replace(plain, **{penalty: PENALTIES[penalty]})])
    seen = plain.history if penalty == "repetition_penalty" else plain.history[num_prompt:]
    touched = (changed != logits)[0].nonzero().flatten().tolist()
    assert touched == seen.unique().tolist()


def test_all_at_once_beside_rows_that_change_nothing(rows: Rows) -> None:
    few = rows.changes(**PENALTIES)
    many = rows.changes(
        allowed=rows.words(),
        forbidden_ids=rows.ids(3),
        endings=rows.endings(few.history),
        bias_ids=rows.distinct(20),
        biases=torch.linspace(-9, 9, 20, device=rows.device),
        **PENALTIES,
    )
    check(rows.logits(4), [None, few, many, None])


def test_filters_see_the_changed_logits(rows: Rows) -> None:
    logits = rows.logits(3)
    changes = [rows.changes(allowed=rows.words(), **PENALTIES), None, rows.changes(**PENALTIES)]
    expected = logits.clone()
    change_logits(expected, changes)
    params = params_of(3, rows.device, temperature=1.5, top_k=3)
    assert sample(logits, params, changes).tolist() == reference(expected, params).tolist()


def test_a_greedy_step_takes_the_largest_of_the_changed(rows: Rows) -> None:
    logits = rows.logits(1)
    best = logits.argmax(dim=-1)
    changes = [rows.changes(forbidden_ids=best.int())]
    assert sample(logits, params_of(1, rows.device), changes).item() == logits.argmax()
    assert logits[0, best].isneginf()


@pytest.mark.parametrize("limit", ["allowed", "forbidden_ids"])
def test_whether_a_token_is_left(device: torch.device, limit: str) -> None:
    """One of 33 ids: its word is the second, most of whose bits stand for nothing."""
    history = torch.tensor([3], dtype=torch.int32, device=device)
    ids = torch.arange(33, dtype=torch.int32, device=device)
    one, none = {
        "allowed": (torch.tensor([0, 1]), torch.tensor([0, -2])),
        "forbidden_ids": (ids[:-1], ids),
    }[limit]
    for values, expected in ((one, True), (none, False)):
        changes: Any = {limit: values.int().to(device)}
        row = LogitChanges(history=history, num_prompt_tokens=1, **changes)
        assert octavo_kernels.leaves_a_token(row, 33) is expected


def test_changes_of_rounded_or_other_logits_are_refused(device: torch.device) -> None:
    params = params_of(2, device)
    with pytest.raises(ValueError, match="float32 logits, got 2 of"):
        octavo_kernels.sample(
            torch.zeros(2, 5, dtype=torch.bfloat16, device=device), params, [None, None]
        )
    with pytest.raises(ValueError, match="changes of 1 rows"):
        octavo_kernels.sample(torch.zeros(2, 5, device=device), params, [None])
