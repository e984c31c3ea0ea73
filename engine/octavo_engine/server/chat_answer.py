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
from octavo_engine.text.sequence_text import TextDelta


class ChatAnswer(Answer):
    @property
    def _asked(self) -> ChatCompletionRequest:
        assert isinstance(self.fields, ChatCompletionRequest)
        return self.fields

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
            message=assistant_message(joined(choice.messages), self._asked.uses_functions),
            logprobs=chat_logprobs(choice.pieces, self.tokenizer),
            finish_reason=self._finish_reason(choice.finish_reason, choice.has_calls),
            stop_reason=choice.stop_reason,
            token_ids=ids if self.fields.return_token_ids else UNSET,
        )

    def _finish_reason(self, reason: str, has_calls: bool) -> str:
        """`tool_calls` says that the calls can be made: not where a stop string, or the model's own
        end, has cut the last one. OpenAI says `stop` where the client has named the function."""
        if reason != "stop" or not has_calls or self._asked.names_function:
            return reason
        return "function_call" if self._asked.uses_functions else "tool_calls"

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
            delta=message_part(delta.message, self._asked.uses_functions),
            logprobs=chat_logprobs(delta.tokens, self.tokenizer),
            finish_reason=None
            if delta.finish_reason is None
            else self._finish_reason(delta.finish_reason, delta.has_calls),
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


def assistant_message(message: Message, uses_functions: bool) -> AssistantMessage:
    """uses_functions: calls are told in the form of the request's `functions`, one at most."""
    functions = [FunctionCall(call.name, call.arguments) for call in message.tool_calls]
    calls = [
        ToolCallEntry(id=call.id, function=function)
        for call, function in zip(message.tool_calls, functions, strict=True)
    ]
    reasoning = message.reasoning or UNSET
    return AssistantMessage(
        content=None if calls and not message.content else message.content,
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=UNSET if uses_functions else calls or UNSET,
        function_call=functions[0] if uses_functions and functions else UNSET,
    )


def message_part(delta: MessageDelta, uses_functions: bool) -> MessagePart:
    reasoning = delta.reasoning or UNSET
    functions = [
        FunctionCallPart(name=UNSET if call.name is None else call.name, arguments=call.arguments)
        for call in delta.tool_calls
    ]
    calls = [
        ToolCallPart(
            index=call.index,
            id=UNSET if call.id is None else call.id,
            type=UNSET if call.id is None else "function",
            function=function,
        )
        for call, function in zip(delta.tool_calls, functions, strict=True)
    ]
    return MessagePart(
        content=delta.content or UNSET,
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=UNSET if uses_functions else calls or UNSET,
        function_call=functions[0] if uses_functions and functions else UNSET,
    )
