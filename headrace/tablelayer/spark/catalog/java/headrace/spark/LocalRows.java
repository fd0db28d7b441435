package headrace.spark;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;

/**
 * Rows that the driver has read, as a table. They stay in Arrow's stream format until a task reads the columns that it
 * needs; Spark's own local rows are converted one by one on the driver, for every use.
 */
public final class LocalRows implements Table, SupportsRead {
    private final String name;
    private final StructType schema;
    private final List<InputPartition> parts = new ArrayList<>();
    private final long rowCount;
    private long size;

    private LocalRows(String name, StructType schema, long rowCount) {
        this.name = name;
        this.schema = schema;
        this.rowCount = rowCount;
    }

    /** `folder` has a file for each task, which is read now. `schema` is JSON. */
    public static Dataset<Row> of(SparkSession spark, String name, String schema, String folder, long rowCount)
            throws IOException {
        LocalRows rows = new LocalRows(name, (StructType) DataType.fromJson(schema), rowCount);
        try (Stream<Path> files = Files.list(Path.of(folder))) {
            for (Path file : files.sorted().toList()) {
                byte[] stream = Files.readAllBytes(file);
                rows.parts.add(new Part(stream));
                rows.size += stream.length;
            }
        }
        return org.apache.spark.sql.classic.Dataset.ofRows(
                spark, DataSourceV2Relation.create(rows, Option.empty(), Option.empty()));
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return Set.of(TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new Columns(this);
    }

    private static final class Columns implements SupportsPushDownRequiredColumns {
        private final LocalRows rows;
        private StructType needed;

        Columns(LocalRows rows) {
            this.rows = rows;
            this.needed = rows.schema;
        }

        /** Selects whole columns: fields inside a column are not read separately. */
        @Override
        public void pruneColumns(StructType required) {
            needed = new StructType();
            for (String name : required.fieldNames()) {
                needed = needed.add(rows.schema.apply(name));
            }
        }

        @Override
        public Scan build() {
            return new Read(rows, needed);
        }
    }

    private record Read(LocalRows rows, StructType readSchema) implements SupportsReportStatistics, Batch {
        @Override
        public String description() {
            return rows.name + " [" + String.join(", ", readSchema.fieldNames()) + "], " + rows.rowCount + " rows";
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
                    return OptionalLong.of(rows.size);
                }

                @Override
                public OptionalLong numRows() {
                    return OptionalLong.of(rows.rowCount);
                }
            };
        }

        @Override
        public InputPartition[] planInputPartitions() {
            return rows.parts.toArray(InputPartition[]::new);
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new Readers(readSchema);
        }
    }

    private record Part(byte[] stream) implements InputPartition {}

    private record Readers(StructType schema) implements PartitionReaderFactory {
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
            return new Reader(((Part) partition).stream(), schema);
        }
    }

    /** The columns of `schema`, by name, of a stream. */
    static final class Reader implements PartitionReader<ColumnarBatch> {
        private final BufferAllocator allocator =
                ArrowUtils.rootAllocator().newChildAllocator("headrace rows", 0, Long.MAX_VALUE);
        private final ArrowStreamReader stream;
        private final ColumnarBatch batch;

        Reader(byte[] bytes, StructType schema) {
            stream = new ArrowStreamReader(new ByteArrayInputStream(bytes), allocator);
            try {
                batch = new ColumnarBatch(SplitReaders.vectors(stream.getVectorSchemaRoot(), schema));
            } catch (IOException | RuntimeException error) {
                close();
                throw new IllegalStateException("rows of the driver cannot be read: " + error, error);
            }
        }

        @Override
        public boolean next() throws IOException {
            boolean more = stream.loadNextBatch();
            batch.setNumRows(more ? stream.getVectorSchemaRoot().getRowCount() : 0);
            return more;
        }

        @Override
        public ColumnarBatch get() {
            return batch;
        }

        @Override
        public void close() {
            try {
                stream.close();
            } catch (IOException ignored) {
                // its memory is freed all the same
            }
            allocator.close();
        }
    }
}
