"""Which tokens of a step have hidden states that are used: those that are sampled from, and those
that give logprobs of a prompt. Pure; knows no tensor."""

from collections.abc import Sequence

from octavo_engine.batch import RowWork
from octavo_engine.runner.request_table import RowInfo


def prompt_logprob_positions(item: RowWork, info: RowInfo) -> range:
    """Positions of this step's work that give the logprobs of the prompt token behind each."""
    if info.params.prompt_logprobs is None:
        return range(0)
    end = min(item.start + item.num_tokens, info.num_prompt_tokens - 1)
    return range(item.start, end)


def are_all_tokens_wanted(work: Sequence[RowWork], infos: Sequence[RowInfo]) -> bool:
    """Else those are that the rows sample from, each row's last: a prompt whose logprobs are asked
    for is rare, and has its whole step computed. The same on all ranks."""
    if all(item.samples and item.num_tokens == 1 for item in work):
        return True
    return any(map(prompt_logprob_positions, work, infos))
