"""The result of a broker's SASL configurations."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.runtime.ports import SystemClock, SystemEntropy
from headrace.broker.security.sasl.settings import SaslParts, sasl_of_listener


def test_a_jaas_configuration_that_is_malformed_is_named_without_its_values() -> None:
    name = "listener.name.a.plain.sasl.jaas.config"
    texts = {"sasl.enabled.mechanisms": "PLAIN", name: 'x.PlainLoginModule required user_ann="hunter2"'}
    with ThreadPoolExecutor(1) as executor:
        parts = SaslParts(None, None, SystemClock(), SystemEntropy(), executor)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="not terminated") as refused:
            sasl_of_listener("A", texts.get, parts)
    assert name in str(refused.value)
    assert "hunter2" not in str(refused.value)
