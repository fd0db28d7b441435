package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/** One statement's write, on the driver: what the tasks stage becomes visible with `commit`, all of it or nothing. */
final class Staging {
    private final Server server;
    private final String writer;

    Staging(HeadraceTable table, Server server, StructType schema) {
        this.server = server;
        Map<String, Object> request = table.place();
        request.put("schema", schema.json());
        this.writer = server.ask("begin_write", request).asText();
    }

    /** What each task needs. */
    RowWriter.Plan plan(StructType schema) {
        return new RowWriter.Plan(server.python, writer, schema);
    }

    void commit(WriterCommitMessage[] messages) {
        tell("commit", messages);
    }

    void abort(WriterCommitMessage[] messages) {
        tell("abort", messages);
    }

    private JsonNode tell(String kind, WriterCommitMessage[] messages) {
        List<String> texts =
                Arrays.stream(messages).filter(Objects::nonNull).map(each -> ((Message) each).text()).toList();
        return server.ask(kind, Map.of("writer", writer, "messages", texts));
    }

    /** What a task tells the driver. */
    record Message(String text) implements WriterCommitMessage {}
}
