package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.util.V2ExpressionSQLBuilder;

/**
 * Spark's conditions, sorted: `predicate` (null: none) goes to the readers, which apply those in `complete` exactly;
 * Spark has to apply those in `left`.
 */
record Conditions(String predicate, Predicate[] complete, Predicate[] left) {
    static Conditions of(HeadraceTable table, Predicate[] predicates) {
        List<Predicate> given = new ArrayList<>();
        List<String> texts = new ArrayList<>();
        List<Predicate> left = new ArrayList<>();
        for (Predicate each : predicates) {
            try {
                texts.add(new V2ExpressionSQLBuilder().build(plain(each)));
                given.add(each);
            } catch (RuntimeException error) { // it cannot be written in SQL
                left.add(each);
            }
        }
        if (texts.isEmpty()) {
            return new Conditions(null, new Predicate[0], predicates);
        }
        Map<String, Object> request = table.place();
        request.put("conditions", texts);
        JsonNode answer = table.server.ask("push", request);
        List<Predicate> complete = new ArrayList<>();
        for (int at = 0; at < given.size(); at++) {
            (answer.get("complete").get(at).asBoolean() ? complete : left).add(given.get(at));
        }
        return new Conditions(
                answer.hasNonNull("predicate") ? answer.get("predicate").asText() : null,
                complete.toArray(Predicate[]::new),
                left.toArray(Predicate[]::new));
    }

    /**
     * Replaces `a <=> 1`, by which INSERT OVERWRITE names a partition, with `a = 1`: both are true for the same rows.
     */
    private static Predicate plain(Predicate given) {
        boolean known = given.name().equals("<=>")
                && given.children()[1] instanceof Literal<?> literal
                && literal.value() != null;
        return known ? new Predicate("=", given.children()) : given;
    }
}
