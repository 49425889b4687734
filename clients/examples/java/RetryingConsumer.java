import java.time.Duration;
import java.util.*;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.header.*;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.*;

/** A consumer with the Java client: what fails goes to the retry topic and comes back when it is due. */
public class RetryingConsumer {
    static final String TOPIC = System.getenv("TOPIC"), RETRY_TOPIC = System.getenv("RETRY_TOPIC"), GROUP = System.getenv("GROUP");

    /** An error that is worth a retry. */
    static class SupplierDown extends RuntimeException {}

    /** Handles an order such as order-7/2, whose supplier is down for the first 2 attempts. */
    static void handle(String value, int attempt) {
        if (attempt < Integer.parseInt(value.split("/")[1])) throw new SupplierDown();
        System.out.println("handled " + value + " attempt " + attempt);
    }

    static String text(Headers headers, String name) {
        Header header = headers.lastHeader(name);
        return header == null || header.value() == null ? null : new String(header.value());
    }

    /** The headers, without those of retries when they were copied from a message of another topic. */
    static Headers ownHeaders(ConsumerRecord<?, ?> record) {
        Headers headers = new RecordHeaders(record.headers());
        String origin = text(headers, "retry-origin-topic");
        if (origin != null && !origin.equals(record.topic()))
            for (Header header : record.headers()) if (header.key().startsWith("retry-")) headers.remove(header.key());
        return headers;
    }

    static ProducerRecord<byte[], byte[]> retry(ConsumerRecord<byte[], byte[]> record, Headers headers, Exception error) {
        for (String name : List.of("retry-due-ms", "retry-delay-ms", "retry-replace")) headers.remove(name);
        Map.of("retry-origin-topic", record.topic(), "retry-group", GROUP, "retry-exception", error.getClass().getName())
            .forEach((name, value) -> headers.remove(name).add(name, value.getBytes()));
        return new ProducerRecord<>(RETRY_TOPIC, null, record.key(), record.value(), headers);
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> common = Map.of("bootstrap.servers", System.getenv("BOOTSTRAP_SERVERS"));
        Map<String, Object> reading = new HashMap<>(common);
        // The default of isolation.level is read_uncommitted.
        reading.putAll(Map.of("group.id", GROUP, "isolation.level", "read_committed", "enable.auto.commit", false, "auto.offset.reset", "earliest"));
        Set<String> seen = new HashSet<>(); // timer ids; only a repeat has one that was handled before
        try (var consumer = new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                var producer = new KafkaProducer<>(common, new ByteArraySerializer(), new ByteArraySerializer())) {
            Thread main = Thread.currentThread();
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                consumer.wakeup();
                try { main.join(); } catch (InterruptedException ended) { }
            }));
            consumer.subscribe(List.of(TOPIC));
            while (true) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    Headers headers = ownHeaders(record);
                    String group = text(headers, "retry-group"), timer = text(headers, "retry-timer-id"), attempt = text(headers, "retry-attempt");
                    if (group != null && !group.equals(GROUP) || seen.contains(timer)) continue;
                    try {
                        handle(new String(record.value()), attempt == null ? 0 : Integer.parseInt(attempt));
                    } catch (SupplierDown error) {
                        sent.add(producer.send(retry(record, headers, error)));
                    }
                    if (seen.size() == 10_000) seen.clear();
                    if (timer != null) seen.add(timer);
                }
                for (var delivery : sent) delivery.get(); // throws when the retry topic refuses: it is read again
                consumer.commitSync();
            }
        } catch (WakeupException stopped) {
            System.err.println("stopped");
        }
    }
}
