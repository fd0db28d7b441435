package headrace.spark;

import java.util.Map;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/**
 * The part that all writes share: tasks stage rows of this schema, and the driver makes all of them visible, or none.
 */
abstract class StagedWrite implements Write, BatchWrite {
    final HeadraceTable table;
    final StructType schema;
    private final Server server;
    private Staging staging;

    StagedWrite(HeadraceTable table, LogicalWriteInfo info, StructType schema) {
        this.table = table;
        this.schema = schema;
        this.server = table.server.with(info.options().asCaseSensitiveMap());
    }

    /** Called once; `terms` are the fields of begin_write besides table and schema. */
    final Staging begin(Map<String, ?> terms) {
        staging = new Staging(table, server, schema, terms);
        return staging;
    }

    /** The plan for each task. */
    final RowWriter.Plan plan() {
        return staging.plan(schema);
    }

    @Override
    public String description() {
        return "headrace " + table.name();
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
        staging.commit(messages, null);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
        staging.abort(messages, null);
    }
}
