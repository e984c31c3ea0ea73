"""The HTTP parser that uvicorn uses, with a bound on what comes before a body.

httptools itself keeps a header that never ends until the memory does.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Of request line and headers, counted in the pieces that the network delivers."""


class BoundedHttp(HttpToolsProtocol):
    _num_head_bytes = 0
    _is_in_head = True

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES and len(data) < self._num_head_bytes:
                self.logger.warning("request head over %d bytes", MAX_HEAD_BYTES)
                self.send_400_response("Request head too large.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._num_head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) + len(value) > MAX_HEAD_BYTES:
            raise httptools.HttpParserError("header too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()
