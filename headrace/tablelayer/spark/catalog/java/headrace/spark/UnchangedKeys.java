package headrace.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.stream.LongStream;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.CreateStruct;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.V2ExpressionUtils;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Seq$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * True for the keys that are not in a set: a filter for the rows of a lake that the log has not changed since.
 *
 * Spark compiles a call of `invoke` into the stage that scans the lake. An anti join with the same keys costs a job for
 * its broadcast, and more for each row.
 */
public final class UnchangedKeys implements ScalarFunction<Boolean> {
    private static final long serialVersionUID = 1L;
    private static final Set<DataType> INTEGERS = Set.of(
            DataTypes.ByteType,
            DataTypes.ShortType,
            DataTypes.IntegerType,
            DataTypes.LongType,
            DataTypes.DateType,
            DataTypes.TimestampType,
            DataTypes.TimestampNTZType);

    private final String id = "headrace.unchanged_keys." + UUID.randomUUID();
    private final DataType type;
    private final Broadcast<?> changed;
    private final int count;
    private transient LongKeys integers;
    private transient Set<?> rows;
    private transient UnsafeProjection projection;

    private UnchangedKeys(DataType type, Broadcast<?> changed, int count) {
        this.type = type;
        this.changed = changed;
        this.count = count;
    }

    /**
     * `rows` without those whose key is among the rows of `file`, which is read now. `schema`: the columns of the key, as
     * JSON.
     */
    public static Dataset<Row> of(Dataset<Row> rows, String schema, String file) throws IOException {
        StructType key = (StructType) DataType.fromJson(schema);
        List<Expression> columns = new ArrayList<>();
        for (String name : key.fieldNames()) {
            columns.add(ExpressionUtils.expression(rows.col("`" + name + "`")));
        }
        boolean isInteger = columns.size() == 1 && INTEGERS.contains(columns.get(0).dataType());
        Expression argument = isInteger
                ? columns.get(0)
                : CreateStruct.create(sequence(columns));
        Set<UnsafeRow> found = new HashSet<>();
        LongStream.Builder integers = LongStream.builder();
        UnsafeProjection projection = isInteger ? null : UnsafeProjection.create(key);
        int count = 0;
        try (LocalRows.Reader reader = new LocalRows.Reader(Files.readAllBytes(Path.of(file)), key)) {
            while (reader.next()) {
                count += reader.get().numRows();
                for (Iterator<InternalRow> each = reader.get().rowIterator(); each.hasNext(); ) {
                    if (isInteger) {
                        integers.add(integer(each.next(), argument.dataType()));
                    } else {
                        found.add(projection.apply(each.next()).copy());
                    }
                }
            }
        }
        JavaSparkContext context = JavaSparkContext.fromSparkContext(rows.sparkSession().sparkContext());
        Broadcast<?> changed = context.broadcast(isInteger ? new LongKeys(integers.build().toArray()) : found);
        Expression kept = V2ExpressionUtils.resolveScalarFunction(
                new UnchangedKeys(argument.dataType(), changed, count),
                sequence(List.of(argument)));
        return rows.where(ExpressionUtils.column(kept));
    }

    private static <T> Seq<T> sequence(List<T> values) {
        return Seq$.MODULE$.from(CollectionConverters.asScala(values));
    }

    private static long integer(InternalRow row, DataType type) {
        return switch (type.defaultSize()) {
            case 1 -> row.getByte(0);
            case 2 -> row.getShort(0);
            case 4 -> row.getInt(0);
            default -> row.getLong(0);
        };
    }

    public boolean invoke(byte key) {
        return invoke((long) key);
    }

    public boolean invoke(short key) {
        return invoke((long) key);
    }

    public boolean invoke(int key) {
        return invoke((long) key);
    }

    public boolean invoke(long key) {
        if (integers == null) {
            integers = (LongKeys) changed.value();
        }
        return !integers.contains(key);
    }

    /** The key has another type, or several columns. */
    public boolean invoke(InternalRow key) {
        if (rows == null) {
            projection = UnsafeProjection.create((StructType) type);
            rows = (Set<?>) changed.value();
        }
        return !rows.contains(projection.apply(key));
    }

    @Override
    public DataType[] inputTypes() {
        return new DataType[] {type};
    }

    @Override
    public DataType resultType() {
        return DataTypes.BooleanType;
    }

    @Override
    public boolean isResultNullable() {
        return false;
    }

    @Override
    public String name() {
        return "unchanged_keys";
    }

    @Override
    public String canonicalName() {
        return id;
    }

    /** Part of the plan that Spark shows. */
    @Override
    public String toString() {
        return "keys other than the " + count + " changed ones";
    }
}
