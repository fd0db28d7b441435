package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.HashMap;
import java.util.Map;

/** Where tables are and how one is let in; never shown, since passwords are among the options. */
final class Server implements Serializable {
    private static final long serialVersionUID = 1L;
    final String python;
    private final HashMap<String, String> options;

    Server(String python, Map<String, String> options) {
        this.python = python;
        this.options = new HashMap<>(options);
    }

    /** The options of one read or write with them. */
    Server with(Map<String, String> more) {
        if (more.isEmpty()) {
            return this;
        }
        HashMap<String, String> merged = new HashMap<>(options);
        merged.putAll(more);
        return new Server(python, merged);
    }

    JsonNode ask(String kind, Map<String, ?> words) {
        Map<String, Object> request = new HashMap<>(words);
        request.put("op", kind);
        request.put("options", options);
        return Helper.ask(python, request);
    }
}
