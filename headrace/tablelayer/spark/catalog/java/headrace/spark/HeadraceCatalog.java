package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import headrace.spark.Helper.HelperException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The databases and tables of a server. Options, as spark.sql.catalog.NAME.OPTION: bootstrap.servers, kafka.* as in
 * the data source, python. Without them spark.headrace.bootstrap.servers and similar settings apply. Without those the
 * helper takes the server of its environment, as the data source does.
 */
public final class HeadraceCatalog implements TableCatalog, SupportsNamespaces {
    private static final String SESSION_PREFIX = "spark.headrace.";
    private static final String SERVER = "bootstrap.servers";
    private static final String PYTHON = "python";

    private String name;
    private Server server;

    @Override
    public void initialize(String name, CaseInsensitiveStringMap given) {
        this.name = name;
        Map<String, String> options = new HashMap<>(given.asCaseSensitiveMap());
        String python = options.remove(PYTHON);
        if (!given.containsKey(SERVER) && !given.containsKey("kafka." + SERVER)) {
            Map<String, String> session =
                    scala.jdk.javaapi.CollectionConverters.asJava(SQLConf.get().getAllConfs());
            session.forEach((key, value) -> {
                if (key.startsWith(SESSION_PREFIX)) {
                    options.put(key.substring(SESSION_PREFIX.length()), value);
                }
            });
        }
        this.server = new Server(python, options);
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public String[] defaultNamespace() {
        return new String[] {"default"};
    }

    @Override
    public Set<TableCatalogCapability> capabilities() {
        return Set.of(
                TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE, TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
    }

    // ---- databases

    @Override
    public String[][] listNamespaces() {
        List<String[]> found = new ArrayList<>();
        server.ask("namespaces", Map.of()).forEach(each -> found.add(new String[] {each.asText()}));
        return found.toArray(String[][]::new);
    }

    @Override
    public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
        if (namespace.length == 0) {
            return listNamespaces();
        }
        loadNamespaceMetadata(namespace);
        return new String[0][];
    }

    @Override
    public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
        try {
            return texts(server.ask("namespace", Map.of("database", database(namespace))));
        } catch (HelperException error) {
            throw noNamespace(error, namespace);
        }
    }

    @Override
    public void createNamespace(String[] namespace, Map<String, String> properties)
            throws NamespaceAlreadyExistsException {
        try {
            server.ask("create_namespace", Map.of("database", single(namespace), "properties", properties));
        } catch (HelperException error) {
            if (error.kind.equals("DATABASE_EXISTS")) {
                throw new NamespaceAlreadyExistsException(namespace);
            }
            throw error;
        }
    }

    @Override
    public void alterNamespace(String[] namespace, NamespaceChange... changes) throws NoSuchNamespaceException {
        Map<String, String> set = new LinkedHashMap<>();
        List<String> remove = new ArrayList<>();
        for (NamespaceChange change : changes) {
            if (change instanceof NamespaceChange.SetProperty property) {
                set.put(property.property(), property.value());
            } else if (change instanceof NamespaceChange.RemoveProperty property) {
                remove.add(property.property());
            }
        }
        try {
            server.ask("alter_namespace", Map.of("database", database(namespace), "set", set, "remove", remove));
        } catch (HelperException error) {
            throw noNamespace(error, namespace);
        }
    }

    @Override
    public boolean dropNamespace(String[] namespace, boolean cascade)
            throws NoSuchNamespaceException, NonEmptyNamespaceException {
        try {
            server.ask("drop_namespace", Map.of("database", database(namespace), "cascade", cascade));
            return true;
        } catch (HelperException error) {
            if (error.kind.equals("DATABASE_NOT_EMPTY")) {
                throw new NonEmptyNamespaceException(namespace);
            }
            throw noNamespace(error, namespace);
        }
    }

    // ---- tables

    @Override
    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        try {
            List<Identifier> found = new ArrayList<>();
            server.ask("tables", Map.of("database", database(namespace)))
                    .forEach(each -> found.add(Identifier.of(namespace, each.asText())));
            return found.toArray(Identifier[]::new);
        } catch (HelperException error) {
            throw noNamespace(error, namespace);
        }
    }

    @Override
    public Table loadTable(Identifier identifier) throws NoSuchTableException {
        return load(identifier, null, null, null);
    }

    @Override
    public Table loadTable(Identifier identifier, Set<TableWritePrivilege> privileges) throws NoSuchTableException {
        boolean inserted = privileges.contains(TableWritePrivilege.INSERT);
        return load(identifier, null, null, inserted ? FilledColumns.MARK : null);
    }

    /** Loads the table as of a time in microseconds since 1970; rows written in that millisecond are included. */
    @Override
    public Table loadTable(Identifier identifier, long timestamp) throws NoSuchTableException {
        return load(identifier, Math.floorDiv(timestamp, 1000), null, null);
    }

    /** Loads the table as of offsets by bucket, as JSON; the lake alone as of one of its snapshots. */
    @Override
    public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
        return load(identifier, null, version, null);
    }

    private Table load(Identifier identifier, Long asOfMs, String version, String metadata)
            throws NoSuchTableException {
        if (identifier.namespace().length != 1) {
            throw new NoSuchTableException(identifier);
        }
        try {
            return new HeadraceTable(
                    server, identifier, asOfMs, version, server.ask("table", place(identifier)), metadata);
        } catch (HelperException error) {
            throw noTable(error, identifier);
        }
    }

    @Override
    public Table createTable(Identifier identifier, TableInfo info)
            throws TableAlreadyExistsException, NoSuchNamespaceException {
        List<String> key = new ArrayList<>();
        for (Constraint constraint : info.constraints()) {
            if (!(constraint instanceof PrimaryKey found)) {
                throw new UnsupportedOperationException(
                        constraint.toDDL() + ": the supported constraints are PRIMARY KEY and NOT NULL");
            }
            key.addAll(names(found.columns()));
        }
        return create(identifier, info.columns(), info.partitions(), info.properties(), key);
    }

    @Override
    public Table createTable(
            Identifier identifier, Column[] columns, Transform[] partitions, Map<String, String> properties)
            throws TableAlreadyExistsException, NoSuchNamespaceException {
        return create(identifier, columns, partitions, properties, List.of());
    }

    private Table create(
            Identifier identifier,
            Column[] columns,
            Transform[] partitions,
            Map<String, String> properties,
            List<String> key)
            throws TableAlreadyExistsException, NoSuchNamespaceException {
        Map<String, Object> request = place(identifier);
        List<Map<String, Object>> described = new ArrayList<>();
        for (Column column : columns) {
            if (column.generationExpression() != null || column.identityColumnSpec() != null) {
                throw new UnsupportedOperationException("column " + column.name() + ": generated columns are unsupported");
            }
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("name", column.name());
            one.put("type", column.dataType().json());
            one.put("nullable", column.nullable() && !key.contains(column.name()));
            one.put("comment", column.comment());
            one.put("default", column.defaultValue() == null ? null : column.defaultValue().getSql());
            described.add(one);
        }
        Map<String, String> stated = new HashMap<>(properties);
        if (SQLConf.get().defaultDataSourceName().equalsIgnoreCase(stated.get(TableCatalog.PROP_PROVIDER))) {
            stated.remove(TableCatalog.PROP_PROVIDER); // saveAsTable and toTable set it when the user did not
        }
        request.put("columns", described);
        request.put("properties", stated);
        request.put("primary_key", key);
        request.putAll(partitioning(partitions));
        try {
            server.ask("create_table", request);
            return loadTable(identifier);
        } catch (HelperException error) {
            if (error.kind.equals("TABLE_EXISTS")) {
                throw new TableAlreadyExistsException(identifier);
            }
            throw noNamespace(error, identifier.namespace());
        } catch (NoSuchTableException error) {
            throw new IllegalStateException(identifier + " was dropped during its creation", error);
        }
    }

    private static Map<String, Object> partitioning(Transform[] transforms) {
        List<String> partitions = new ArrayList<>();
        Map<String, Object> found = new HashMap<>();
        for (Transform transform : transforms) {
            Expression[] arguments = transform.arguments();
            if (transform.name().equals("identity") && arguments[0] instanceof NamedReference column) {
                partitions.add(name(column));
            } else if (transform.name().equals("bucket") && arguments[0] instanceof Literal<?> count) {
                List<String> columns = new ArrayList<>();
                for (Expression argument : Arrays.asList(arguments).subList(1, arguments.length)) {
                    columns.add(name((NamedReference) argument));
                }
                found.put("buckets", count.value());
                found.put("bucket_key", columns);
            } else {
                throw new UnsupportedOperationException(
                        transform.describe() + ": use PARTITIONED BY columns, and CLUSTERED BY columns INTO n"
                                + " BUCKETS");
            }
        }
        found.put("partitions", partitions);
        return found;
    }

    @Override
    public Table alterTable(Identifier identifier, TableChange... changes) throws NoSuchTableException {
        Map<String, Object> request = place(identifier);
        request.put("changes", Arrays.stream(changes).map(Changes::described).toList());
        try {
            server.ask("alter_table", request);
            return loadTable(identifier);
        } catch (HelperException error) {
            throw noTable(error, identifier);
        }
    }

    @Override
    public boolean dropTable(Identifier identifier) {
        return identifier.namespace().length == 1 && server.ask("drop_table", place(identifier)).asBoolean();
    }

    @Override
    public void renameTable(Identifier from, Identifier to) {
        throw new UnsupportedOperationException("tables cannot be renamed: their topics are named after them");
    }

    // ---- conversions

    private Map<String, Object> place(Identifier identifier) {
        Map<String, Object> found = new HashMap<>();
        found.put("database", single(identifier.namespace()));
        found.put("table", identifier.name());
        return found;
    }

    private static String single(String[] namespace) {
        if (namespace.length != 1) {
            throw new IllegalArgumentException(
                    "'" + String.join(".", namespace) + "': a database is CATALOG.DATABASE and cannot contain others");
        }
        return namespace[0];
    }

    private static String database(String[] namespace) throws NoSuchNamespaceException {
        if (namespace.length != 1) {
            throw new NoSuchNamespaceException(namespace);
        }
        return namespace[0];
    }

    static String name(NamedReference column) {
        return String.join(".", column.fieldNames());
    }

    static List<String> names(NamedReference[] columns) {
        return Arrays.stream(columns).map(HeadraceCatalog::name).toList();
    }

    static Map<String, String> texts(JsonNode node) {
        Map<String, String> found = new LinkedHashMap<>();
        node.properties().forEach(each -> found.put(each.getKey(), each.getValue().asText()));
        return found;
    }

    private static NoSuchNamespaceException noNamespace(HelperException error, String[] namespace) {
        if (error.kind.equals("DATABASE_NOT_FOUND")) {
            return new NoSuchNamespaceException(namespace);
        }
        throw error;
    }

    private static NoSuchTableException noTable(HelperException error, Identifier identifier) {
        if (error.kind.equals("TABLE_NOT_FOUND") || error.kind.equals("DATABASE_NOT_FOUND")) {
            return new NoSuchTableException(identifier);
        }
        throw error;
    }
}
