package headrace.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The columns that an INSERT does not name. Spark fills them with their defaults or NULL before it asks a table to
 * write. An upsert would overwrite their values in existing rows, so such an INSERT is a partial update.
 *
 * Only the analyzed plan still distinguishes a filled column from a given NULL. Spark puts a projection on top of the
 * query. In it a given column refers to the query's, and a filled one refers to nothing. The projection is Spark's if
 * its columns have the metadata of the table's, which are marked for this. A MERGE that only inserts is such a plan by
 * position: its rows do not exist yet, and Spark fills nothing by position.
 */
final class FilledColumns {
    /** Metadata of the columns of a table that is loaded for an INSERT. */
    static final String MARK = "{\"headrace.inserted\":true}";

    private static final String MARKED = "headrace.inserted";

    private FilledColumns() {}

    /**
     * The filled columns, among `columns`, of the running statement's INSERT into this table. Refuses INSERTs of one
     * statement (FROM ... INSERT ... INSERT ...) that name different columns of one table.
     */
    static List<String> among(Set<String> columns, Table table) {
        List<List<String>> found =
                appends(table).stream().map(each -> filled(each, columns)).distinct().toList();
        if (found.size() > 1) {
            throw new UnsupportedOperationException(table.name()
                    + ": INSERTs of one statement name different columns of it: write a statement for each");
        }
        return found.isEmpty() ? List.of() : found.get(0);
    }

    private static List<String> filled(AppendData append, Set<String> columns) {
        if (!append.isByName() || !(append.query() instanceof Project project)) {
            return List.of();
        }
        return CollectionConverters.asJava(project.projectList()).stream()
                .filter(each -> each instanceof Alias alias
                        && alias.references().isEmpty()
                        && alias.metadata().contains(MARKED)
                        && columns.contains(alias.name()))
                .map(NamedExpression::name)
                .toList();
    }

    /** The INSERTs into a table of the statement that runs in this thread, which may have several (FROM ... INSERT). */
    private static List<AppendData> appends(Table table) {
        String id = SparkSession.active().sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
        QueryExecution execution = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
        if (execution == null) {
            return List.of();
        }
        List<AppendData> found = new ArrayList<>();
        execution.analyzed().foreach(node -> {
            if (node instanceof AppendData append
                    && append.table() instanceof DataSourceV2Relation relation
                    && relation.table() == table) {
                found.add(append);
            }
            return null;
        });
        return found;
    }
}
