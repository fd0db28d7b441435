"""The table extension's own messages: API keys from 10000 on, flexible from version 0.

They are declared like Kafka's messages and travel on the same port with the same headers. Kafka clients ignore keys
that they do not know. Clients find a bucket's leader with Kafka's Metadata and offsets by time with ListOffsets, both
for the topic `database.table`; they keep committed positions with OffsetCommit and OffsetFetch.

Every response is a `TableResponse`. Error codes below 1000 are Kafka's; the others are `TableErrorCode`. Rows travel
as one Arrow IPC record batch message without a schema (`batches/ipc.py`), written under `schema_id`. Log batches are
described in `batches/batch.py`; each has its own schema id. With `schema_id` a reader chooses one of the table's
schemas (-1: the latest). Rows are answered in that schema, whichever schema they were written under, but log batches
are sent as they are. Column lists are column ids of that schema in the order of its columns; null means all columns.
Rows and batches are views of the decoded frame and are sent by reference.
"""

from headrace.tablelayer.model.messages.answers import *
from headrace.tablelayer.model.messages.between import *
from headrace.tablelayer.model.messages.catalog import *
from headrace.tablelayer.model.messages.lake import *
from headrace.tablelayer.model.messages.loads import *
from headrace.tablelayer.model.messages.partitions import *
from headrace.tablelayer.model.messages.process import *
from headrace.tablelayer.model.messages.read import *
from headrace.tablelayer.model.messages.refused import *
from headrace.tablelayer.model.messages.rights import *
from headrace.tablelayer.model.messages.snapshots import *
from headrace.tablelayer.model.messages.staged import *
from headrace.tablelayer.model.messages.write import *
