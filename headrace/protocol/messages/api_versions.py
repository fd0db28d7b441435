"""ApiVersions, API key 18: which APIs and versions the broker speaks. The first request on nearly every connection.

A version that the broker does not know is answered in version 0 with UNSUPPORTED_VERSION (KIP-511), and the header of
the response is always version 0, because a client reads it before it knows anything. Up to version 3 a supported
feature whose `min_version` is 0 must be left out (KIP-1022); the handler that fills the response does that.
"""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(ApiMessage, key=18, kind="request", versions="0-4", flexible="3+"):
    client_software_name: str = string(versions="3+", ignorable=True)
    client_software_version: str = string(versions="3+", ignorable=True)


class ApiVersion(Struct):
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Struct):
    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


class FinalizedFeatureKey(Struct):
    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


class ApiVersionsResponse(ApiMessage, key=18, kind="response", versions="0-4", flexible="3+"):
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, versions="3+", ignorable=True, tag=0
    )
    finalized_features_epoch: int = int64(versions="3+", default=-1, ignorable=True, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, versions="3+", ignorable=True, tag=2
    )
    zk_migration_ready: bool = boolean(versions="3+", ignorable=True, tag=3)

    @classmethod
    def header_version(cls, version: int) -> int:
        """Always 0 (KIP-511): the client must be able to read the answer before it knows what the broker speaks."""
        return 0
