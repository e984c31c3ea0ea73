"""What crosses between the scheduler and the runner: one step as plain data. No torch.

The runner keeps one row per running sequence in a request table (its token ids, block tables,
sampling parameters). A batch is the difference that a step makes to that table plus the work to
do, so that ranks can apply the same batch and so that step N+1 can be scheduled before N's tokens
are known: the input of a decode is read from the runner's own table, not from the batch.
"""

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

import msgspec

from octavo_engine.messages import EngineInfo, PositionLogprobs
from octavo_engine.sampling_params import SamplingParams


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that keep the same positions and therefore share block ids.

    All groups have the same number of layers (short groups are padded), so a block is the same
    number of bytes in each and one pool serves them all.
    """

    layer_ids: tuple[int, ...]
    window: int | None
    """Tokens a query may see, itself included; None is full attention."""


class AdmittedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence that enters the table (first time, or again after preemption)."""

    row: int
    token_ids: list[int]
    """All tokens known so far: the prompt, then what was generated before a preemption."""
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    """Always set; drawn by the scheduler when the request has none. Differs for each of `n`."""
    block_tables: list[list[int]]
    """For each KV group, the blocks of the sequence; block i holds positions [i*size, (i+1)*size).
    Blocks that have left a window are 0 (the null block, never read)."""


class AppendedBlocks(msgspec.Struct, frozen=True):
    row: int
    group_idx: int
    first_idx: int
    block_ids: list[int]


class RowWork(msgspec.Struct, frozen=True):
    """Positions [start, start + num_tokens) of a row are computed and written to its pages."""

    row: int
    start: int
    num_tokens: int
    samples: bool
    """Whether the token after the last of these positions is sampled and appended to the row."""
    phase: Literal["prefill", "decode"]
    """Said outright, never inferred from num_tokens."""


class BlockCopy(msgspec.Struct, frozen=True):
    src: int
    dst: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One step. Applied in this order: released, swaps, copies, admitted, appended, work."""

    step_id: int
    released_rows: list[int] = []
    swap_out: list[BlockCopy] = []
    """Device block src to host block dst."""
    swap_in: list[BlockCopy] = []
    """Host block src to device block dst."""
    copies: list[BlockCopy] = []
    """Within the device: a fork's last, partly filled block."""
    admitted: list[AdmittedRow] = []
    appended: list[AppendedBlocks] = []
    work: list[RowWork] = []


class SampledToken(msgspec.Struct, frozen=True, kw_only=True):
    row: int
    token_id: int
    logprobs: PositionLogprobs | None = None


class PromptLogprobs(msgspec.Struct, frozen=True):
    """Logprobs of the prompt tokens at positions first_position, first_position + 1, ..."""

    row: int
    first_position: int
    positions: list[PositionLogprobs]


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    step_id: int
    sampled: list[SampledToken]
    prompt_logprobs: list[PromptLogprobs] = []
    failed_rows: dict[int, str] = {}
    """Rows whose own handling failed (not the step): the reason, for that request alone."""
    duration_s: float = 0.0
    """That the device took; 0: not known."""
    num_padded_rows: int = 0
    """Rows computed beside the batch's own, to fill the size of a captured graph."""
    is_graph: bool = False
    """The model ran as a captured graph."""


class StepHandle(Protocol):
    """A step that was launched and may still run."""

    def result(self) -> StepResult:
        """Waits for the step. Raises what the step raised."""
        ...


class Runner(Protocol):
    """Runs batches on a device. Tests use small fakes of this."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]: ...

    @property
    def num_host_blocks(self) -> int:
        """Blocks of the swap space; 0 without one."""
        ...

    def launch(self, batch: Batch) -> StepHandle:
        """Starts a step; steps run in the order of their launch. Returns without waiting."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class WatchedRunner(Runner, Protocol):
    """A runner that can tell its end although its steps never end."""

    def on_failure(self, told: Callable[[str], None]) -> None:
        """`told` is called once, from another thread, with why no step will end any more."""
        ...
