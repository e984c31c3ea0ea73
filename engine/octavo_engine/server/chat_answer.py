"""Answers of /v1/chat/completions."""

from msgspec import UNSET, Struct, UnsetType

from octavo_engine.server.answers import Answer, WholeChoice
from octavo_engine.server.generation import ChoiceDelta
from octavo_engine.server.logprobs import chat_logprobs, prompt_logprobs_by_id
from octavo_engine.server.response_types import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Usage,
)
from octavo_engine.server.response_types import ChoiceDelta as MessageDelta


class ChatAnswer(Answer):
    def whole(self, choices: list[WholeChoice], usage: Usage) -> Struct:
        prompt_logprobs = choices[0].prompt_logprobs
        wants_ids = self.fields.return_token_ids
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
            usage=usage,
            prompt_logprobs=UNSET
            if prompt_logprobs is None
            else prompt_logprobs_by_id(prompt_logprobs, self.tokenizer),
            prompt_token_ids=self.requests[0].prompt_token_ids if wants_ids else UNSET,
        )

    def _choice(self, index: int, choice: WholeChoice) -> ChatChoice:
        ids = [piece.token_id for piece in choice.pieces]
        return ChatChoice(
            index=index,
            message=AssistantMessage(content=choice.text),
            logprobs=chat_logprobs(choice.pieces, self.tokenizer),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            token_ids=ids if self.fields.return_token_ids else UNSET,
        )

    def opening_chunks(self) -> list[Struct]:
        role = MessageDelta(role="assistant", content="")
        return [
            self._chunk([ChatChunkChoice(index=index, delta=role)], self._no_usage())
            for index in range(self.n)
        ]

    def chunk(self, item: ChoiceDelta, usage: Usage | UnsetType | None) -> Struct:
        delta = item.delta
        finished = delta.finish_reason is not None
        choice = ChatChunkChoice(
            index=item.index,
            delta=MessageDelta(content=delta.text) if delta.text else MessageDelta(),
            logprobs=chat_logprobs(delta.tokens, self.tokenizer),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason if finished else UNSET,
            token_ids=[piece.token_id for piece in delta.tokens]
            if self.fields.return_token_ids
            else UNSET,
        )
        return self._chunk([choice], usage)

    def usage_chunk(self, usage: Usage) -> Struct:
        return self._chunk([], usage)

    def _no_usage(self) -> UnsetType | None:
        return None if self._include_usage else UNSET

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )
