package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.util.V2ExpressionSQLBuilder;
import org.apache.spark.sql.types.StructType;

/** Gathers the columns, the conditions and the limit that Spark needs; `build` pins what is read. */
final class HeadraceScanBuilder
        implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters, SupportsPushDownLimit {
    private final HeadraceTable table;
    private final Server server;
    private StructType schema;
    private Predicate[] pushed = {};
    private String predicate;
    private Integer limit;

    HeadraceScanBuilder(HeadraceTable table, Server server) {
        this.table = table;
        this.server = server;
        this.schema = CatalogV2Util.v2ColumnsToStructType(table.columns());
    }

    /** Columns as a whole: what is inside of one is not read apart. */
    @Override
    public void pruneColumns(StructType required) {
        StructType whole = CatalogV2Util.v2ColumnsToStructType(table.columns());
        schema = new StructType();
        for (String name : required.fieldNames()) {
            schema = schema.add(whole.apply(name));
        }
    }

    /** Those that Spark has to apply: the helper says which ones the readers apply to the letter. */
    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        List<Predicate> given = new ArrayList<>();
        List<String> conditions = new ArrayList<>();
        List<Predicate> left = new ArrayList<>();
        for (Predicate each : predicates) {
            try {
                conditions.add(new V2ExpressionSQLBuilder().build(each));
                given.add(each);
            } catch (RuntimeException error) { // it has no words in SQL
                left.add(each);
            }
        }
        if (conditions.isEmpty()) {
            return predicates;
        }
        Map<String, Object> request = table.place();
        request.put("conditions", conditions);
        JsonNode answer = server.ask("push", request);
        predicate = answer.hasNonNull("predicate") ? answer.get("predicate").asText() : null;
        List<Predicate> complete = new ArrayList<>();
        for (int at = 0; at < given.size(); at++) {
            (answer.get("complete").get(at).asBoolean() ? complete : left).add(given.get(at));
        }
        pushed = complete.toArray(Predicate[]::new);
        return left.toArray(Predicate[]::new);
    }

    @Override
    public Predicate[] pushedPredicates() {
        return pushed;
    }

    /** For each task: Spark does the rest. */
    @Override
    public boolean pushLimit(int limit) {
        this.limit = limit;
        return true;
    }

    @Override
    public boolean isPartiallyPushed() {
        return true;
    }

    @Override
    public Scan build() {
        String[] names = schema.fieldNames();
        if (names.length == 0) { // rows are counted by some column
            names = new String[] {table.columns()[0].name()};
        }
        Map<String, Object> request = table.place();
        request.put("columns", Arrays.asList(names));
        request.put("predicate", predicate);
        request.put("limit", limit);
        request.put("as_of_ms", table.asOfMs);
        JsonNode plan = server.ask("plan", request);
        return new HeadraceScan(table.name(), server.python, schema, plan, described());
    }

    private String described() {
        return table.name() + " [" + String.join(", ", schema.fieldNames()) + "]"
                + (pushed.length == 0 ? "" : ", filters " + Arrays.toString(pushed))
                + (limit == null ? "" : ", limit " + limit)
                + (table.asOfMs == null ? "" : ", as of " + table.asOfMs);
    }
}
