package headrace.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** UPDATE, DELETE and MERGE: each row goes with the kind of change it is, a deleted one with its key alone. */
final class HeadraceDeltaWrite implements DeltaWriteBuilder, DeltaWrite, DeltaBatchWrite {
    private static final String ROW_KIND_COLUMN = "_headrace_row_kind";

    private final HeadraceTable table;
    private final Server server;
    private final StructType schema;
    private final int[] keyPlaces;
    private Staging staging;

    HeadraceDeltaWrite(HeadraceTable table, LogicalWriteInfo info) {
        this.table = table;
        this.server = table.server.with(info.options().asCaseSensitiveMap());
        StructType key = info.rowIdSchema().orElseThrow();
        // A statement that only deletes has no rows to write, and no columns of them.
        StructType columns = info.schema().isEmpty() ? key : info.schema();
        StructType all = new StructType();
        for (StructField field : columns.fields()) {
            all = all.add(new StructField(field.name(), field.dataType(), true, field.metadata()));
        }
        this.schema = all.add(ROW_KIND_COLUMN, DataTypes.StringType, false);
        this.keyPlaces = new int[key.size()];
        for (int at = 0; at < keyPlaces.length; at++) {
            keyPlaces[at] = columns.fieldIndex(key.fields()[at].name());
        }
    }

    @Override
    public DeltaWrite build() {
        return this;
    }

    @Override
    public String description() {
        return "headrace " + table.name();
    }

    @Override
    public DeltaBatchWrite toBatch() {
        staging = new Staging(table, server, schema);
        return this;
    }

    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        return new Writers(staging.plan(schema), keyPlaces);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
        staging.commit(messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
        staging.abort(messages);
    }

    private record Writers(RowWriter.Plan plan, int[] keyPlaces) implements DeltaWriterFactory {
        @Override
        public DeltaWriter<InternalRow> createWriter(int partition, long task) {
            return new Writer(new RowWriter(plan), plan.schema(), keyPlaces);
        }
    }

    private static final class Writer implements DeltaWriter<InternalRow> {
        private static final InternalRow PUT = kind("+U");
        private static final InternalRow GONE = kind("-D");
        private final RowWriter rows;
        private final StructType schema;
        private final int[] keyPlaces;
        private final JoinedRow joined = new JoinedRow();

        Writer(RowWriter rows, StructType schema, int[] keyPlaces) {
            this.rows = rows;
            this.schema = schema;
            this.keyPlaces = keyPlaces;
        }

        private static InternalRow kind(String text) {
            return new GenericInternalRow(new Object[] {UTF8String.fromString(text)});
        }

        @Override
        public void insert(InternalRow row) throws IOException {
            rows.write(joined.apply(row, PUT));
        }

        @Override
        public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
            for (int at = 0; at < keyPlaces.length; at++) {
                Object before = id.get(at, schema.fields()[keyPlaces[at]].dataType());
                if (!before.equals(row.get(keyPlaces[at], schema.fields()[keyPlaces[at]].dataType()))) {
                    delete(metadata, id); // the row gets another key
                    break;
                }
            }
            insert(row);
        }

        @Override
        public void delete(InternalRow metadata, InternalRow id) throws IOException {
            Object[] values = new Object[schema.size() - 1];
            for (int at = 0; at < keyPlaces.length; at++) {
                values[keyPlaces[at]] = id.get(at, schema.fields()[keyPlaces[at]].dataType());
            }
            rows.write(joined.apply(new GenericInternalRow(values), GONE));
        }

        @Override
        public WriterCommitMessage commit() throws IOException {
            return rows.commit();
        }

        @Override
        public void abort() {
            // as of HeadraceWrite
        }

        @Override
        public void close() {
            rows.close();
        }
    }
}
