package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.ColumnDefaultValue;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table, or its view after a $, as described when it was loaded. */
final class HeadraceTable
        implements SupportsRead,
                SupportsWrite,
                SupportsRowLevelOperations,
                SupportsMetadataColumns,
                TruncatableTable,
                Partitions {
    /** The row as it was read, without its key: internal, for UPDATE and MERGE, which write the differences. */
    static final String OLD_COLUMN = "_headrace_old";

    final Server server;
    final String database;
    final String table;
    final Long asOfMs;
    final String version;
    private final JsonNode described;
    private final Column[] columns;

    HeadraceTable(Server server, Identifier identifier, Long asOfMs, String version, JsonNode described) {
        this(server, identifier, asOfMs, version, described, null);
    }

    /** `metadata`: JSON, the metadata of all columns. */
    HeadraceTable(
            Server server, Identifier identifier, Long asOfMs, String version, JsonNode described, String metadata) {
        this.server = server;
        this.database = identifier.namespace()[0];
        this.table = identifier.name();
        this.asOfMs = asOfMs;
        this.version = version;
        this.described = described;
        List<Column> found = new ArrayList<>();
        described.get("columns").forEach(each -> found.add(column(each, metadata)));
        this.columns = found.toArray(Column[]::new);
        if (isOfEarlier() && !described.get("as_of").asBoolean()) {
            throw new UnsupportedOperationException(name() + " has no earlier states: leave AS OF out");
        }
    }

    private boolean isOfEarlier() {
        return asOfMs != null || version != null;
    }

    private static Column column(JsonNode each, String metadata) {
        DataType type = DataType.fromJson(each.get("type").asText());
        ColumnDefaultValue value = null;
        if (each.hasNonNull("default")) {
            value = new ColumnDefaultValue(each.get("default").asText(), new LiteralValue<>(null, type));
        }
        String comment = each.hasNonNull("comment") ? each.get("comment").asText() : null;
        return Column.create(each.get("name").asText(), type, each.get("nullable").asBoolean(), comment, value, metadata);
    }

    private boolean isView() {
        return described.get("view").asBoolean();
    }

    /** Database and table name, for a request. */
    Map<String, Object> place() {
        Map<String, Object> found = new HashMap<>();
        found.put("database", database);
        found.put("table", table);
        return found;
    }

    @Override
    public String name() {
        return database + "." + table;
    }

    @Override
    public String id() {
        return described.hasNonNull("id") ? described.get("id").asText() : null;
    }

    @Override
    public Column[] columns() {
        return columns;
    }

    /** The columns that the running INSERT does not name, and whose values existing rows keep. */
    List<String> leftOut() {
        Set<String> kept = new HashSet<>();
        described.get("overwritten").forEach(each -> kept.add(each.asText()));
        return kept.isEmpty() ? List.of() : FilledColumns.among(kept, this);
    }

    NamedReference[] primaryKey() {
        List<NamedReference> found = new ArrayList<>();
        described.get("primary_key").forEach(each -> found.add(new ColumnReference(each.asText())));
        return found.toArray(NamedReference[]::new);
    }

    @Override
    public Transform[] partitioning() {
        List<Transform> found = new ArrayList<>();
        described.get("partitions").forEach(each -> found.add(Expressions.identity(quoted(each.asText()))));
        if (described.hasNonNull("bucket_key") && !described.get("bucket_key").isEmpty()) {
            List<String> key = new ArrayList<>();
            described.get("bucket_key").forEach(each -> key.add(quoted(each.asText())));
            found.add(Expressions.bucket(described.get("buckets").asInt(), key.toArray(String[]::new)));
        }
        return found.toArray(Transform[]::new);
    }

    private static String quoted(String name) {
        return "`" + name + "`";
    }

    @Override
    public Map<String, String> properties() {
        return HeadraceCatalog.texts(described.get("properties"));
    }

    /**
     * The key is enforced here, but Spark's CREATE TABLE does not know ENFORCED, and has to accept SHOW CREATE TABLE.
     */
    @Override
    public Constraint[] constraints() {
        NamedReference[] key = primaryKey();
        return key.length == 0
                ? new Constraint[0]
                : new Constraint[] {Constraint.primaryKey(table + "_pk", key).enforced(false).rely(true).build()};
    }

    /** Unsupported operations such as the stream of a lake are refused later, with their reason. */
    @Override
    public Set<TableCapability> capabilities() {
        EnumSet<TableCapability> found = EnumSet.of(TableCapability.BATCH_READ);
        if (!isOfEarlier()) {
            found.add(TableCapability.MICRO_BATCH_READ);
        }
        if (!isView() && !isOfEarlier()) {
            found.addAll(EnumSet.of(
                    TableCapability.BATCH_WRITE,
                    TableCapability.STREAMING_WRITE,
                    TableCapability.TRUNCATE,
                    TableCapability.OVERWRITE_BY_FILTER,
                    TableCapability.OVERWRITE_DYNAMIC));
        }
        return found;
    }

    @Override
    public MetadataColumn[] metadataColumns() {
        StructType old = new StructType();
        for (JsonNode each : described.get("partial")) {
            old = old.add(CatalogV2Util.v2ColumnsToStructType(columns).apply(each.asText()));
        }
        return old.isEmpty() ? new MetadataColumn[0] : new MetadataColumn[] {new OldColumn(old)};
    }

    /** The columns and the metadata columns. */
    StructType readable() {
        StructType found = CatalogV2Util.v2ColumnsToStructType(columns);
        for (MetadataColumn each : metadataColumns()) {
            found = found.add(each.name(), each.dataType(), each.isNullable());
        }
        return found;
    }

    @Override
    public boolean truncateTable() {
        if (isView()) {
            throw new UnsupportedOperationException(name() + " is read-only");
        }
        return server.ask("truncate", place()).asBoolean();
    }

    @Override
    public StructType partitionSchema() {
        StructType all = CatalogV2Util.v2ColumnsToStructType(columns);
        StructType found = new StructType();
        for (JsonNode each : described.get("partitions")) {
            found = found.add(all.apply(each.asText()));
        }
        return found;
    }

    @Override
    public JsonNode askOfPartitions(String kind, Map<String, String> spec) {
        Map<String, Object> request = place();
        request.put("spec", spec);
        return server.ask(kind, request);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new HeadraceScanBuilder(this, server.with(options.asCaseSensitiveMap()));
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new HeadraceWrite(this, info);
    }

    @Override
    public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
        if (isView() || primaryKey().length == 0) {
            throw new UnsupportedOperationException(
                    info.command() + " changes rows by primary key, but " + name() + " has none: use INSERT INTO");
        }
        if (info.command() != RowLevelOperation.Command.DELETE && described.hasNonNull("unchanged")) {
            throw new UnsupportedOperationException(info.command() + ": " + described.get("unchanged").asText());
        }
        return () -> new HeadraceOperation(this, info);
    }

    private record OldColumn(StructType dataType) implements MetadataColumn {
        @Override
        public String name() {
            return OLD_COLUMN;
        }

        @Override
        public boolean isNullable() {
            return false;
        }

        @Override
        public String comment() {
            return "the row as it was read";
        }
    }

    /** A column by its name alone, with any characters. */
    record ColumnReference(String column) implements NamedReference {
        @Override
        public String[] fieldNames() {
            return new String[] {column};
        }

        @Override
        public String toString() {
            return quoted(column);
        }
    }
}
