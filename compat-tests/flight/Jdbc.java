import java.sql.*;
import java.util.*;

/** A program with Apache Arrow's JDBC driver: names, types, queries, prepared statements, errors. */
public final class Jdbc {
    public static void main(String[] args) throws Exception {
        try (Connection connection = DriverManager.getConnection(args[0])) {
            DatabaseMetaData about = connection.getMetaData();
            System.out.println(about.getDatabaseProductName() + " " + about.isReadOnly() + " " + about.getIdentifierQuoteString());
            System.out.println("schemas " + listed(about.getSchemas(), "TABLE_SCHEM"));
            System.out.println("tables " + listed(about.getTables(null, "shop", "%", null), "TABLE_NAME"));
            System.out.println("columns " + listed(about.getColumns(null, "shop", "fruit", "%"), "COLUMN_NAME", "DATA_TYPE"));
            System.out.println("key " + listed(about.getPrimaryKeys(null, "shop", "pair"), "COLUMN_NAME", "KEY_SEQ"));
            try (Statement statement = connection.createStatement();
                 ResultSet rows = statement.executeQuery("SELECT id, name, price, at, tags FROM shop.fruit WHERE id = 3")) {
                ResultSetMetaData shape = rows.getMetaData();
                List<String> types = new ArrayList<>();
                for (int i = 1; i <= shape.getColumnCount(); i++) types.add(shape.getColumnTypeName(i));
                System.out.println("shape " + types);
                rows.next();
                System.out.println("row " + rows.getInt(1) + " " + rows.getString(2) + " " + rows.getBigDecimal(3) + " "
                    + rows.getTimestamp(4, Calendar.getInstance(TimeZone.getTimeZone("UTC"))).toInstant() + " " + rows.getObject(5));
            }
            try (Statement statement = connection.createStatement();
                 ResultSet rows = statement.executeQuery("SELECT id, page FROM click")) {
                long count = 0, sum = 0;
                while (rows.next()) { count++; sum += rows.getLong("id"); }
                System.out.println("streamed " + count + " " + sum);
            }
            try (PreparedStatement statement = connection.prepareStatement("SELECT name FROM shop.fruit WHERE id > ? AND name <> ? ORDER BY id")) {
                for (int from : new int[] {5, 7}) {
                    statement.setInt(1, from);
                    statement.setString(2, "f7");
                    System.out.println("prepared " + listed(statement.executeQuery(), "name"));
                }
            }
            for (String wrong : new String[] {"SELECT nam FROM shop.fruit", "DROP TABLE shop.fruit"})
                try (Statement statement = connection.createStatement()) {
                    statement.executeQuery(wrong);
                    System.out.println("not refused");
                } catch (SQLException error) {
                    System.out.println("refused " + error.getMessage().lines().findFirst().orElse(""));
                }
        }
        try (Connection connection = DriverManager.getConnection(args[0].replace("secret", "other"))) {
            connection.createStatement().executeQuery("SELECT 1");
            System.out.println("let in");
        } catch (SQLException error) {
            System.out.println("stranger refused");
        }
    }

    private static List<String> listed(ResultSet rows, String... columns) throws SQLException {
        List<String> found = new ArrayList<>();
        while (rows.next()) {
            StringJoiner row = new StringJoiner(":");
            for (String column : columns) row.add(String.valueOf(rows.getObject(column)));
            found.add(row.toString());
        }
        rows.close();
        return found;
    }
}
