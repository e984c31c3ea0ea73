"""Logprobs of prompt tokens, from the hidden states of the positions before them.

Waits for the device: rows that want them are rare, and their answer is needed on the host.
"""

import torch

from octavo_engine.batch import PromptLogprobs, RowWork
from octavo_engine.models.protocol import Model
from octavo_engine.runner.inputs import StepInputs
from octavo_engine.runner.logprobs import top_logprobs
from octavo_engine.runner.request_table import RowTable
from octavo_engine.runner.wanted import prompt_logprob_positions

CHUNK = 256
"""Positions whose logits are made at once: 256 of a 150k vocabulary are 150 MB."""


def prompt_logprobs(
    model: Model, table: RowTable, inputs: StepInputs, hidden: torch.Tensor
) -> list[PromptLogprobs]:
    """hidden[T, hidden_size] of a step, of fewer tokens where no row wants any -> for each row that
    wants them, the logprobs of the prompt tokens after this step's positions."""
    found = []
    first_token = 0
    for item in inputs.work:
        info = table.info(item.row)
        positions, num_wanted = prompt_logprob_positions(item, info), info.params.prompt_logprobs
        if positions and num_wanted is not None:
            rows = hidden[first_token : first_token + len(positions)]
            found.append(_of_row(model, table, item, rows, num_wanted))
        first_token += item.num_tokens
    return found


def _of_row(
    model: Model, table: RowTable, item: RowWork, hidden: torch.Tensor, num_alternatives: int
) -> PromptLogprobs:
    first = item.start + 1
    positions = []
    for start in range(0, len(hidden), CHUNK):
        chunk = hidden[start : start + CHUNK]
        begin = first + start
        chosen = table.token_ids[item.row, begin : begin + len(chunk)].long()
        top = top_logprobs(model.logits(chunk), chosen, num_alternatives).map(torch.Tensor.cpu)
        positions += [top.position(idx, num_alternatives) for idx in range(len(chunk))]
    return PromptLogprobs(row=item.row, first_position=first, positions=positions)
