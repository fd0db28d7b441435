package headrace.spark;

import java.io.IOException;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Collectors;
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
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * UPDATE, DELETE and MERGE: each row carries its kind of change. A row that existed under the same key also carries
 * the places of its changed columns; a deleted row has only its key.
 */
final class HeadraceDeltaWrite extends StagedWrite implements DeltaWriteBuilder, DeltaWrite, DeltaBatchWrite {
    private static final String ROW_KIND_COLUMN = "_headrace_row_kind";
    private static final String CHANGED_COLUMN = "_headrace_changed";

    private final int[] keyPlaces;
    private final int[] oldPlaces;

    HeadraceDeltaWrite(HeadraceTable table, LogicalWriteInfo info) {
        super(table, info, written(info));
        this.keyPlaces = places(info.rowIdSchema().orElseThrow());
        this.oldPlaces = info.metadataSchema()
                .filter(each -> !info.schema().isEmpty() && each.getFieldIndex(HeadraceTable.OLD_COLUMN).isDefined())
                .map(each -> places((StructType) each.apply(HeadraceTable.OLD_COLUMN).dataType()))
                .orElse(new int[0]);
    }

    private static StructType written(LogicalWriteInfo info) {
        // A statement that only deletes has no rows to write, and no columns.
        StructType columns = info.schema().isEmpty() ? info.rowIdSchema().orElseThrow() : info.schema();
        StructType all = new StructType();
        for (StructField field : columns.fields()) {
            all = all.add(new StructField(field.name(), field.dataType(), true, field.metadata()));
        }
        return all.add(ROW_KIND_COLUMN, DataTypes.StringType, false).add(CHANGED_COLUMN, DataTypes.StringType, true);
    }

    /** The places of these columns in a row. */
    private int[] places(StructType columns) {
        int[] found = new int[columns.size()];
        for (int at = 0; at < found.length; at++) {
            found[at] = schema.fieldIndex(columns.fields()[at].name());
        }
        return found;
    }

    @Override
    public DeltaWrite build() {
        return this;
    }

    @Override
    public DeltaBatchWrite toBatch() {
        begin(Map.of());
        return this;
    }

    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        return new Writers(plan(), keyPlaces, oldPlaces);
    }

    private record Writers(RowWriter.Plan plan, int[] keyPlaces, int[] oldPlaces) implements DeltaWriterFactory {
        @Override
        public DeltaWriter<InternalRow> createWriter(int partition, long task) {
            return new ChangeWriter(plan, keyPlaces, oldPlaces);
        }
    }

    private static final class ChangeWriter extends RowWriter implements DeltaWriter<InternalRow> {
        private static final UTF8String PUT = UTF8String.fromString("+U");
        private static final UTF8String GONE = UTF8String.fromString("-D");
        private final StructType schema;
        private final int[] keyPlaces;
        private final int[] oldPlaces;
        private final JoinedRow joined = new JoinedRow();
        private final GenericInternalRow kind = new GenericInternalRow(2);
        private final Map<BitSet, UTF8String> texts = new HashMap<>();

        ChangeWriter(Plan plan, int[] keyPlaces, int[] oldPlaces) {
            super(plan, null);
            this.schema = plan.schema();
            this.keyPlaces = keyPlaces;
            this.oldPlaces = oldPlaces;
        }

        @Override
        public void write(InternalRow row) {
            throw new UnsupportedOperationException("rows have to come as changes");
        }

        @Override
        public void insert(InternalRow row) throws IOException {
            put(row, PUT, null);
        }

        @Override
        public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
            for (int at = 0; at < keyPlaces.length; at++) {
                if (differ(id, at, row, keyPlaces[at])) {
                    delete(metadata, id); // the row gets another key
                    insert(row);
                    return;
                }
            }
            if (oldPlaces.length == 0) {
                insert(row);
                return;
            }
            InternalRow old = metadata.getStruct(0, oldPlaces.length);
            BitSet changed = new BitSet();
            for (int at = 0; at < oldPlaces.length; at++) {
                if (differ(old, at, row, oldPlaces[at])) {
                    changed.set(oldPlaces[at]);
                }
            }
            if (!changed.isEmpty()) {
                put(row, PUT, texts.computeIfAbsent(changed, ChangeWriter::text));
            }
        }

        private static UTF8String text(BitSet places) {
            return UTF8String.fromString(
                    places.stream().mapToObj(Integer::toString).collect(Collectors.joining(",")));
        }

        private boolean differ(InternalRow before, int at, InternalRow row, int place) {
            if (before.isNullAt(at) || row.isNullAt(place)) {
                return before.isNullAt(at) != row.isNullAt(place);
            }
            DataType type = schema.fields()[place].dataType();
            return !Objects.deepEquals(before.get(at, type), row.get(place, type));
        }

        @Override
        public void delete(InternalRow metadata, InternalRow id) throws IOException {
            Object[] values = new Object[schema.size() - 2];
            for (int at = 0; at < keyPlaces.length; at++) {
                values[keyPlaces[at]] = id.get(at, schema.fields()[keyPlaces[at]].dataType());
            }
            put(new GenericInternalRow(values), GONE, null);
        }

        private void put(InternalRow row, UTF8String what, UTF8String changed) throws IOException {
            kind.update(0, what);
            kind.update(1, changed);
            append(joined.apply(row, kind));
        }
    }
}
