"""ApiVersions (18): computed from the declarations, so nothing can be advertised that is not answered.

Cheap, because every connection of every client asks: one response per version is made once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from broker.extension import ApiDeclaration, RequestContext
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsApi:
    """`declared` gives all declarations, this one among them; it is asked at the first request."""

    def __init__(self, declared: Callable[[], Sequence[ApiDeclaration]]) -> None:
        self._declared = declared
        self._response: ApiVersionsResponse | None = None

    def declarations(self) -> list[ApiDeclaration]:
        return [ApiDeclaration(ApiVersionsRequest, ApiVersionsResponse, self.api_versions)]

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if self._response is None:
            self._response = ApiVersionsResponse(
                api_keys=[
                    ApiVersion(
                        api_key=declaration.key,
                        min_version=declaration.advertised_min_version,
                        max_version=declaration.max_version,
                    )
                    for declaration in sorted(self._declared(), key=lambda declaration: declaration.key)
                ]
            )
        if context.api_version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=self._response.api_keys)
        return self._response
