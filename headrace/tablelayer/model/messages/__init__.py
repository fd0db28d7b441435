"""The table extension's own messages: API keys from 10000 up, flexible from the start.

They are declared in the vocabulary of Kafka's messages and travel on the same port with the same headers; clients of
Kafka skip keys they do not know. Where a bucket's leader is, and offsets by time, are asked with Kafka's own Metadata
and ListOffsets for the topic `database.table`; committed positions with OffsetCommit and OffsetFetch.

Every response is a `TableResponse`; error codes are Kafka's below 1000 and `TableErrorCode` from there. Rows
travel as one Arrow IPC record batch message without a schema (`batches/ipc.py`), written under `schema_id`; log
batches as in `batches/batch.py`, each under its own. A reader says with `schema_id` which of the table's schemas it
means (-1: the latest), and answers of rows are in that one, whatever schema they were written under; batches of a log
come as they are. Column lists are column ids of that schema in the order of its columns; null means all columns. Rows
and batches are views of the frame that was decoded, and are sent by reference.
"""

from headrace.tablelayer.model.messages.answers import *
from headrace.tablelayer.model.messages.between import *
from headrace.tablelayer.model.messages.catalog import *
from headrace.tablelayer.model.messages.lake import *
from headrace.tablelayer.model.messages.partitions import *
from headrace.tablelayer.model.messages.process import *
from headrace.tablelayer.model.messages.read import *
from headrace.tablelayer.model.messages.refused import *
from headrace.tablelayer.model.messages.rights import *
from headrace.tablelayer.model.messages.snapshots import *
from headrace.tablelayer.model.messages.staged import *
from headrace.tablelayer.model.messages.write import *
