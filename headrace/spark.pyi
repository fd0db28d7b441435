from headrace.tablelayer.lake.union_read import lake_then_stream as lake_then_stream
from headrace.tablelayer.lake.union_read import union_read as union_read
from headrace.tablelayer.lake.union_scan import union_scan as union_scan
from headrace.tablelayer.spark.builder import create_view as create_view
from headrace.tablelayer.spark.builder import table as table
from headrace.tablelayer.spark.builder import use as use
from headrace.tablelayer.spark.delta_joins import delta_join as delta_join
from headrace.tablelayer.spark.lookups import lookup_join as lookup_join
from headrace.tablelayer.spark.sessions import session as session
from headrace.tablelayer.spark.source import register as register
from headrace.tablelayer.spark.stream import run_available_now as run_available_now

__all__: list[str]
