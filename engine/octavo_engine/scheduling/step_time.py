"""How long a step takes, learnt from the steps themselves: the basis of `target_itl_ms`.

    seconds = base + prefill tokens * a + decodes * b + context tokens * c

Recursive least squares with forgetting, so that the model follows the machine it runs on. Pure.
"""

_FORGETTING = 0.99
_PRIOR_VARIANCE = 100.0
_SCALES = (1.0, 1 / 1024, 1 / 64, 1 / 65536)
"""Brings the terms of a typical step to about one, which keeps the recursion well conditioned."""
_MIN_OBSERVATIONS = 4
_FIRST_CHUNK = 128
_MIN_CHUNK = 16
"""Prefill tokens in a step even when the target cannot be kept: nothing may starve."""
_HEADROOM = 0.9
"""Share of the target to plan for: the rest is the model's own error."""


class StepTimeModel:
    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        size = len(_SCALES)
        self._weights = [0.0] * size
        self._covariance = [
            [_PRIOR_VARIANCE if i == j else 0.0 for j in range(size)] for i in range(size)
        ]
        self._num_observed = 0

    def observe(
        self, duration_s: float, num_prefill_tokens: int, num_decodes: int, num_context_tokens: int
    ) -> None:
        x = _terms(num_prefill_tokens, num_decodes, num_context_tokens)
        projected = [_dot(row, x) for row in self._covariance]
        gain_norm = _FORGETTING + _dot(x, projected)
        error_s = duration_s - _dot(self._weights, x)
        gain = [value / gain_norm for value in projected]
        self._weights = [w + g * error_s for w, g in zip(self._weights, gain, strict=True)]
        self._covariance = [
            # Forgetting alone would blow up what is not observed for long.
            [
                min((old - g * p) / _FORGETTING, _PRIOR_VARIANCE)
                for old, p in zip(row, projected, strict=True)
            ]
            for row, g in zip(self._covariance, gain, strict=True)
        ]
        self._num_observed += 1

    def predict_s(
        self, num_prefill_tokens: int, num_decodes: int, num_context_tokens: int
    ) -> float:
        # Work never takes negative time: a negative weight is noise.
        weights = [max(w, 0.0) for w in self._weights]
        return _dot(weights, _terms(num_prefill_tokens, num_decodes, num_context_tokens))

    def prefill_allowance(self, num_decodes: int, num_context_tokens: int) -> int:
        """Prefill tokens that a step with these decodes can take within the target."""
        if self._num_observed < _MIN_OBSERVATIONS:
            return _FIRST_CHUNK
        without_s = self.predict_s(0, num_decodes, num_context_tokens)
        per_token_s = self._weights[1] * _SCALES[1]
        left_s = self._target_s * _HEADROOM - without_s
        if per_token_s <= 0:
            return _FIRST_CHUNK
        return max(_MIN_CHUNK, int(left_s / per_token_s))


def _terms(num_prefill_tokens: int, num_decodes: int, num_context_tokens: int) -> list[float]:
    values = (1, num_prefill_tokens, num_decodes, num_context_tokens)
    return [value * scale for value, scale in zip(values, _SCALES, strict=True)]


def _dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
