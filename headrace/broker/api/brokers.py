"""Changes to the cluster's brokers: UpdateFeatures (57, KIP-584), UnregisterBroker (64, KIP-730)."""

from __future__ import annotations

from typing import Final

from headrace.broker.cluster.brokers import ClusterBrokers
from headrace.broker.metadata.features import METADATA_VERSION
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.security.requirement import whole
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from headrace.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

FIXED_FEATURES: Final = {"group.version": 1, "transaction.version": 2}
"""Levels by name. group.version 1: clients may use the consumer protocol (KIP-848). transaction.version 2: writes
announce their partitions, every end of a transaction raises the epoch (KIP-890).
"""
UPGRADE: Final = 1
UPDATES_MAX: Final = 100


class BrokersApi:
    def __init__(self, brokers: ClusterBrokers) -> None:
        self._brokers = brokers

    def declarations(self) -> list[ApiDeclaration]:
        alter = whole(Operation.ALTER)
        return [
            ApiDeclaration(UpdateFeaturesRequest, UpdateFeaturesResponse, self.update_features, alter),
            ApiDeclaration(UnregisterBrokerRequest, UnregisterBrokerResponse, self.unregister_broker, alter),
        ]

    async def unregister_broker(
        self, context: RequestContext, request: UnregisterBrokerRequest
    ) -> UnregisterBrokerResponse:
        await self._brokers.forget_broker(request.broker_id)
        return UnregisterBrokerResponse()

    async def update_features(
        self, context: RequestContext, request: UpdateFeaturesRequest
    ) -> UpdateFeaturesResponse:
        """Update all features or none. One feature has a level that can change."""
        updates = request.feature_updates
        if len(updates) > UPDATES_MAX or len({each.feature for each in updates}) != len(updates):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "each feature is updated once")
        problems: dict[str, KafkaError] = {}
        for validate_only in (True, request.validate_only):
            for each in updates:
                try:
                    await self._update(context, each, validate_only)
                except KafkaError as error:
                    problems[each.feature] = error
            if problems:
                break
        response = UpdateFeaturesResponse(results=[])
        if context.api_version >= 2:
            for name, problem in list(problems.items())[:1]:
                response.error_code = problem.code
                response.error_message = f"The update failed for all features: {name}: {problem.message}"
            return response
        for each in updates:
            found = problems.get(each.feature)
            code, message = (0, None) if found is None else (found.code, found.message)
            response.results.append(
                UpdatableFeatureResult(feature=each.feature, error_code=code, error_message=message)
            )
        return response

    async def _update(self, context: RequestContext, update: FeatureUpdateKey, validate_only: bool) -> None:
        name, level = update.feature, update.max_version_level
        downgrade = update.upgrade_type != UPGRADE if context.api_version else update.allow_downgrade
        if name == METADATA_VERSION:
            await self._brokers.set_level(level, downgrade=downgrade, validate_only=validate_only)
        elif name not in FIXED_FEATURES:
            known = ", ".join((METADATA_VERSION, *FIXED_FEATURES))
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION, f"feature {name} is unknown; supported features are {known}"
            )
        elif level != FIXED_FEATURES[name]:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION, f"{name} is always at level {FIXED_FEATURES[name]} here"
            )
