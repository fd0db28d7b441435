"""The broker's configurations of lake catalogs, and which clients may see their values.

`datalake.<format>.<name>` is a catalog property, with the name from the lake's documentation. Properties of a catalog's
place and protocol are visible to all clients. Any other property may be a credential: only clients that present
`datalake.tiering.token` see its value; other clients see that it is set.
"""

from __future__ import annotations

import hmac
import re
from urllib.parse import urlsplit

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigKey, ConfigType
from headrace.tablelayer.model.messages.lake import LakeProperty
from headrace.tablelayer.model.options.table_options import DatalakeFormat

TIERING_TOKEN = "datalake.tiering.token"
FORMAT_CONFIG = "datalake.format"
_TOKEN_LENGTH_MIN = 16
_PREFIXES = ("datalake.iceberg.", "datalake.paimon.")
_OPEN = re.compile(
    r"type|catalog-impl|metastore|warehouse|uri|prefix|io-impl|metrics-reporter-impl|lock-impl|lock\.enabled|lock\.type"
    r"|default-namespace|table-(?:default|override)\..+|cache[.-].+|client\.region|rest\.auth\.type|oauth2-server-uri"
    r"|scope|rest\.sigv4-enabled|rest\.signing-(?:name|region)|glue\.(?:id|endpoint|skip-archive)|s3\.(?:endpoint|region"
    r"|path-style-access|path\.style\.access)|gcs\.(?:project-id|service\.host)|fs\.(?:s3a|oss)\.endpoint"
)
"""Names, without `datalake.<format>.`, whose values are not secret."""


def _catalog_type(name: str) -> ConfigType:
    own = next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)
    return ConfigType.STRING if _OPEN.fullmatch(own) else ConfigType.PASSWORD


def _catalog_complaint(text: str) -> str | None:
    """Refuse a URL with a password, because all clients may see it."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    if parts.password is None:
        return None
    return "a URL with a password would be visible to all clients: set the password by the catalog's own property"


def _token_complaint(text: str) -> str | None:
    if len(text) >= _TOKEN_LENGTH_MIN:
        return None
    return f"it is too easy to guess: choose {_TOKEN_LENGTH_MIN} characters or more, at random"


def _format_complaint(text: str) -> str | None:
    known = [each.value for each in DatalakeFormat]
    return None if text in known else f"it must be {' or '.join(known)}"


LAKE_CATALOG_CONFIGS = (
    ConfigKey(
        FORMAT_CONFIG,
        ConfigType.STRING,
        None,
        "Lake format that is recorded in new tables that name none, iceberg or paimon, so that the lake can be enabled "
        "for them at any time. By default the format whose warehouse or catalog is configured, Iceberg first.",
        _format_complaint,
        dynamic=True,
    ),
    ConfigKey(
        "datalake.iceberg.warehouse",
        ConfigType.STRING,
        None,
        "Folder or URI of the Iceberg warehouse to which tables are tiered.",
        _catalog_complaint,
    ),
    ConfigKey(
        "datalake.paimon.warehouse",
        ConfigType.STRING,
        None,
        "Folder or URI of the Paimon warehouse to which tables for Paimon are tiered.",
        _catalog_complaint,
    ),
    ConfigKey(
        "datalake.paimon.*",
        ConfigType.STRING,
        None,
        "Property of the Paimon catalog, as Paimon's documentation names it: fs.*, table-default.*",
        _catalog_complaint,
        type_of=_catalog_type,
    ),
    ConfigKey(
        "datalake.iceberg.*",
        ConfigType.STRING,
        None,
        "Property of the Iceberg catalog, as Iceberg's documentation names it: type, uri, table-default.*",
        _catalog_complaint,
        type_of=_catalog_type,
    ),
    ConfigKey(
        TIERING_TOKEN,
        ConfigType.PASSWORD,
        None,
        "Secret that a tiering job, or a reader of the lake, presents to see the credentials among the "
        "properties of lake catalogs. Its environment has the same text as HEADRACE_TIERING_TOKEN. "
        "Without it no client sees them.",
        _token_complaint,
    ),
)


def has_catalog(config: BrokerConfig, lake: str) -> bool:
    """Return whether the broker has a place for tables of this lake format: a warehouse, or another catalog."""
    prefix = f"datalake.{lake}."
    given = {
        name.removeprefix(prefix): text for name, text in config.explicit.items() if name.startswith(prefix)
    }
    if lake == "iceberg" and (given.get("type", "hadoop") != "hadoop" or "catalog-impl" in given):
        return True
    return bool(given.get("warehouse"))


def properties_for(config: BrokerConfig, token: str | None) -> list[LakeProperty]:
    """Return the lake catalogs' properties that are set; a secret value is null without the right token."""
    expected = config[TIERING_TOKEN]
    trusted = bool(expected and token) and hmac.compare_digest(
        str(expected).encode(), str(token).encode(errors="replace")
    )
    return [
        LakeProperty(
            key=name,
            value=text if trusted or config.keys[name].type is not ConfigType.PASSWORD else None,
        )
        for name, text in sorted(config.explicit.items())
        if name.startswith(_PREFIXES)
    ]
