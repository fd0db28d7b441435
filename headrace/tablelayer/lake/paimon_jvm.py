"""Paimon's own Java library, called from the driver through py4j: no code of ours in the JVM, nothing in Python that
Paimon's file formats depend on.

The library is the `paimon-bundle` jar, fetched like Spark's other jars when the first table needs it and added to
the running session. Rows go from the executors to Paimon's writer as Parquet files in a folder of the driver's: Spark
writes them, and one call per file lets the JVM read them back with Paimon's Parquet reader into Paimon's writer. That
loop is `RecordReader.forEachRemaining` over a consumer put together from method handles, so Python is not asked once
per row.

py4j cannot call the default methods of Java interfaces; those go through reflection (`Jvm.call_default`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.tablelayer.spark.jars import paimon_jar

_PROBE = "org.apache.paimon.catalog.CatalogFactory"
_KIND_FIELD_ID = 1_000_000
"""Of the column that exists in staged files only; far from the ids of real fields."""

KIND_COLUMN = "_headrace_kind"
"""TINYINT, the last column of a staged file: Paimon's row kinds."""
KIND_INSERT, KIND_DELETE = 0, 3


class Jvm:
    """Paimon's classes in the JVM of a Spark session. Made by the thread that uses it."""

    def __init__(self, spark: Any) -> None:
        self._gateway = spark.sparkContext._gateway
        self.java = spark._jvm
        self._loader = self._class_loader(spark)
        self.paimon = spark._jvm.org.apache.paimon

    def _class_loader(self, spark: Any) -> Any:
        """A loader that knows Paimon, made the one in which this thread's classes are looked up."""
        thread = self.java.java.lang.Thread.currentThread()
        for attempt in range(2):
            loader = spark._jsparkSession.sharedState().jarClassLoader()
            thread.setContextClassLoader(loader)
            if _knows(loader, _PROBE):
                return loader
            if attempt == 0:
                spark.sql(f"ADD JAR '{paimon_jar()}'")
        raise AssertionError(f"Spark took the jar {paimon_jar()}, but does not find {_PROBE} in it")

    def type_of(self, name: str) -> Any:
        """The `java.lang.Class` of a name below `org.apache.paimon`, or of a full name of Java's own."""
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
        """`target.method(...)` for a default method of the interface `owner`; `given` are (class, value) pairs."""
        types = self.array(self.java.java.lang.Class, *[kind for kind, _ in given])
        values = self.array(self.java.java.lang.Object, *[value for _, value in given])
        return self.type_of(owner).getMethod(method, types).invoke(target, values)

    # ---- rows

    def signature(self, returns: Any, *parameters: Any) -> Any:
        """A `MethodType` of these classes."""
        kinds = self.array(self.java.java.lang.Class, *parameters)
        return self.java.java.lang.invoke.MethodType.methodType(returns, kinds)

    def _writer_of(self, writer: Any, kind_position: int) -> Any:
        """A `java.util.function.Consumer` that writes a staged row with the kind that it carries."""
        invoke = self.java.java.lang.invoke
        handles, lookup = invoke.MethodHandles, invoke.MethodHandles.publicLookup()
        row, kind = self.type_of("data.InternalRow"), self.type_of("types.RowKind")
        nothing, byte, number = (
            self.java.java.lang.Void.TYPE,
            self.java.java.lang.Byte.TYPE,
            self.java.java.lang.Integer.TYPE,
        )
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
        write = lookup.findVirtual(
            self.type_of("table.sink.TableWriteImpl"), "write", self.signature(nothing, row)
        )
        return self.consumer(handles.foldArguments(write.bindTo(writer), mark))

    def consumer(self, handle: Any) -> Any:
        """A method handle of one argument as a `java.util.function.Consumer`."""
        lang = self.java.java.lang
        taking = handle.asType(self.signature(lang.Void.TYPE, lang.Class.forName("java.lang.Object")))
        consumer = lang.Class.forName("java.util.function.Consumer")
        return lang.invoke.MethodHandleProxies.asInterfaceInstance(consumer, taking)

    def for_each(self, reader: Any, consumer: Any) -> None:
        """Give the consumer every record of a `RecordReader`, and close that."""
        kind = self.java.java.lang.Class.forName("java.util.function.Consumer")
        try:
            self.call_default("reader.RecordReader", "forEachRemaining", reader, (kind, consumer))
        finally:
            reader.close()

    def write_files(self, table: Any, writer: Any, files: Sequence[Path]) -> None:
        """Write the rows of staged Parquet files, which have the table's columns and `KIND_COLUMN` behind them."""
        fields = self.java.java.util.ArrayList(table.rowType().getFields())
        position = fields.size()
        types = self.paimon.types
        fields.add(types.DataField(_KIND_FIELD_ID, KIND_COLUMN, types.DataTypes.TINYINT()))
        rows = types.RowType(fields)
        parquet = self.paimon.format.FileFormat.fromIdentifier("parquet", self.paimon.options.Options())
        factory = parquet.createReaderFactory(rows, rows, self.java.java.util.ArrayList())
        local = self.paimon.fs.local.LocalFileIO.create()
        consumer = self._writer_of(writer, position)
        for file in files:
            path = self.paimon.fs.Path(str(file))
            context = self.paimon.format.FormatReaderContext(local, path, file.stat().st_size)
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
    """The Java class of what py4j raised, without its package; empty for other errors."""
    thrown = getattr(error, "java_exception", None)
    return "" if thrown is None else str(thrown.getClass().getName()).rpartition(".")[2].rpartition("$")[2]
