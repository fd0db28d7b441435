package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A read that is pinned: its splits say what each task reads. */
final class HeadraceScan implements SupportsReportStatistics, Batch {
    private final String table;
    private final String python;
    private final StructType schema;
    private final JsonNode plan;
    private final String description;

    HeadraceScan(String table, String python, StructType schema, JsonNode plan, String description) {
        this.table = table;
        this.python = python;
        this.schema = schema;
        this.plan = plan;
        this.description = description;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        return description;
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public Statistics estimateStatistics() {
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                return plan.hasNonNull("bytes") ? OptionalLong.of(plan.get("bytes").asLong()) : OptionalLong.empty();
            }

            @Override
            public OptionalLong numRows() {
                return plan.hasNonNull("rows") ? OptionalLong.of(plan.get("rows").asLong()) : OptionalLong.empty();
            }
        };
    }

    @Override
    public InputPartition[] planInputPartitions() {
        List<InputPartition> found = new ArrayList<>();
        plan.get("splits").forEach(each -> found.add(new Split(each.asText())));
        return found.toArray(InputPartition[]::new);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new Readers(python, plan.get("reader").asText(), schema.size());
    }

    @Override
    public String toString() {
        return "headrace " + table;
    }

    private record Split(String text) implements InputPartition {}

    private record Readers(String python, String reader, int columns) implements PartitionReaderFactory {
        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            throw new UnsupportedOperationException("rows come in columns");
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            return new Reader(python, Map.of("op", "read", "reader", reader, "split", ((Split) partition).text()), columns);
        }
    }

    /** One task's rows, as the helper sends them. */
    private static final class Reader implements PartitionReader<ColumnarBatch> {
        private final Helper.Connection connection;
        private final int columns;
        private final BufferAllocator allocator;
        private ArrowStreamReader stream;
        private ColumnarBatch batch;
        private boolean complete;

        Reader(String python, Map<String, ?> request, int columns) {
            this.connection = Helper.connect(python);
            this.columns = columns;
            this.allocator = ArrowUtils.rootAllocator().newChildAllocator("headrace", 0, Long.MAX_VALUE);
            try {
                connection.send(request);
                if (connection.receive().asBoolean()) {
                    stream = new ArrowStreamReader(connection.channel, allocator);
                    ColumnVector[] vectors = new ColumnVector[columns];
                    for (int at = 0; at < columns; at++) {
                        vectors[at] = new ArrowColumnVector(stream.getVectorSchemaRoot().getVector(at));
                    }
                    batch = new ColumnarBatch(vectors);
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
                // what it held is freed all the same
            }
            allocator.close();
        }
    }
}
