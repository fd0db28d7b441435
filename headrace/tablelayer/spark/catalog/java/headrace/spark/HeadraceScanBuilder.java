package headrace.spark;

import java.util.Arrays;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.StructType;

/** Collects the columns, conditions and limit that Spark needs; `build` pins the read. */
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

    /** Selects whole columns: fields inside a column are not read separately. */
    @Override
    public void pruneColumns(StructType required) {
        StructType whole = table.readable();
        schema = new StructType();
        for (String name : required.fieldNames()) {
            schema = schema.add(whole.apply(name));
        }
    }

    /** Returns the conditions that Spark has to apply; the helper decides which ones the readers apply exactly. */
    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        Conditions found = Conditions.of(table, predicates);
        predicate = found.predicate();
        pushed = found.complete();
        return found.left();
    }

    @Override
    public Predicate[] pushedPredicates() {
        return pushed;
    }

    /** Applies to each task; Spark applies the rest. */
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
        Map<String, Object> request = table.place();
        request.put("predicate", predicate);
        request.put("limit", limit);
        request.put("as_of_ms", table.asOfMs);
        request.put("version", table.version);
        return new HeadraceScan(table, server, schema, request, described());
    }

    private String described() {
        return table.name() + " [" + String.join(", ", schema.fieldNames()) + "]"
                + (pushed.length == 0 ? "" : ", filters " + Arrays.toString(pushed))
                + (limit == null ? "" : ", limit " + limit)
                + (table.asOfMs == null ? "" : ", as of " + table.asOfMs)
                + (table.version == null ? "" : ", version " + table.version);
    }
}
