"""Paimon's Java library, called from the driver through py4j, without Java code of ours.

Python code does not depend on Paimon's file formats. The library is the `paimon-bundle` jar. It is fetched like Spark's
other jars when the first table needs it, and added to the running session. Rows go from the executors to Paimon's
writer as Parquet files in a folder that the driver reads. Spark writes them, and one call per file makes the JVM read
it with Paimon's Parquet reader into Paimon's writer. That loop is `RecordReader.forEachRemaining` with a consumer built
from method handles, so there is no call into Python per row.

py4j cannot call the default methods of Java interfaces; `Jvm.call_default` uses reflection for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.tablelayer.spark.jars import paimon_jar

_PROBE = "org.apache.paimon.catalog.CatalogFactory"
_KIND_FIELD_ID = 1_000_000
"""Field id of the column that exists in staged files only; far from the ids of real fields."""

KIND_COLUMN = "_headrace_kind"
"""Last column of a PK table's staged file, TINYINT: Paimon's row kind."""
KIND_INSERT, KIND_DELETE = 0, 3


class Jvm:
    """Paimon's classes in the JVM of a Spark session. Only the thread that created it may use it."""

    def __init__(self, spark: Any) -> None:
        self._gateway = spark.sparkContext._gateway
        self.java = spark._jvm
        self._loader = self._class_loader(spark)
        self.paimon = spark._jvm.org.apache.paimon

    def _class_loader(self, spark: Any) -> Any:
        """Return a class loader that knows Paimon, and make it this thread's context class loader."""
        thread = self.java.java.lang.Thread.currentThread()
        for attempt in range(2):
            loader = spark._jsparkSession.sharedState().jarClassLoader()
            thread.setContextClassLoader(loader)
            if _knows(loader, _PROBE):
                return loader
            if attempt == 0:
                spark.sql(f"ADD JAR '{paimon_jar()}'")
        raise AssertionError(f"Spark added the jar {paimon_jar()}, but {_PROBE} is not in it")

    def type_of(self, name: str) -> Any:
        """Return the `java.lang.Class` of a name below `org.apache.paimon`, or of a full name in `java.`."""
        return self._loader.loadClass(name if name.startswith("java.") else f"org.apache.paimon.{name}")

    def array(self, kind: Any, *values: Any) -> Any:
        made = self._gateway.new_array(kind, len(values))
        for index, value in enumerate(values):
            made[index] = value
        return made

    def list_of(self, values: Sequence[Any]) -> Any:
        made = self.java.java.util.ArrayList()
        for value in values:
            made.add(value)
        return made

    def map_of(self, values: Mapping[str, str]) -> Any:
        made = self.java.java.util.HashMap()
        for name, value in values.items():
            made.put(name, value)
        return made

    def call_default(self, owner: str, method: str, target: Any, *given: tuple[Any, Any]) -> Any:
        """Call `target.method(...)`, a default method of interface `owner`; `given` are (class, value) pairs."""
        types = self.array(self.java.java.lang.Class, *[kind for kind, _ in given])
        values = self.array(self.java.java.lang.Object, *[value for _, value in given])
        return self.type_of(owner).getMethod(method, types).invoke(target, values)

    # ---- rows

    def signature(self, returns: Any, *parameters: Any) -> Any:
        """Return a `MethodType` of these classes."""
        kinds = self.array(self.java.java.lang.Class, *parameters)
        return self.java.java.lang.invoke.MethodType.methodType(returns, kinds)

    def _writer_of(self, writer: Any, kind_position: int | None) -> Any:
        """Return a `java.util.function.Consumer` that writes a staged row, with its row kind if it has one."""
        invoke = self.java.java.lang.invoke
        handles, lookup = invoke.MethodHandles, invoke.MethodHandles.publicLookup()
        row, kind = self.type_of("data.InternalRow"), self.type_of("types.RowKind")
        nothing, byte, number = (
            self.java.java.lang.Void.TYPE,
            self.java.java.lang.Byte.TYPE,
            self.java.java.lang.Integer.TYPE,
        )
        write = lookup.findVirtual(
            self.type_of("table.sink.TableWriteImpl"), "write", self.signature(nothing, row)
        )
        if kind_position is None:
            return self.consumer(write.bindTo(writer))
        get_byte = lookup.findVirtual(row, "getByte", self.signature(byte, number))
        kind_byte = handles.insertArguments(
            get_byte, 1, self.array(self.java.java.lang.Object, kind_position)
        )
        from_byte = lookup.findStatic(kind, "fromByteValue", self.signature(kind, byte))
        kind_of = handles.filterReturnValue(kind_byte, from_byte)
        set_kind = lookup.findVirtual(row, "setRowKind", self.signature(nothing, kind))
        marked = handles.filterArguments(
            set_kind, 1, self.array(self.java.java.lang.invoke.MethodHandle, kind_of)
        )
        mark = handles.permuteArguments(marked, self.signature(nothing, row), self.array(self.java.int, 0, 0))
        return self.consumer(handles.foldArguments(write.bindTo(writer), mark))

    def consumer(self, handle: Any) -> Any:
        """Return a method handle of one argument as a `java.util.function.Consumer`."""
        lang = self.java.java.lang
        taking = handle.asType(self.signature(lang.Void.TYPE, lang.Class.forName("java.lang.Object")))
        consumer = lang.Class.forName("java.util.function.Consumer")
        return lang.invoke.MethodHandleProxies.asInterfaceInstance(consumer, taking)

    def for_each(self, reader: Any, consumer: Any) -> None:
        """Give the consumer every record of a `RecordReader`, and close the reader."""
        kind = self.java.java.lang.Class.forName("java.util.function.Consumer")
        try:
            self.call_default("reader.RecordReader", "forEachRemaining", reader, (kind, consumer))
        finally:
            reader.close()

    def write_files(self, table: Any, writer: Any, io: Any, files: Sequence[Any]) -> None:
        """Write the rows of staged Parquet files: the table's columns, for a PK table followed by `KIND_COLUMN`.

        A row of a log table may not have more columns than its table: Paimon gathers statistics of all of them.
        """
        fields = self.java.java.util.ArrayList(table.rowType().getFields())
        types, position = self.paimon.types, None
        if table.primaryKeys():
            position = fields.size()
            fields.add(types.DataField(_KIND_FIELD_ID, KIND_COLUMN, types.DataTypes.TINYINT()))
        rows = types.RowType(fields)
        parquet = self.paimon.format.FileFormat.fromIdentifier("parquet", self.paimon.options.Options())
        factory = parquet.createReaderFactory(rows, rows, self.java.java.util.ArrayList())
        consumer = self._writer_of(writer, position)
        for file in files:
            context = self.paimon.format.FormatReaderContext(io, file.getPath(), file.getLen())
            self.for_each(factory.createReader(context), consumer)


def _knows(loader: Any, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        loader.loadClass(name)
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() == "java.lang.ClassNotFoundException":
            return False
        raise
    return True


def java_error_name(error: BaseException) -> str:
    """Return the class name of a Java error from py4j, without its package; empty for other errors."""
    thrown = getattr(error, "java_exception", None)
    return "" if thrown is None else str(thrown.getClass().getName()).rpartition(".")[2].rpartition("$")[2]
