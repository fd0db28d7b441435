package headrace.spark;

import org.apache.spark.TaskContext;
import org.apache.spark.api.python.SimplePythonFunction;

/** The data source's class for Spark, which runs the driver's Python on the driver and the workers' one in tasks. */
public final class PlacedFunction extends SimplePythonFunction {
    private static final long serialVersionUID = 1L;
    private final String driverPython;

    public PlacedFunction(SimplePythonFunction given, String driverPython) {
        super(
                given.command(),
                given.envVars(),
                given.pythonIncludes(),
                given.pythonExec(),
                given.pythonVer(),
                given.broadcastVars(),
                given.accumulator());
        this.driverPython = driverPython;
    }

    @Override
    public String pythonExec() {
        return TaskContext.get() == null ? driverPython : super.pythonExec();
    }
}
