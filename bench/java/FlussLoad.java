import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.lookup.LookupResult;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.writer.Upsert;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.AggFunction;
import org.apache.fluss.metadata.AggFunctions;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DataTypes;
import org.apache.fluss.utils.CloseableIterator;

/**
 * The loads on PK tables of Apache Fluss, by its own Java client. One command a line on stdin, one answer a line on stdout:
 * "ok" and numbers, or "error" and the reason. The rows are those of bench/rows.py; keys come from a file of int64.
 *
 * <p>The commands of java FlussLoad ADDRESS:
 * <ul>
 *   <li>create TABLE plain|first_row|aggregation|prefix: in one bucket.
 *   <li>drop TABLE.
 *   <li>upsert TABLE FILE SEED all|partial: seconds until all rows are acknowledged.
 *   <li>lookup TABLE FILE UNDER_WAY: seconds, and the number of keys that were not found.
 *   <li>single TABLE FILE: milliseconds of each lookup, one after the other.
 *   <li>prefix TABLE FILE UNDER_WAY: seconds, and rows found.
 *   <li>limit TABLE ROWS TIMES: milliseconds of each.
 * </ul>
 */
public final class FlussLoad {
    private static final String[] NAMES = {"id", "a", "b", "c", "d", "e", "f", "g", "h", "i"};
    private static final DataType[] TYPES = {
        DataTypes.BIGINT(), DataTypes.BIGINT(), DataTypes.BIGINT(), DataTypes.INT(), DataTypes.INT(),
        DataTypes.DOUBLE(), DataTypes.DOUBLE(), DataTypes.STRING(), DataTypes.STRING(), DataTypes.BIGINT()
    };
    private static final int GROUP = 10;

    private final Connection connection;
    private final BinaryString[] texts = new BinaryString[97];

    private FlussLoad(String address) {
        Configuration configuration = new Configuration();
        configuration.setString("bootstrap.servers", address);
        configuration.setString("client.lookup.batch-timeout", "1ms");
        connection = ConnectionFactory.createConnection(configuration);
        for (int i = 0; i < texts.length; i++) {
            texts[i] = BinaryString.fromString(String.format("value-%07d", i));
        }
    }

    public static void main(String[] arguments) throws Exception {
        FlussLoad load = new FlussLoad(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = "ok " + load.run(line.split(" "));
            } catch (Exception error) {
                answer = "error " + error.toString().replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
        load.connection.close();
    }

    private String run(String[] words) throws Exception {
        TablePath path = TablePath.of("bench", words[1]);
        switch (words[0]) {
            case "create":
                create(path, words[2]);
                return "";
            case "drop":
                connection.getAdmin().dropTable(path, false).get();
                return "";
            case "upsert":
                return "" + upsert(path, keys(words[2]), Integer.parseInt(words[3]), words[4].equals("partial"));
            case "lookup":
                return lookups(path, keys(words[2]), Integer.parseInt(words[3]));
            case "single":
                return single(path, keys(words[2]));
            case "prefix":
                return prefixes(path, keys(words[2]), Integer.parseInt(words[3]));
            case "limit":
                return limit(path, Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            default:
                throw new IllegalArgumentException("unknown command " + words[0]);
        }
    }

    private static LongBuffer keys(String file) throws Exception {
        return ByteBuffer.wrap(Files.readAllBytes(Path.of(file))).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
    }

    private static AggFunction aggregate(String column) {
        switch (column) {
            case "b":
            case "f":
                return AggFunctions.MAX();
            case "d":
                return AggFunctions.MIN();
            case "g":
                return AggFunctions.LAST_VALUE();
            case "h":
                return AggFunctions.LAST_VALUE_IGNORE_NULLS();
            default:
                return AggFunctions.SUM();
        }
    }

    private void create(TablePath path, String kind) throws Exception {
        Schema.Builder schema = Schema.newBuilder();
        for (int i = 0; i < NAMES.length; i++) {
            if (kind.equals("aggregation") && i > 0) {
                schema.column(NAMES[i], TYPES[i], aggregate(NAMES[i]));
            } else {
                schema.column(NAMES[i], TYPES[i]);
            }
        }
        schema = kind.equals("prefix") ? schema.primaryKey("id", "c") : schema.primaryKey("id");
        TableDescriptor.Builder table = TableDescriptor.builder().schema(schema.build()).distributedBy(1, "id");
        if (kind.equals("first_row") || kind.equals("aggregation")) {
            table.property("table.merge-engine", kind);
        }
        connection.getAdmin().createDatabase("bench", DatabaseDescriptor.EMPTY, true).get();
        connection.getAdmin().createTable(path, table.build(), false).get();
    }

    private GenericRow row(long id, int seed, boolean grouped) {
        long value = id * 31 + seed;
        BinaryString text = texts[(int) ((seed + (id + seed) % 97) % 97)];
        GenericRow row = new GenericRow(NAMES.length);
        row.setField(0, grouped ? id / GROUP : id);
        row.setField(1, value);
        row.setField(2, value + 1);
        row.setField(3, grouped ? (int) (id % GROUP) : (int) value);
        row.setField(4, (int) value);
        row.setField(5, value / 3.0);
        row.setField(6, value / 7.0);
        row.setField(7, text);
        row.setField(8, text);
        row.setField(9, value);
        return row;
    }

    private double upsert(TablePath path, LongBuffer ids, int seed, boolean partial) throws Exception {
        try (Table table = connection.getTable(path)) {
            boolean grouped = table.getTableInfo().getPrimaryKeys().size() > 1;
            Upsert upsert = table.newUpsert();
            UpsertWriter writer = (partial ? upsert.partialUpdate("id", "a", "g") : upsert).createWriter();
            Throwable[] failure = new Throwable[1];
            long started = System.nanoTime();
            while (ids.hasRemaining()) {
                writer.upsert(row(ids.get(), seed, grouped)).whenComplete((result, error) -> {
                    if (error != null) {
                        failure[0] = error;
                    }
                });
            }
            writer.flush();
            double seconds = (System.nanoTime() - started) / 1e9;
            if (failure[0] != null) {
                throw new IllegalStateException("an upsert failed: " + failure[0]);
            }
            return seconds;
        }
    }

    private String lookups(TablePath path, LongBuffer ids, int underWay) throws Exception {
        try (Table table = connection.getTable(path)) {
            Lookuper lookuper = table.newLookup().createLookuper();
            ArrayDeque<CompletableFuture<LookupResult>> pending = new ArrayDeque<>();
            long missing = 0;
            long started = System.nanoTime();
            while (ids.hasRemaining() || !pending.isEmpty()) {
                while (ids.hasRemaining() && pending.size() < underWay) {
                    pending.add(lookuper.lookup(GenericRow.of(ids.get())));
                }
                InternalRow found = pending.remove().get().getSingletonRow();
                missing += found == null ? 1 : 0;
            }
            return (System.nanoTime() - started) / 1e9 + " " + missing;
        }
    }

    private String single(TablePath path, LongBuffer ids) throws Exception {
        try (Table table = connection.getTable(path)) {
            Lookuper lookuper = table.newLookup().createLookuper();
            StringBuilder times = new StringBuilder();
            while (ids.hasRemaining()) {
                long started = System.nanoTime();
                lookuper.lookup(GenericRow.of(ids.get())).get();
                times.append((System.nanoTime() - started) / 1e6).append(' ');
            }
            return times.toString().trim();
        }
    }

    private String prefixes(TablePath path, LongBuffer ids, int underWay) throws Exception {
        try (Table table = connection.getTable(path)) {
            Lookuper lookuper = table.newLookup().lookupBy(List.of("id")).createLookuper();
            ArrayDeque<CompletableFuture<LookupResult>> pending = new ArrayDeque<>();
            long rows = 0;
            long started = System.nanoTime();
            while (ids.hasRemaining() || !pending.isEmpty()) {
                while (ids.hasRemaining() && pending.size() < underWay) {
                    pending.add(lookuper.lookup(GenericRow.of(ids.get())));
                }
                rows += pending.remove().get().getRowList().size();
            }
            return (System.nanoTime() - started) / 1e9 + " " + rows;
        }
    }

    private String limit(TablePath path, int rows, int times) throws Exception {
        try (Table table = connection.getTable(path)) {
            TableBucket bucket = new TableBucket(table.getTableInfo().getTableId(), 0);
            double[] milliseconds = new double[times];
            for (int i = 0; i < times; i++) {
                long started = System.nanoTime();
                int seen = 0;
                try (BatchScanner scanner = table.newScan().limit(rows).createBatchScanner(bucket)) {
                    CloseableIterator<InternalRow> part = scanner.pollBatch(Duration.ofSeconds(10));
                    while (part != null) {
                        for (; part.hasNext(); part.next()) {
                            seen++;
                        }
                        part.close();
                        part = scanner.pollBatch(Duration.ofSeconds(10));
                    }
                }
                milliseconds[i] = (System.nanoTime() - started) / 1e6;
                if (seen != rows) {
                    throw new IllegalStateException(seen + " of " + rows + " rows");
                }
            }
            StringBuilder times_ = new StringBuilder();
            Arrays.stream(milliseconds).forEach(each -> times_.append(each).append(' '));
            return times_.toString().trim();
        }
    }
}
