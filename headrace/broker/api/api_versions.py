"""ApiVersions (18): computed from the declarations, so nothing can be advertised that is not answered. APIs that are
declared only to be refused (`broker.api.not_offered`) are left out.

Every connection of every client asks, so one response per version is kept until levels of features change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from headrace.broker.api.brokers import FIXED_FEATURES
from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.features import METADATA_VERSION
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.security.requirement import public
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsApi:
    """`declared` returns all declarations, including this one; it is called at the first request."""

    def __init__(self, declared: Callable[[], Sequence[ApiDeclaration]], metadata: ClusterMetadata) -> None:
        self._declared = declared
        self._metadata = metadata
        self._responses: dict[bool, ApiVersionsResponse] = {}
        self._level_version = metadata.image.level_version

    def declarations(self) -> list[ApiDeclaration]:
        return [ApiDeclaration(ApiVersionsRequest, ApiVersionsResponse, self.api_versions, public())]

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        # Up to version 3 clients do not understand a feature that may be absent (KIP-1022).
        shows_supported = context.api_version >= 4
        if self._level_version != self._metadata.image.level_version:
            self._level_version = self._metadata.image.level_version
            self._responses.clear()
        response = self._responses.get(shows_supported)
        if response is None:
            response = self._responses[shows_supported] = self._make_response(shows_supported)
        if context.api_version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=response.api_keys)
        return response

    def _make_response(self, shows_supported: bool) -> ApiVersionsResponse:
        image, (_, highest) = self._metadata.image, self._metadata.levels
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(
                    api_key=declaration.key,
                    min_version=declaration.advertised_min_version,
                    max_version=declaration.max_version,
                )
                for declaration in sorted(self._declared(), key=lambda declaration: declaration.key)
                if declaration.advertised
            ],
            supported_features=[
                SupportedFeatureKey(name=name, min_version=0, max_version=level)
                for name, level in {METADATA_VERSION: highest, **FIXED_FEATURES}.items()
            ]
            if shows_supported
            else [],
            finalized_features_epoch=image.level_version + 1,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in {METADATA_VERSION: image.level, **FIXED_FEATURES}.items()
            ],
        )
