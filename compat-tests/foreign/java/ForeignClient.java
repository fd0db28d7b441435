import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.*;

/** The scenarios of ../README.md with Apache Kafka's own client. */
public final class ForeignClient {
    private static String bootstrap;
    private static String clientId;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        clientId = args[1];
        String[] a = Arrays.copyOfRange(args, 3, args.length);
        switch (args[2]) {
            case "produce" -> produce(a[0], a[1], Integer.parseInt(a[2]));
            case "consume" -> consume(a[0], Long.parseLong(a[1]), Integer.parseInt(a[2]), a[3]);
            case "group" -> group(a[0], a[1], Integer.parseInt(a[2]), a[3]);
            case "seek" -> seek(a[0], Long.parseLong(a[1]));
            case "transact" -> transact(a[0], a[1], a[2], a[3], Integer.parseInt(a[4]));
            case "admin" -> admin(a[0], a[1]);
            default -> throw new IllegalArgumentException(args[2]);
        }
        System.out.println("done");
    }

    private static Properties properties() {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("client.id", clientId);
        secure(p);
        return p;
    }

    /**
     * FOREIGN_MECHANISM, FOREIGN_USER, FOREIGN_PASSWORD or FOREIGN_TOKEN set the login; FOREIGN_CA is the trusted
     * authority of TLS, FOREIGN_CERTIFICATE the client's certificate.
     */
    private static void secure(Properties p) {
        Map<String, String> environment = System.getenv();
        String mechanism = environment.get("FOREIGN_MECHANISM");
        String authority = environment.get("FOREIGN_CA");
        if (mechanism == null && authority == null) return;
        p.put("security.protocol", (mechanism == null ? "" : "SASL_") + (authority != null ? "SSL" : "PLAINTEXT"));
        if (authority != null) {
            p.put("ssl.truststore.type", "PEM");
            p.put("ssl.truststore.location", authority);
        }
        String own = environment.get("FOREIGN_CERTIFICATE");
        if (own != null && !own.isEmpty()) {
            p.put("ssl.keystore.type", "PEM");
            p.put("ssl.keystore.location", own);
        }
        if (mechanism == null) return;
        if (mechanism.equals("OAUTHBEARER")) {
            String security = "org.apache.kafka.common.security.oauthbearer.";
            String url = "file://" + environment.get("FOREIGN_TOKEN");
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
            p.put("sasl.mechanism", mechanism);
            p.put("sasl.oauthbearer.token.endpoint.url", url);
            p.put("sasl.login.callback.handler.class", security + "OAuthBearerLoginCallbackHandler");
            p.put("sasl.jaas.config", security + "OAuthBearerLoginModule required;");
            return;
        }
        String kind = mechanism.equals("PLAIN") ? "plain.Plain" : "scram.Scram";
        p.put("sasl.mechanism", mechanism);
        p.put("sasl.jaas.config", "org.apache.kafka.common.security." + kind + "LoginModule required username=\""
            + environment.get("FOREIGN_USER") + "\" password=\"" + environment.get("FOREIGN_PASSWORD") + "\";");
    }

    private static KafkaProducer<byte[], byte[]> producer(Properties extra) {
        Properties p = properties();
        p.putAll(extra);
        return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Properties extra) {
        Properties p = properties();
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        p.putAll(extra);
        return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Properties with(String... pairs) {
        Properties p = new Properties();
        for (int i = 0; i < pairs.length; i += 2) p.put(pairs[i], pairs[i + 1]);
        return p;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] value(int i) {
        if (i % 11 == 5) return null;
        return bytes(i == 1 ? "x".repeat(200_000) : "value-" + i + "-ü");
    }

    private static void produce(String topic, String codec, int count) throws Exception {
        try (var producer = producer(with("compression.type", codec, "linger.ms", "50"))) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                RecordHeaders headers = new RecordHeaders();
                headers.add("n", bytes(Integer.toString(i)));
                if (i % 5 == 2) headers.add("null", null);
                byte[] key = i % 7 == 3 ? null : bytes("key-" + i);
                sent.add(producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + i * 1000L, key, value(i), headers)));
            }
            for (int i = 0; i < count; i++) System.out.println("offset " + sent.get(i).get().offset());
        }
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "-" : "+" + Base64.getEncoder().encodeToString(bytes);
    }

    private static void print(ConsumerRecord<byte[], byte[]> r) {
        StringBuilder headers = new StringBuilder();
        for (Header h : r.headers()) headers.append(' ').append(h.key()).append('=').append(text(h.value()));
        System.out.println("record " + r.offset() + " " + r.timestamp() + " " + text(r.key()) + " " + text(r.value()) + headers);
    }

    private static void consume(String topic, long from, int count, String isolation) {
        try (var consumer = consumer(with("isolation.level", isolation))) {
            TopicPartition part = new TopicPartition(topic, 0);
            consumer.assign(List.of(part));
            consumer.seek(part, from);
            for (int seen = 0; seen < count; ) {
                for (var r : consumer.poll(Duration.ofSeconds(30))) {
                    print(r);
                    seen++;
                }
            }
        }
    }

    private static void group(String topic, String group, int count, String protocol) throws Exception {
        Properties extra = protocol.equals("consumer")
                ? with("group.id", group, "group.protocol", "consumer")
                : with("group.id", group, "partition.assignment.strategy",
                        protocol.equals("cooperative") ? CooperativeStickyAssignor.class.getName() : RangeAssignor.class.getName());
        AtomicInteger total = new AtomicInteger();
        CountDownLatch both = new CountDownLatch(2);
        ExecutorService members = Executors.newFixedThreadPool(2);
        List<Future<Set<Integer>>> results = new ArrayList<>();
        for (int member = 0; member < 2; member++) {
            int me = member;
            results.add(members.submit(() -> {
                Set<Integer> owned = new TreeSet<>();
                boolean[] counted = {false};
                try (var consumer = consumer(extra)) {
                    consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                        @Override public void onPartitionsRevoked(Collection<TopicPartition> parts) {
                            parts.forEach(p -> owned.remove(p.partition()));
                        }
                        @Override public void onPartitionsAssigned(Collection<TopicPartition> parts) {
                            parts.forEach(p -> owned.add(p.partition()));
                        }
                    });
                    long until = System.nanoTime() + 60_000_000_000L;
                    while (both.getCount() > 0 || total.get() < count) {
                        if (System.nanoTime() > until) throw new TimeoutException("member " + me + " owns " + owned);
                        for (var r : consumer.poll(Duration.ofMillis(100))) {
                            synchronized (ForeignClient.class) {
                                System.out.println("read " + me + " " + r.partition() + " " + r.offset());
                            }
                            total.incrementAndGet();
                        }
                        if (both.getCount() == 0) continue;
                        if (!counted[0] && consumer.assignment().size() == 2) {
                            counted[0] = true;
                            both.countDown();
                        }
                    }
                    consumer.commitSync();
                    return new TreeSet<>(owned); // closing revokes
                }
            }));
            Thread.sleep(300);
        }
        for (int member = 0; member < 2; member++) System.out.println("owned " + member + " " + results.get(member).get());
        members.shutdown();
    }

    private static void seek(String topic, long timestamp) {
        try (var consumer = consumer(new Properties())) {
            TopicPartition part = new TopicPartition(topic, 0);
            System.out.println("offset " + consumer.offsetsForTimes(Map.of(part, timestamp)).get(part).offset());
            System.out.println("beginning " + consumer.beginningOffsets(List.of(part)).get(part));
            System.out.println("end " + consumer.endOffsets(List.of(part)).get(part));
        }
    }

    private static void transact(String in, String out, String group, String id, int count) {
        try (var consumer = consumer(with("group.id", group, "isolation.level", "read_committed"));
                var producer = producer(with("transactional.id", id))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(out, 0, bytes("aborted"), bytes("aborted")));
            producer.flush();
            producer.abortTransaction();
            consumer.subscribe(List.of(in));
            int seen = 0;
            while (seen < count) {
                var records = consumer.poll(Duration.ofSeconds(30));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (var r : records) {
                    producer.send(new ProducerRecord<>(out, 0, r.key(), r.value()));
                    offsets.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1));
                    seen++;
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
            }
            TopicPartition part = new TopicPartition(in, 0);
            System.out.println("committed " + consumer.committed(Set.of(part)).get(part).offset());
        }
    }

    private static void admin(String topic, String group) throws Exception {
        try (Admin admin = Admin.create(properties())) {
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(2), Optional.empty()).configs(Map.of("retention.ms", "7200000")))).all().get();
            System.out.println("partitions " + admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            System.out.println("retention " + admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value());
            admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                    new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET)))).all().get();
            System.out.println("retention " + admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value());
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            System.out.println("partitions " + admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
            try (var producer = producer(new Properties())) {
                for (int i = 0; i < 5; i++) producer.send(new ProducerRecord<>(topic, 0, null, bytes("x"))).get();
            }
            TopicPartition part = new TopicPartition(topic, 0);
            System.out.println("low " + admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(3))).lowWatermarks().get(part).get().lowWatermark());
            try (var consumer = consumer(with("group.id", group))) {
                consumer.assign(List.of(part));
                consumer.commitSync(Map.of(part, new OffsetAndMetadata(4, "note")));
            }
            System.out.println("offset " + admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(part).offset());
            System.out.println("state " + admin.describeConsumerGroups(List.of(group)).all().get().get(group).state().toString().toLowerCase());
            System.out.println("listed " + admin.listConsumerGroups().all().get().stream().anyMatch(g -> g.groupId().equals(group)));
            admin.deleteConsumerGroups(List.of(group)).all().get();
            admin.deleteTopics(List.of(topic)).all().get();
            System.out.println("listed " + admin.listTopics().names().get().contains(topic));
        }
    }
}
