package headrace.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * UPDATE, DELETE or MERGE: rows are identified by their primary key and written as changes. UPDATE and MERGE also read
 * the old row, to find the columns that change.
 */
final class HeadraceOperation implements RowLevelOperation, SupportsDelta {
    private final HeadraceTable table;
    private final RowLevelOperationInfo info;

    HeadraceOperation(HeadraceTable table, RowLevelOperationInfo info) {
        this.table = table;
        this.info = info;
    }

    @Override
    public Command command() {
        return info.command();
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        // Rows that only the lake has, those of expired partitions, cannot be changed.
        Map<String, String> ofServer = new HashMap<>(options.asCaseSensitiveMap());
        ofServer.put("scan.mode", "log");
        return table.newScanBuilder(new CaseInsensitiveStringMap(ofServer));
    }

    @Override
    public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo given) {
        return new HeadraceDeltaWrite(table, given);
    }

    @Override
    public NamedReference[] rowId() {
        return table.primaryKey();
    }

    @Override
    public NamedReference[] requiredMetadataAttributes() {
        MetadataColumn[] found = command() == Command.DELETE ? new MetadataColumn[0] : table.metadataColumns();
        return found.length == 0
                ? new NamedReference[0]
                : new NamedReference[] {Expressions.column(HeadraceTable.OLD_COLUMN)};
    }
}
