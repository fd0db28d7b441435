package headrace.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
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

    /** The filled columns of the statement that runs in this thread, among `columns`. */
    static List<String> among(Set<String> columns) {
        List<String> found = new ArrayList<>();
        if (running() instanceof AppendData append
                && append.isByName()
                && append.query() instanceof Project project) {
            for (NamedExpression each : CollectionConverters.asJava(project.projectList())) {
                if (each instanceof Alias alias
                        && alias.references().isEmpty()
                        && alias.metadata().contains(MARKED)
                        && columns.contains(alias.name())) {
                    found.add(alias.name());
                }
            }
        }
        return found;
    }

    private static LogicalPlan running() {
        String id = SparkSession.active().sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
        QueryExecution execution = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
        return execution == null ? null : execution.analyzed();
    }
}
