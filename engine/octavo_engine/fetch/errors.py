"""What can go wrong while a model's files are fetched.

FetchError               ends the fetch; its reason is told in the termination message
├── DownloadFailed       the files cannot be got: not there, not allowed, no answer, no room
├── ChecksumMismatch     what came is not what the source says it holds
├── SecretMissing        the source asks for a key that the mounted Secret does not hold
└── DoesNotFit           all is there, and cannot run with the memory that the settings give
TemporaryFailure         one read failed in a way that the next may not; never leaves the package
"""

from octavo_engine.errors import OctavoError


class FetchError(OctavoError):
    pass


class DownloadFailed(FetchError):
    pass


class ChecksumMismatch(FetchError):
    pass


class SecretMissing(FetchError):
    pass


class DoesNotFit(FetchError):
    pass


class TemporaryFailure(OctavoError):
    pass
