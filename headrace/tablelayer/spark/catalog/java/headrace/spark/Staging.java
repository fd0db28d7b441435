package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/** A write of a statement or a query, on the driver: `commit` makes all staged rows visible, or none. */
final class Staging {
    private final Server server;
    private final String writer;

    Staging(HeadraceTable table, Server server, StructType schema, Map<String, ?> terms) {
        this.server = server;
        Map<String, Object> request = table.place();
        request.putAll(terms);
        request.put("schema", schema.json());
        this.writer = server.ask("begin_write", request).asText();
    }

    RowWriter.Plan plan(StructType schema) {
        return new RowWriter.Plan(server.pythonOfTasks(), writer, schema);
    }

    /** `batch`: a query's micro-batch, null for a statement. */
    void commit(WriterCommitMessage[] messages, Long batch) {
        tell("commit", messages, batch);
    }

    void abort(WriterCommitMessage[] messages, Long batch) {
        tell("abort", messages, batch);
    }

    private JsonNode tell(String kind, WriterCommitMessage[] messages, Long batch) {
        List<String> texts =
                Arrays.stream(messages).filter(Objects::nonNull).map(each -> ((Message) each).text()).toList();
        Map<String, Object> request = new HashMap<>();
        request.put("writer", writer);
        request.put("messages", texts);
        request.put("batch", batch);
        return server.ask(kind, request);
    }

    /** Message of a task to the driver. */
    record Message(String text) implements WriterCommitMessage {}
}
