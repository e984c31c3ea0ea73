"""The times and sizes of one engine request, observed as its deltas come. The caller has the clock.

The core and the server read the same monotonic clock, also from two processes of one machine.
"""

from octavo_engine.messages import EngineRequest, RequestDelta
from octavo_engine.server.metrics_registry import ServerMetrics


class RequestTimes:
    def __init__(self, metrics: ServerMetrics, request: EngineRequest) -> None:
        self._metrics = metrics
        self._request = request
        self._last_token_s: list[float | None] = [None] * request.params.n
        self._first_step_s: float | None = None
        self._first_token_s: float | None = None
        self._num_tokens = 0

    def note(self, delta: RequestDelta, now_s: float) -> None:
        if delta.queue_s is not None and self._first_step_s is None:
            self._first_step_s = self._request.arrival_time_s + delta.queue_s
            self._metrics.queue_time_s.observe(delta.queue_s)
        if not delta.token_ids:
            return
        self._num_tokens += len(delta.token_ids)
        last_s, self._last_token_s[delta.index] = self._last_token_s[delta.index], now_s
        if last_s is not None:
            num_tokens = len(delta.token_ids)
            self._metrics.inter_token_latency_s.observe((now_s - last_s) / num_tokens, num_tokens)
        elif self._first_token_s is None:
            self._first_token_s = now_s
            self._metrics.time_to_first_token_s.observe(now_s - self._request.arrival_time_s)
            if self._first_step_s is not None:
                self._metrics.prefill_time_s.observe(now_s - self._first_step_s)

    def finish(self, now_s: float) -> None:
        """Every sequence has ended."""
        metrics, params = self._metrics, self._request.params
        metrics.e2e_request_latency_s.observe(now_s - self._request.arrival_time_s)
        metrics.prompt_tokens.observe(len(self._request.prompt_token_ids))
        metrics.generation_tokens.observe(self._num_tokens)
        metrics.params_n.observe(params.n)
        if params.max_tokens is not None:
            metrics.params_max_tokens.observe(params.max_tokens)
        if self._first_step_s is not None:
            metrics.inference_time_s.observe(now_s - self._first_step_s)
        if self._first_token_s is None:
            return
        decode_s = now_s - self._first_token_s
        metrics.decode_time_s.observe(decode_s)
        num_gaps = self._num_tokens - params.n
        if num_gaps > 0:
            # The n sequences decode side by side.
            metrics.time_per_output_token_s.observe(decode_s * params.n / num_gaps)
