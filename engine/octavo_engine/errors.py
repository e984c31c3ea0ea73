"""What can go wrong in the engine.

OctavoError
├── ConfigError        a setting that cannot work; the process does not start
├── CheckpointError    the model's files are missing, broken or not supported; names file and tensor
├── RequestError       the client's mistake; becomes a 400 with the offending parameter
│   └── PromptTooLong  names both numbers
├── QueueFull          try again later; becomes a 429 or 503 with Retry-After
└── EngineDead         the core has stopped; becomes a 503, and the process exits
    ├── EngineStalled  work waits and no step is made: the process ends without a drain
    └── RankFailed     a rank has ended, is silent or differs from rank 0
"""


class OctavoError(Exception):
    """Root of everything that the engine raises on purpose."""


class ConfigError(OctavoError):
    pass


class CheckpointError(OctavoError):
    pass


class RequestError(OctavoError):
    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        """The request's field at fault, by its name in the API."""


class PromptTooLong(RequestError):
    pass


class QueueFull(OctavoError):
    pass


class EngineDead(OctavoError):
    pass


class EngineStalled(EngineDead):
    pass


class RankFailed(EngineDead):
    pass
