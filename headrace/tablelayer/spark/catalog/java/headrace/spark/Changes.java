package headrace.spark;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.TableChange;

/** Describes Spark's changes of a table for requests to the helper. */
final class Changes {
    private Changes() {}

    static Map<String, Object> described(TableChange change) {
        Map<String, Object> found = new LinkedHashMap<>();
        if (change instanceof TableChange.SetProperty set) {
            found.put("kind", "set");
            found.put("name", set.property());
            found.put("value", set.value());
            return found;
        }
        if (change instanceof TableChange.RemoveProperty remove) {
            found.put("kind", "remove");
            found.put("name", remove.property());
            found.put("value", null);
            return found;
        }
        if (!(change instanceof TableChange.ColumnChange column)) {
            throw new UnsupportedOperationException(change.getClass().getSimpleName() + " is unsupported for a table");
        }
        found.put("name", column.fieldNames());
        if (change instanceof TableChange.AddColumn add) {
            found.put("kind", "add");
            found.put("type", add.dataType().json());
            found.put("nullable", add.isNullable());
            found.put("comment", add.comment());
            found.put("default", add.defaultValue() == null ? null : add.defaultValue().getSql());
            found.put("after", after(add.position()));
        } else if (change instanceof TableChange.DeleteColumn delete) {
            found.put("kind", "drop");
            found.put("if_exists", delete.ifExists());
        } else if (change instanceof TableChange.RenameColumn rename) {
            found.put("kind", "rename");
            found.put("new", rename.newName());
        } else if (change instanceof TableChange.UpdateColumnType type) {
            found.put("kind", "type");
            found.put("type", type.newDataType().json());
        } else if (change instanceof TableChange.UpdateColumnNullability nullability) {
            found.put("kind", "nullable");
            found.put("nullable", nullability.nullable());
        } else if (change instanceof TableChange.UpdateColumnComment comment) {
            found.put("kind", "comment");
            found.put("comment", comment.newComment());
        } else if (change instanceof TableChange.UpdateColumnDefaultValue value) {
            found.put("kind", "default");
            found.put("default", value.newDefaultValue());
        } else if (change instanceof TableChange.UpdateColumnPosition position) {
            found.put("kind", "position");
            found.put("after", after(position.position()));
        } else {
            throw new UnsupportedOperationException(change.getClass().getSimpleName() + " is unsupported for a table");
        }
        return found;
    }

    /** Null: unchanged, or at the end; empty: first; otherwise the column before it. */
    private static String after(TableChange.ColumnPosition position) {
        if (position instanceof TableChange.After after) {
            return after.column();
        }
        return position == null ? null : "";
    }
}
