package headrace.spark;

import java.io.IOException;
import java.io.Serializable;
import java.util.Map;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

/** One task's rows on their way to the helper, as Arrow batches. */
final class RowWriter {
    private static final int BATCH_ROWS = 16_384;
    private static final int LOOK_ROWS = 512;
    private static final long BATCH_BYTES = 8 << 20;

    private final Helper.Connection connection;
    private final BufferAllocator allocator;
    private final VectorSchemaRoot root;
    private final ArrowWriter rows;
    private final ArrowStreamWriter stream;
    private int count;
    private boolean answered;

    RowWriter(Plan plan) {
        connection = Helper.connect(plan.python);
        allocator = ArrowUtils.rootAllocator().newChildAllocator("headrace", 0, Long.MAX_VALUE);
        root = VectorSchemaRoot.create(ArrowUtils.toArrowSchema(plan.schema, "UTC", true, false), allocator);
        rows = ArrowWriter.create(root);
        stream = new ArrowStreamWriter(root, null, connection.channel);
        try {
            connection.send(Map.of("op", "write", "writer", plan.writer));
            stream.start();
        } catch (IOException error) {
            close();
            throw new IllegalStateException("the process that writes ended: " + error, error);
        }
    }

    void write(InternalRow row) throws IOException {
        rows.write(row);
        count++;
        if (count >= BATCH_ROWS || (count % LOOK_ROWS == 0 && rows.sizeInBytes() >= BATCH_BYTES)) {
            flush();
        }
    }

    private void flush() throws IOException {
        rows.finish();
        try {
            stream.writeBatch();
        } catch (IOException error) {
            connection.receive(); // why it does not read on
            throw error;
        }
        rows.reset();
        count = 0;
    }

    WriterCommitMessage commit() throws IOException {
        if (count > 0) {
            flush();
        }
        try {
            stream.end();
        } catch (IOException error) {
            connection.receive();
            throw error;
        }
        String text = connection.receive().asText();
        answered = true;
        return new Staging.Message(text);
    }

    void close() {
        connection.close(answered);
        root.close();
        allocator.close();
    }

    /** What travels to a task. */
    record Plan(String python, String writer, StructType schema) implements Serializable {}
}
