package headrace.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/**
 * INSERT INTO and streams: rows are appended to a log table and upserted into a table with a primary key, so a stream
 * in mode update is upserted too. INSERT OVERWRITE and mode complete replace the present rows.
 */
final class HeadraceWrite extends StagedWrite
        implements SupportsOverwriteV2, SupportsDynamicOverwrite, SupportsStreamingUpdateAsAppend {
    private final String queryId;
    private final Map<String, Object> terms = new HashMap<>();

    HeadraceWrite(HeadraceTable table, LogicalWriteInfo info) {
        super(table, info, info.schema());
        this.queryId = info.queryId();
    }

    @Override
    public Write build() {
        return this;
    }

    @Override
    public WriteBuilder truncate() {
        terms.put("overwrite", "all");
        return this;
    }

    @Override
    public boolean canOverwrite(Predicate[] predicates) {
        return Conditions.of(table, predicates).left().length == 0;
    }

    @Override
    public WriteBuilder overwrite(Predicate[] predicates) {
        terms.put("overwrite", "where");
        terms.put("predicate", Conditions.of(table, predicates).predicate());
        return this;
    }

    @Override
    public WriteBuilder overwriteDynamicPartitions() {
        terms.put("overwrite", "partitions");
        return this;
    }

    @Override
    public BatchWrite toBatch() {
        if (terms.isEmpty()) {
            terms.put("left_out", table.leftOut());
        }
        begin(terms);
        return this;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        return new Writers(plan());
    }

    /**
     * Identifies micro-batches by the query, from its checkpoint, and their number, so that each is in the table once.
     */
    @Override
    public StreamingWrite toStreaming() {
        terms.put("query", queryId);
        Staging staging = begin(terms);
        return new StreamingWrite() {
            @Override
            public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
                return new Writers(plan());
            }

            @Override
            public void commit(long epoch, WriterCommitMessage[] messages) {
                staging.commit(messages, epoch);
            }

            @Override
            public void abort(long epoch, WriterCommitMessage[] messages) {
                staging.abort(messages, epoch);
            }
        };
    }

    private record Writers(RowWriter.Plan plan) implements DataWriterFactory, StreamingDataWriterFactory {
        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task) {
            return new RowWriter(plan, null);
        }

        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
            return new RowWriter(plan, epoch);
        }
    }
}
