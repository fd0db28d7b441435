package headrace.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads a task's split from the helper, in columns. */
record SplitReaders(String python, String reader, StructType schema) implements PartitionReaderFactory {

    /** The columns to ask the helper for, in this order; at least one, to count rows. */
    static List<String> columns(StructType schema, String first) {
        Set<String> found = new LinkedHashSet<>();
        for (StructField field : schema.fields()) {
            if (field.name().equals(HeadraceTable.OLD_COLUMN)) {
                found.addAll(Arrays.asList(((StructType) field.dataType()).fieldNames()));
            } else {
                found.add(field.name());
            }
        }
        return found.isEmpty() ? List.of(first) : new ArrayList<>(found);
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
        throw new UnsupportedOperationException("rows have to be read in columns");
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
        return new Reader(python, Map.of("op", "read", "reader", reader, "split", ((Split) partition).text()), schema);
    }

    /** The columns of a schema, by name, of the batches that Arrow reads. */
    static ColumnVector[] vectors(VectorSchemaRoot rows, StructType schema) {
        ColumnVector[] found = new ColumnVector[schema.size()];
        for (int at = 0; at < found.length; at++) {
            StructField field = schema.fields()[at];
            found[at] = field.name().equals(HeadraceTable.OLD_COLUMN)
                    ? new OldRows((StructType) field.dataType(), rows)
                    : new StreamColumn(rows.getVector(field.name()));
        }
        return found;
    }

    /** A column that the next batch fills again. Spark would free it, and the fields of its rows with it. */
    private static final class StreamColumn extends ArrowColumnVector {
        StreamColumn(ValueVector vector) {
            super(vector);
        }

        @Override
        public void closeIfFreeable() {
            // the reader of the stream frees its vectors
        }
    }

    /** A split, as pickled text of the helper. */
    record Split(String text) implements InputPartition {}

    private static final class Reader implements PartitionReader<ColumnarBatch> {
        private final Helper.Connection connection;
        private final BufferAllocator allocator;
        private ArrowStreamReader stream;
        private ColumnarBatch batch;
        private boolean complete;

        Reader(String python, Map<String, ?> request, StructType schema) {
            this.connection = Helper.connect(python);
            this.allocator = ArrowUtils.rootAllocator().newChildAllocator("headrace", 0, Long.MAX_VALUE);
            try {
                connection.send(request);
                if (connection.receive().asBoolean()) {
                    stream = new ArrowStreamReader(connection.channel, allocator);
                    batch = new ColumnarBatch(vectors(stream.getVectorSchemaRoot(), schema));
                } else {
                    complete = true;
                }
            } catch (IOException | RuntimeException error) {
                complete = error instanceof Helper.HelperException;
                close();
                throw error instanceof RuntimeException known
                        ? known
                        : new IllegalStateException("the process that reads ended: " + error, error);
            }
        }

        @Override
        public boolean next() throws IOException {
            if (complete) {
                return false;
            }
            if (stream.loadNextBatch()) {
                batch.setNumRows(stream.getVectorSchemaRoot().getRowCount());
                return true;
            }
            complete = true;
            connection.receive();
            return false;
        }

        @Override
        public ColumnarBatch get() {
            return batch;
        }

        @Override
        public void close() {
            connection.close(complete);
            try {
                if (stream != null) {
                    stream.close(false);
                }
            } catch (IOException ignored) {
                // its memory is freed all the same
            }
            allocator.close();
        }
    }
}
