package headrace.spark;

import org.apache.spark.SparkEnv;

/**
 * The Pythons that run headrace: on the driver and in tasks. They differ where executors unpack an environment from an
 * archive, so that the path of their Python leads to nothing on the driver. Spark has the same settings and order.
 */
public final class Pythons {
    private static volatile String running;

    private Pythons() {}

    /** Sets the interpreter that runs the driver's program, which knows it better than any setting. */
    public static void setRunning(String python) {
        running = python;
    }

    /** The Python that plans and commits on the driver. */
    public static String ofDriver() {
        String found = running == null ? setting("spark.pyspark.driver.python", "PYSPARK_DRIVER_PYTHON") : running;
        return found == null ? ofTasks() : found;
    }

    /** The Python of Spark's own workers; to be asked on the driver, which has all settings. */
    public static String ofTasks() {
        String found = setting("spark.pyspark.python", "PYSPARK_PYTHON");
        return found == null ? "python3" : found;
    }

    private static String setting(String name, String variable) {
        String found = SparkEnv.get() == null ? null : SparkEnv.get().conf().get(name, null);
        return found == null ? System.getenv(variable) : found;
    }
}
