package headrace.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/** INSERT INTO: rows are appended to a log table, and upserted into one with a primary key. */
final class HeadraceWrite implements WriteBuilder, Write, BatchWrite {
    private final HeadraceTable table;
    private final Server server;
    private final StructType schema;
    private Staging staging;

    HeadraceWrite(HeadraceTable table, LogicalWriteInfo info) {
        this.table = table;
        this.server = table.server.with(info.options().asCaseSensitiveMap());
        this.schema = info.schema();
    }

    @Override
    public Write build() {
        return this;
    }

    @Override
    public String description() {
        return "headrace " + table.name();
    }

    @Override
    public BatchWrite toBatch() {
        staging = new Staging(table, server, schema);
        return this;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        return new Writers(staging.plan(schema));
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
        staging.commit(messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
        staging.abort(messages);
    }

    private record Writers(RowWriter.Plan plan) implements DataWriterFactory {
        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task) {
            return new Writer(new RowWriter(plan));
        }
    }

    private record Writer(RowWriter rows) implements DataWriter<InternalRow> {
        @Override
        public void write(InternalRow row) throws IOException {
            rows.write(row);
        }

        @Override
        public WriterCommitMessage commit() throws IOException {
            return rows.commit();
        }

        @Override
        public void abort() {
            // what was staged under this run's name is of no statement and goes in time
        }

        @Override
        public void close() {
            rows.close();
        }
    }
}
