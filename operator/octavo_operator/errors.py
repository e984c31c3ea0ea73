"""What can go wrong in the operator; permanent or temporary is part of the type.

OperatorError
├── ConfigurationError   the operator's own settings cannot work; the process does not start
├── InvalidService       this InferenceService cannot be carried out until its spec changes
├── ApiError             the API server answered, or did not answer, with an error
│   ├── ApiRejected      asking again with the same body gives the same answer
│   └── ApiUnavailable   asking again later may help; holds the server's Retry-After
└── LeaseLost            another operator is active; the process must end at once
"""

from octavo_operator.reasons import Reason


class OperatorError(Exception):
    """Root of everything that the operator raises on purpose."""


class ConfigurationError(OperatorError):
    pass


class InvalidService(OperatorError):
    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class ApiError(OperatorError):
    def __init__(self, call: str, status: int, message: str) -> None:
        super().__init__(f"{call}: {status} {message}")
        self.call = call
        """Verb and path, for logs."""
        self.status = status
        """HTTP status; 0 when there was no answer."""
        self.message = message


class ApiRejected(ApiError):
    pass


class ApiUnavailable(ApiError):
    def __init__(
        self, call: str, status: int, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(call, status, message)
        self.retry_after_s = retry_after_s


class LeaseLost(OperatorError):
    pass
