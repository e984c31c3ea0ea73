"""Answers of /v1/chat/completions."""

from msgspec import UNSET, Struct, UnsetType

from octavo_engine.parsers.message import Message, MessageDelta, joined
from octavo_engine.server.answers import Answer, WholeChoice
from octavo_engine.server.generation import ChoiceDelta
from octavo_engine.server.logprobs import chat_logprobs, prompt_logprobs_by_id
from octavo_engine.server.request_fields import ChatCompletionRequest
from octavo_engine.server.response_types import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    FunctionCall,
    FunctionCallPart,
    MessagePart,
    ToolCallEntry,
    ToolCallPart,
    Usage,
)
from octavo_engine.server.tool_fields import NamedToolChoice
from octavo_engine.text.sequence_text import TextDelta


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
        message = joined(choice.messages)
        return ChatChoice(
            index=index,
            message=assistant_message(message),
            logprobs=chat_logprobs(choice.pieces, self.tokenizer),
            finish_reason=self._finish_reason(choice.finish_reason, len(message.tool_calls)),
            stop_reason=choice.stop_reason,
            token_ids=ids if self.fields.return_token_ids else UNSET,
        )

    def _finish_reason(self, reason: str, num_calls: int) -> str:
        """OpenAI says `stop` where the client has named the function itself."""
        assert isinstance(self.fields, ChatCompletionRequest)
        is_named = isinstance(self.fields.tool_choice, NamedToolChoice)
        return "tool_calls" if reason == "stop" and num_calls and not is_named else reason

    def opening_chunks(self) -> list[Struct]:
        role = MessagePart(role="assistant", content="")
        return [
            self._chunk([ChatChunkChoice(index=index, delta=role)], self._no_usage())
            for index in range(self.n)
        ]

    def chunk(self, item: ChoiceDelta, usage: Usage | UnsetType | None) -> Struct:
        delta = item.delta
        finished = delta.finish_reason is not None
        choice = ChatChunkChoice(
            index=item.index,
            delta=message_part(delta.message),
            logprobs=chat_logprobs(delta.tokens, self.tokenizer),
            finish_reason=None
            if delta.finish_reason is None
            else self._finish_reason(delta.finish_reason, delta.num_calls),
            stop_reason=delta.stop_reason if finished else UNSET,
            token_ids=[piece.token_id for piece in delta.tokens]
            if self.fields.return_token_ids
            else UNSET,
        )
        return self._chunk([choice], usage)

    def has_news(self, delta: TextDelta) -> bool:
        return bool(delta.message) or self.has_token_news(delta)

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


def assistant_message(message: Message) -> AssistantMessage:
    calls = [
        ToolCallEntry(id=call.id, function=FunctionCall(call.name, call.arguments))
        for call in message.tool_calls
    ]
    reasoning = message.reasoning or UNSET
    return AssistantMessage(
        content=None if calls and not message.content else message.content,
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=calls or UNSET,
    )


def message_part(delta: MessageDelta) -> MessagePart:
    reasoning = delta.reasoning or UNSET
    calls = [
        ToolCallPart(
            index=call.index,
            id=UNSET if call.id is None else call.id,
            type=UNSET if call.id is None else "function",
            function=FunctionCallPart(
                name=UNSET if call.name is None else call.name, arguments=call.arguments
            ),
        )
        for call in delta.tool_calls
    ]
    return MessagePart(
        content=delta.content or UNSET,
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=calls or UNSET,
    )
