package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.HashMap;
import java.util.Map;

/** The server's address and credentials; never shown, because the options contain passwords. */
final class Server implements Serializable {
    private static final long serialVersionUID = 1L;
    private final String python;
    private final HashMap<String, String> options;

    /** `python`: one for the driver and for tasks; null: that of Spark's settings (`Pythons`). */
    Server(String python, Map<String, String> options) {
        this.python = python;
        this.options = new HashMap<>(options);
    }

    /** These options together with those of one read or write. */
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
        return Helper.ask(python == null ? Pythons.ofDriver() : python, request);
    }

    /** The Python that a task runs. */
    String pythonOfTasks() {
        return python == null ? Pythons.ofTasks() : python;
    }
}
