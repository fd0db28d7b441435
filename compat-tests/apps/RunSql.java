import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/** `RunSql FILE [RESTARTS]`: runs the statements of a file in a small cluster of its own, and waits for the last one's job. */
public final class RunSql {
    public static void main(String[] words) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "2 s");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", words.length > 1 ? words[1] : "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "1 s");
        settings.setString("parallelism.default", "2");
        TableEnvironment tables = TableEnvironment.create(
            EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings).build());
        TableResult last = null;
        for (String statement : Files.readString(Path.of(words[0])).split(";\\s*\n(?!INSERT|END)")) {
            if (!statement.isBlank()) {
                last = tables.executeSql(statement.strip());
            }
        }
        last.await();
    }
}
