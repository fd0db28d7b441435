package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** A table's rows or changes, batch by batch. Offsets are the data source's own, as JSON, in the checkpoint too. */
final class HeadraceStream implements MicroBatchStream, SupportsTriggerAvailableNow {
    private final String table;
    private final Server server;
    private final StructType schema;
    private final JsonNode limit;
    private String reader;

    HeadraceStream(String table, Server server, StructType schema, Map<String, ?> request) {
        this.table = table;
        this.server = server;
        this.schema = schema;
        JsonNode answer = server.ask("stream", request);
        this.reader = answer.get("reader").asText();
        this.limit = answer.get("limit");
    }

    @Override
    public Offset initialOffset() {
        return deserializeOffset(server.ask("stream_initial", Map.of("reader", reader)).asText());
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("the start of the batch is required");
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit wanted) {
        boolean capped = !(wanted instanceof ReadAllAvailable);
        return deserializeOffset(server.ask(
                        "stream_latest", Map.of("reader", reader, "start", start.json(), "capped", capped))
                .asText());
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        return limit.isNull() ? ReadLimit.allAvailable() : ReadLimit.maxRows(limit.asLong());
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        reader = server.ask("stream_pinned", Map.of("reader", reader)).asText();
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        return HeadraceScan.partitions(server.ask(
                "stream_splits", Map.of("reader", reader, "start", start.json(), "end", end.json())));
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new SplitReaders(server.pythonOfTasks(), reader, schema);
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new Place(json);
    }

    @Override
    public void commit(Offset end) {
        // the log's retention does not depend on its readers
    }

    @Override
    public void stop() {
        // no resource is open
    }

    @Override
    public String toString() {
        return "headrace " + table;
    }

    private static final class Place extends Offset {
        private final String json;

        Place(String json) {
            this.json = json;
        }

        @Override
        public String json() {
            return json;
        }
    }
}
