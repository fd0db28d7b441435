"""The handlers of the table extension's APIs, a class for each group of messages.

They are loaded with the first request: they import numba and RocksDB, which would double the memory of a broker without
tables.
"""

from __future__ import annotations

from headrace.tablelayer.server.api.catalog import CatalogHandlers
from headrace.tablelayer.server.api.copies import CopyHandlers
from headrace.tablelayer.server.api.definition_texts import DefinitionTexts
from headrace.tablelayer.server.api.forwarded import ForwardedHandlers
from headrace.tablelayer.server.api.lake import LakeHandlers
from headrace.tablelayer.server.api.loads import LoadHandlers
from headrace.tablelayer.server.api.partitions import PartitionHandlers
from headrace.tablelayer.server.api.read import ReadHandlers
from headrace.tablelayer.server.api.refused import RefusedHandlers
from headrace.tablelayer.server.api.rights import RightsHandlers
from headrace.tablelayer.server.api.snapshots import SnapshotHandlers
from headrace.tablelayer.server.api.staged import StagedHandlers
from headrace.tablelayer.server.api.targets import Targets
from headrace.tablelayer.server.api.write import WriteHandlers
from headrace.tablelayer.server.catalog.catalog import Catalog
from headrace.tablelayer.server.lake.dropped import GonePartitionsStore
from headrace.tablelayer.server.lake.subjects import LakeSubjects
from headrace.tablelayer.server.lake.tiering import LakeRounds
from headrace.tablelayer.server.read.snapshot_scans import SnapshotScans
from headrace.tablelayer.server.rights.column_grants import ColumnGrants
from headrace.tablelayer.server.rights.table_rights import TableRights
from headrace.tablelayer.server.services import Services
from headrace.tablelayer.server.staged.commits import StagedCommits


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
        targets, texts = Targets(catalog, rights), DefinitionTexts(services)
        self.catalog = CatalogHandlers(services, catalog, rights, texts)
        gone = GonePartitionsStore(services.context.store)
        self.partitions = PartitionHandlers(catalog, rights, lake, gone)
        self.write = WriteHandlers(targets, texts)
        self.read = ReadHandlers(services, targets, scans)
        self.forwarded = ForwardedHandlers(services)
        self.copies = CopyHandlers(services)
        self.staged = StagedHandlers(rights, staged)
        self.refused = RefusedHandlers(services.refusals, catalog, rights)
        self.snapshots = SnapshotHandlers(catalog, rights)
        self.loads = LoadHandlers(catalog, rights, services.standbys)
        self.rights = RightsHandlers(catalog, grants)
        self.lake = LakeHandlers(services, rights, lake, subjects, gone)
