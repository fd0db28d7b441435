"""The handlers of the table extension's APIs, a class for each group of messages.

They are loaded when the first of them is needed: with them come numba and RocksDB, half of the memory that a broker
without tables would have.
"""

from __future__ import annotations

from tablelayer.server.api.catalog import CatalogHandlers
from tablelayer.server.api.copies import CopyHandlers
from tablelayer.server.api.forwarded import ForwardedHandlers
from tablelayer.server.api.lake import LakeHandlers
from tablelayer.server.api.partitions import PartitionHandlers
from tablelayer.server.api.read import ReadHandlers
from tablelayer.server.api.refused import RefusedHandlers
from tablelayer.server.api.rights import RightsHandlers
from tablelayer.server.api.snapshots import SnapshotHandlers
from tablelayer.server.api.staged import StagedHandlers
from tablelayer.server.api.targets import Targets
from tablelayer.server.api.write import WriteHandlers
from tablelayer.server.catalog.catalog import Catalog
from tablelayer.server.lake.subjects import LakeSubjects
from tablelayer.server.lake.tiering import LakeRounds
from tablelayer.server.read.snapshot_scans import SnapshotScans
from tablelayer.server.rights.column_grants import ColumnGrants
from tablelayer.server.rights.table_rights import TableRights
from tablelayer.server.services import Services
from tablelayer.server.staged.commits import StagedCommits


class Handlers:
    def __init__(
        self,
        services: Services,
        catalog: Catalog,
        lake: LakeRounds,
        subjects: LakeSubjects,
        scans: SnapshotScans,
        staged: StagedCommits,
        rights: TableRights,
        grants: ColumnGrants,
    ) -> None:
        targets = Targets(catalog, rights)
        self.catalog = CatalogHandlers(services, catalog, rights)
        self.partitions = PartitionHandlers(catalog, rights)
        self.write = WriteHandlers(targets)
        self.read = ReadHandlers(services, targets, scans)
        self.forwarded = ForwardedHandlers(services)
        self.copies = CopyHandlers(services)
        self.staged = StagedHandlers(services, rights, staged)
        self.refused = RefusedHandlers(services.refusals, catalog, rights)
        self.snapshots = SnapshotHandlers(catalog, rights)
        self.rights = RightsHandlers(catalog, grants)
        self.lake = LakeHandlers(services, rights, lake, subjects)
