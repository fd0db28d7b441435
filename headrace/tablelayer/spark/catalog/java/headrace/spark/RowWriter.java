package headrace.spark;

import java.io.IOException;
import java.io.Serializable;
import java.util.HashMap;
import java.util.Map;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

/** Sends one task's rows to the helper, as Arrow batches. */
class RowWriter implements DataWriter<InternalRow> {
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

    /** `batch`: the number of a query's micro-batch, otherwise null. */
    RowWriter(Plan plan, Long batch) {
        connection = Helper.connect(plan.python);
        allocator = ArrowUtils.rootAllocator().newChildAllocator("headrace", 0, Long.MAX_VALUE);
        root = VectorSchemaRoot.create(ArrowUtils.toArrowSchema(plan.schema, "UTC", true, false), allocator);
        rows = ArrowWriter.create(root);
        stream = new ArrowStreamWriter(root, null, connection.channel);
        try {
            Map<String, Object> request = new HashMap<>();
            request.put("op", "write");
            request.put("writer", plan.writer);
            request.put("batch", batch);
            connection.send(request);
            stream.start();
        } catch (IOException error) {
            close();
            throw new IllegalStateException("the process that writes ended: " + error, error);
        }
    }

    @Override
    public void write(InternalRow row) throws IOException {
        append(row);
    }

    final void append(InternalRow row) throws IOException {
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
            connection.receive(); // throws the reason why the helper stopped reading
            throw error;
        }
        rows.reset();
        count = 0;
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
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

    @Override
    public void abort() {
        // the staged rows of this run belong to no statement and expire
    }

    @Override
    public void close() {
        connection.close(answered);
        root.close();
        allocator.close();
    }

    /** The plan that is sent to a task. */
    record Plan(String python, String writer, StructType schema) implements Serializable {}
}
