package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** A read, pinned when Spark first asks about it, with one split per task; or the beginning of a stream. */
final class HeadraceScan implements SupportsReportStatistics, Batch {
    private final HeadraceTable table;
    private final Server server;
    private final StructType schema;
    private final Map<String, Object> request;
    private final String description;
    private JsonNode plan;

    /** `request` is the request `plan` without the columns. */
    HeadraceScan(
            HeadraceTable table, Server server, StructType schema, Map<String, Object> request, String description) {
        this.table = table;
        this.server = server;
        this.schema = schema;
        this.request = request;
        this.description = description;
        request.put("columns", SplitReaders.columns(schema, table.columns()[0].name()));
    }

    private synchronized JsonNode plan() {
        if (plan == null) {
            plan = server.ask("plan", request);
        }
        return plan;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public synchronized String description() {
        return plan != null && plan.hasNonNull("halves") ? description + ", " + plan.get("halves").asText() : description;
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    /** Begins where the options say, or at the checkpoint's position, which Spark keeps. */
    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
        return new HeadraceStream(table.name(), server, schema, request);
    }

    @Override
    public Statistics estimateStatistics() {
        JsonNode known = plan();
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                return known.hasNonNull("bytes") ? OptionalLong.of(known.get("bytes").asLong()) : OptionalLong.empty();
            }

            @Override
            public OptionalLong numRows() {
                return known.hasNonNull("rows") ? OptionalLong.of(known.get("rows").asLong()) : OptionalLong.empty();
            }
        };
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return partitions(plan().get("splits"));
    }

    static InputPartition[] partitions(JsonNode splits) {
        List<InputPartition> found = new ArrayList<>();
        splits.forEach(each -> found.add(new SplitReaders.Split(each.asText())));
        return found.toArray(InputPartition[]::new);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new SplitReaders(server.pythonOfTasks(), plan().get("reader").asText(), schema);
    }

    @Override
    public String toString() {
        return "headrace " + table.name();
    }
}
