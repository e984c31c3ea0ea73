"""Answers of /v1/completions, with the prompt in front where the client asked for its echo."""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from octavo_engine.messages import EngineRequest, PositionLogprobs
from octavo_engine.server.answers import Answer, WholeChoice
from octavo_engine.server.generation import ChoiceDelta, Generation
from octavo_engine.server.logprobs import (
    completion_logprobs,
    echoed_logprobs,
    joined,
    prompt_logprobs_by_id,
)
from octavo_engine.server.request_fields import CompletionRequest
from octavo_engine.server.response_types import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Usage,
)
from octavo_engine.text.sequence_text import TokenPiece
from octavo_engine.text.tokenizer import Tokenizer


class CompletionAnswer(Answer):
    def __init__(
        self,
        fields: CompletionRequest,
        requests: Sequence[EngineRequest],
        tokenizer: Tokenizer,
        answer_id: str,
    ) -> None:
        super().__init__(fields, requests, tokenizer, answer_id)
        self._echoes = fields.echo or False
        self._echoed_texts = (
            _prompt_texts(fields, requests, tokenizer) if self._echoes else [""] * len(requests)
        )
        self._begun: set[int] = set()
        """Choices whose echo is out."""
        self._prompt_logprobs: dict[int, list[PositionLogprobs | None]] = {}
        """Of each prompt, for the echoes of a stream."""

    def whole(self, choices: list[WholeChoice], usage: Usage) -> Struct:
        # The engine sends the prompt's logprobs once, with the first of a prompt's sequences.
        firsts = [choices[index - index % self.n] for index in range(len(choices))]
        return self._completion(
            [
                self._choice(index, choice, firsts[index].prompt_logprobs)
                for index, choice in enumerate(choices)
            ],
            usage,
        )

    def _choice(
        self,
        index: int,
        choice: WholeChoice,
        prompt_logprobs: list[PositionLogprobs | None] | None,
    ) -> CompletionChoice:
        wants_ids = self.fields.return_token_ids
        wants_prompt_logprobs = self.fields.prompt_logprobs is not None
        return CompletionChoice(
            index=index,
            text=self._echoed_text(index) + choice.text,
            logprobs=self._logprobs(index, choice.pieces, prompt_logprobs),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            token_ids=[piece.token_id for piece in choice.pieces] if wants_ids else UNSET,
            prompt_token_ids=self._prompt_ids(index) if wants_ids else UNSET,
            prompt_logprobs=prompt_logprobs_by_id(prompt_logprobs, self.tokenizer)
            if wants_prompt_logprobs and prompt_logprobs is not None
            else UNSET,
        )

    def opening_chunks(self) -> list[Struct]:
        return []

    def _encode(self, item: ChoiceDelta, generation: Generation) -> bytes:
        if item.prompt_logprobs is not None:  # with the prompt's first sequence, before the others
            self._prompt_logprobs[item.index // self.n] = item.prompt_logprobs
        return super()._encode(item, generation)

    def chunk(self, item: ChoiceDelta, usage: Usage | UnsetType | None) -> Struct:
        delta = item.delta
        echoed, prompt_logprobs = "", None
        if item.index not in self._begun:
            self._begun.add(item.index)
            echoed = self._echoed_text(item.index)
            prompt_logprobs = self._prompt_logprobs.get(item.index // self.n)
        choice = CompletionChoice(
            index=item.index,
            text=echoed + delta.text,
            logprobs=self._logprobs(item.index, delta.tokens, prompt_logprobs),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason if delta.finish_reason is not None else UNSET,
            token_ids=[piece.token_id for piece in delta.tokens]
            if self.fields.return_token_ids
            else UNSET,
        )
        return self._completion([choice], usage)

    def usage_chunk(self, usage: Usage) -> Struct:
        return self._completion([], usage)

    def _logprobs(
        self,
        index: int,
        pieces: Sequence[TokenPiece],
        prompt_logprobs: list[PositionLogprobs | None] | None,
    ) -> CompletionLogprobs | None:
        first_offset = len(self._echoed_text(index))
        own = completion_logprobs(pieces, self.tokenizer, first_offset)
        wants_logprobs = self.requests[0].params.logprobs is not None
        if not (self._echoes and wants_logprobs and prompt_logprobs is not None):
            return own
        echoed = echoed_logprobs(
            self._prompt_ids(index), prompt_logprobs, self.tokenizer, self._echoed_text(index)
        )
        return joined(echoed, own)

    def _prompt_ids(self, index: int) -> list[int]:
        return self.requests[index // self.n].prompt_token_ids

    def _echoed_text(self, index: int) -> str:
        return self._echoed_texts[index // self.n]

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        return Completion(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )


def _prompt_texts(
    fields: CompletionRequest, requests: Sequence[EngineRequest], tokenizer: Tokenizer
) -> list[str]:
    """As they were given; those that were given as ids as they read."""
    texts = [prompt for prompt in fields.prompts if isinstance(prompt, str)]
    skips = fields.skip_special_tokens is not False
    return texts or [
        tokenizer.decode(request.prompt_token_ids, skip_special_tokens=skips)
        for request in requests
    ]
