package headrace.spark;

import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** Columns of a batch again, as one column of rows, without a copy. */
final class OldRows extends ColumnVector {
    private final ColumnVector[] columns;

    OldRows(StructType type, VectorSchemaRoot rows) {
        super(type);
        columns = new ColumnVector[type.size()];
        for (int at = 0; at < columns.length; at++) {
            columns[at] = new ArrowColumnVector(rows.getVector(type.fields()[at].name()));
        }
    }

    @Override
    public ColumnVector getChild(int place) {
        return columns[place];
    }

    @Override
    public boolean hasNull() {
        return false;
    }

    @Override
    public int numNulls() {
        return 0;
    }

    @Override
    public boolean isNullAt(int row) {
        return false;
    }

    @Override
    public void close() {
        // the batch's own columns free their memory
    }

    @Override
    public boolean getBoolean(int row) {
        throw onlyRows();
    }

    @Override
    public byte getByte(int row) {
        throw onlyRows();
    }

    @Override
    public short getShort(int row) {
        throw onlyRows();
    }

    @Override
    public int getInt(int row) {
        throw onlyRows();
    }

    @Override
    public long getLong(int row) {
        throw onlyRows();
    }

    @Override
    public float getFloat(int row) {
        throw onlyRows();
    }

    @Override
    public double getDouble(int row) {
        throw onlyRows();
    }

    @Override
    public ColumnarArray getArray(int row) {
        throw onlyRows();
    }

    @Override
    public ColumnarMap getMap(int row) {
        throw onlyRows();
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
        throw onlyRows();
    }

    @Override
    public UTF8String getUTF8String(int row) {
        throw onlyRows();
    }

    @Override
    public byte[] getBinary(int row) {
        throw onlyRows();
    }

    private static UnsupportedOperationException onlyRows() {
        return new UnsupportedOperationException("this column has only rows");
    }
}
