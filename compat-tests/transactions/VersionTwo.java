import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * VersionTwo ADDRESS TOPIC ID COUNT: COUNT transactions of three records each, every third one aborted. With ID "hang" the last
 * one is left open, and the process ends as if it had been killed.
 */
public class VersionTwo {
    public static void main(String[] args) throws Exception {
        String topic = args[1], id = args[2];
        var settings = Map.<String, Object>of(
                "bootstrap.servers", args[0], "transactional.id", id, "linger.ms", "0",
                "key.serializer", StringSerializer.class, "value.serializer", StringSerializer.class);
        var producer = new KafkaProducer<String, String>(settings);
        producer.initTransactions();
        int count = Integer.parseInt(args[3]);
        for (int number = 0; number < count; number++) {
            producer.beginTransaction();
            Future<?> last = null;
            for (int part = 0; part < 3; part++)
                last = producer.send(new ProducerRecord<>(topic, 0, null, number + "." + part));
            last.get();
            if (id.equals("hang") && number == count - 1) Runtime.getRuntime().halt(0);
            if (number % 3 == 2) producer.abortTransaction();
            else producer.commitTransaction();
        }
        producer.close();
    }
}
