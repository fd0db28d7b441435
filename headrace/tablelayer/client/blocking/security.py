"""The blocking administration of users and rights."""

from __future__ import annotations

from headrace.tablelayer.client.admin.security import AsyncSecurityAdmin
from headrace.tablelayer.client.blocking.waiting import Waiting, waits


class SecurityAdmin(Waiting):
    """Manages users and rights. `AsyncSecurityAdmin` documents the methods."""

    require = waits(AsyncSecurityAdmin.require)
    grant = waits(AsyncSecurityAdmin.grant)
    revoke = waits(AsyncSecurityAdmin.revoke)
    grants = waits(AsyncSecurityAdmin.grants)
    create_acls = waits(AsyncSecurityAdmin.create_acls)
    list_acls = waits(AsyncSecurityAdmin.list_acls)
    delete_acls = waits(AsyncSecurityAdmin.delete_acls)
    create_user = waits(AsyncSecurityAdmin.create_user)
    alter_user = waits(AsyncSecurityAdmin.alter_user)
    drop_user = waits(AsyncSecurityAdmin.drop_user)
    list_users = waits(AsyncSecurityAdmin.list_users)
