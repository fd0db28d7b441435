package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import headrace.spark.Helper.HelperException;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.PartitionsAlreadyExistException;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsPartitionManagement;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * SHOW PARTITIONS, and ADD and DROP PARTITION. A table without partitions has an empty schema of them, and Spark
 * refuses these statements.
 */
interface Partitions extends SupportsPartitionManagement {
    /** `spec`: values of partition columns as texts, or null. */
    JsonNode askOfPartitions(String kind, Map<String, String> spec);

    @Override
    default InternalRow[] listPartitionIdentifiers(String[] names, InternalRow values) {
        StructType schema = partitionSchema();
        List<InternalRow> found = new ArrayList<>();
        for (JsonNode each : askOfPartitions("partitions", spec(names, values))) {
            Object[] row = new Object[schema.length()];
            for (int at = 0; at < row.length; at++) {
                row[at] = value(each.get(at).asText(), schema.apply(at).dataType());
            }
            found.add(new GenericInternalRow(row));
        }
        return found.toArray(InternalRow[]::new);
    }

    @Override
    default void createPartition(InternalRow values, Map<String, String> properties)
            throws PartitionsAlreadyExistException {
        if (!properties.isEmpty()) {
            throw new UnsupportedOperationException(
                    "the server decides where a partition is stored: leave LOCATION out");
        }
        try {
            askOfPartitions("add_partition", spec(partitionSchema().names(), values));
        } catch (HelperException error) {
            if (error.kind.equals("PARTITION_EXISTS")) {
                throw new PartitionsAlreadyExistException(name(), values, partitionSchema());
            }
            throw error;
        }
    }

    @Override
    default boolean dropPartition(InternalRow values) {
        return askOfPartitions("drop_partition", spec(partitionSchema().names(), values)).asBoolean();
    }

    @Override
    default Map<String, String> loadPartitionMetadata(InternalRow values) {
        return Map.of();
    }

    @Override
    default void replacePartitionMetadata(InternalRow values, Map<String, String> properties) {
        throw new UnsupportedOperationException("partitions have no properties");
    }

    private Map<String, String> spec(String[] names, InternalRow values) {
        StructType schema = partitionSchema();
        Map<String, String> found = new HashMap<>();
        for (int at = 0; at < names.length; at++) {
            DataType type = schema.apply(names[at]).dataType();
            found.put(names[at], values.isNullAt(at) ? null : text(values.get(at, type), type));
        }
        return found;
    }

    private static String text(Object value, DataType type) {
        return type.equals(DataTypes.DateType) ? LocalDate.ofEpochDay((Integer) value).toString() : value.toString();
    }

    private static Object value(String text, DataType type) {
        if (type.equals(DataTypes.DateType)) {
            return Math.toIntExact(LocalDate.parse(text).toEpochDay());
        } else if (type.equals(DataTypes.BooleanType)) {
            return Boolean.valueOf(text);
        } else if (type.equals(DataTypes.ByteType)) {
            return Byte.valueOf(text);
        } else if (type.equals(DataTypes.ShortType)) {
            return Short.valueOf(text);
        } else if (type.equals(DataTypes.IntegerType)) {
            return Integer.valueOf(text);
        } else if (type.equals(DataTypes.LongType)) {
            return Long.valueOf(text);
        }
        return UTF8String.fromString(text);
    }
}
