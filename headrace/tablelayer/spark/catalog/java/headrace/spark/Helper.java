package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.PythonUtils;

/** The helper process (tablelayer.spark.catalog.helper), one per JVM and Python, and its idle connections. */
final class Helper {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final int IDLE_MAX = 16;
    /** Starts the helper. An environment without pyspark finds it in Spark's own folder, as Spark's workers do. */
    private static final String START = "import sys; sys.path += sys.argv[1].split(':');"
            + " from headrace.tablelayer.spark.catalog.helper import main; main()";
    private static final Map<String, Helper> HELPERS = new HashMap<>();

    private final String python;
    private final Process process;
    private final UnixDomainSocketAddress address;
    private final Deque<Connection> idle = new ArrayDeque<>();

    private Helper(String python, Process process, String path) {
        this.python = python;
        this.process = process;
        this.address = UnixDomainSocketAddress.of(path);
    }

    /** The answer to one request. */
    static JsonNode ask(String python, Map<String, ?> request) {
        Connection connection = connect(python);
        boolean done = false;
        try {
            connection.send(request);
            JsonNode answer = connection.receive();
            done = true;
            return answer;
        } catch (IOException error) {
            throw new HelperException("ProcessEnded", "the process that serves this catalog ended: " + error);
        } catch (HelperException error) {
            done = true;
            throw error;
        } finally {
            connection.close(done);
        }
    }

    /** A connection for the caller alone. */
    static Connection connect(String python) {
        Helper helper = running(python);
        synchronized (helper.idle) {
            Connection found = helper.idle.pollFirst();
            if (found != null) {
                return found;
            }
        }
        try {
            SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);
            channel.connect(helper.address);
            return new Connection(helper, channel);
        } catch (IOException error) {
            throw new HelperException("ProcessEnded", "the process that serves this catalog has ended: " + error);
        }
    }

    private static Helper running(String python) {
        synchronized (HELPERS) {
            Helper found = HELPERS.get(python);
            if (found == null || !found.process.isAlive()) {
                found = start(python);
                HELPERS.put(python, found);
            }
            return found;
        }
    }

    private static Helper start(String python) {
        try {
            File errors = File.createTempFile("headrace-catalog-", ".log");
            errors.deleteOnExit();
            Process process = new ProcessBuilder(python, "-c", START, PythonUtils.sparkPythonPath())
                    .redirectError(errors)
                    .start();
            BufferedReader said =
                    new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
            String path = said.readLine();
            if (path == null) {
                throw new HelperException("NoHelper", complaint(python, errors));
            }
            return new Helper(python, process, path);
        } catch (IOException error) {
            throw new HelperException("NoHelper", complaint(python, null) + " (" + error.getMessage() + ")");
        }
    }

    private static String complaint(String python, File errors) throws HelperException {
        String last = "";
        try {
            if (errors != null) {
                String text = Files.readString(errors.toPath()).strip();
                last = ": " + text.substring(text.lastIndexOf('\n') + 1);
            }
        } catch (IOException ignored) {
            // the rest of the sentence says what to do
        }
        boolean inTask = TaskContext.get() != null;
        return "Python " + python + " of " + (inTask ? "an executor" : "the driver") + " cannot run headrace, which this"
                + " catalog needs" + last + ". Before the session starts, set "
                + (inTask
                        ? "PYSPARK_PYTHON or spark.pyspark.python to a Python on executors"
                        : "PYSPARK_DRIVER_PYTHON or spark.pyspark.driver.python to a Python on the driver")
                + " (or the catalog's option python) that has it: pip install 'headrace[spark]', or an archive (headrace spark env)";
    }

    private void giveBack(Connection connection) {
        synchronized (idle) {
            if (idle.size() < IDLE_MAX) {
                idle.addFirst(connection);
                return;
            }
        }
        connection.close(false);
    }

    /** A connection to one forked process; one thread uses it at a time. */
    static final class Connection {
        final InputStream in;
        final OutputStream out;
        private final Helper helper;
        final SocketChannel channel;

        private Connection(Helper helper, SocketChannel channel) {
            this.helper = helper;
            this.channel = channel;
            this.in = Channels.newInputStream(channel);
            this.out = Channels.newOutputStream(channel);
        }

        void send(Map<String, ?> request) throws IOException {
            byte[] text = JSON.writeValueAsBytes(request);
            byte[] framed = new byte[text.length + 4];
            for (int at = 0; at < 4; at++) {
                framed[at] = (byte) (text.length >>> (24 - 8 * at));
            }
            System.arraycopy(text, 0, framed, 4, text.length);
            out.write(framed);
        }

        /** The value of an ok answer; throws HelperException for a refusal. */
        JsonNode receive() throws IOException {
            DataInputStream data = new DataInputStream(in);
            byte[] text = new byte[data.readInt()];
            data.readFully(text);
            JsonNode answer = JSON.readTree(text);
            JsonNode refusal = answer.get("error");
            if (refusal != null) {
                throw new HelperException(refusal.get("kind").asText(), refusal.get("message").asText());
            }
            return answer.get("ok");
        }

        /** `reusable`: every request on the connection was answered. */
        void close(boolean reusable) {
            if (reusable && channel.isOpen()) {
                helper.giveBack(this);
                return;
            }
            try {
                channel.close();
            } catch (IOException ignored) {
                // the connection is not used any more
            }
        }
    }

    /**
     * A refusal with a readable message; the kind is a name of TableErrorCode, or of an exception. pyspark shows this
     * exception class by its message alone.
     */
    static final class HelperException extends IllegalArgumentException {
        private static final long serialVersionUID = 1L;
        final String kind;

        HelperException(String kind, String message) {
            super(message);
            this.kind = kind;
        }
    }
}
