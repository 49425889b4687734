import java.util.*;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.*;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.*;
import org.springframework.context.annotation.*;
import org.springframework.core.NestedExceptionUtils;
import org.springframework.kafka.annotation.*;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.*;
import org.springframework.kafka.listener.*;
import org.springframework.util.backoff.FixedBackOff;

/** A Spring Kafka listener: its error handler's recoverer sends what fails to the retry topic. */
@Configuration @EnableKafka
public class RetryingListener {
    static final String RETRY_TOPIC = System.getenv("RETRY_TOPIC"), GROUP = System.getenv("GROUP");
    static final Set<String> SEEN = new HashSet<>(); // timer ids; only a repeat has one that was handled before

    /** An error that is worth a retry. */
    static class SupplierDown extends RuntimeException {}

    /** Handles an order such as order-7/2, whose supplier is down for the first 2 attempts. */
    @KafkaListener(topics = "#{systemEnvironment['TOPIC']}", groupId = "#{systemEnvironment['GROUP']}")
    void handle(ConsumerRecord<byte[], byte[]> record) {
        String value = new String(record.value()), attempt = text(ownHeaders(record), "retry-attempt");
        if ((attempt == null ? 0 : Integer.parseInt(attempt)) < Integer.parseInt(value.split("/")[1])) throw new SupplierDown();
        System.out.println("handled " + value + " attempt " + (attempt == null ? 0 : attempt));
        done(record);
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

    static void done(ConsumerRecord<?, ?> record) {
        if (SEEN.size() == 10_000) SEEN.clear();
        Optional.ofNullable(text(ownHeaders(record), "retry-timer-id")).ifPresent(SEEN::add);
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<byte[], byte[]> kafkaListenerContainerFactory() {
        Map<String, Object> common = Map.of("bootstrap.servers", System.getenv("BOOTSTRAP_SERVERS"));
        Map<String, Object> reading = new HashMap<>(common); // the default of isolation.level is read_uncommitted
        reading.putAll(Map.of("isolation.level", "read_committed", "auto.offset.reset", "earliest"));
        var template = new KafkaTemplate<>(new DefaultKafkaProducerFactory<>(common, new ByteArraySerializer(), new ByteArraySerializer()));
        var factory = new ConcurrentKafkaListenerContainerFactory<byte[], byte[]>();
        factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer()));
        factory.setRecordFilterStrategy(record -> {
            String group = text(ownHeaders(record), "retry-group"), timer = text(ownHeaders(record), "retry-timer-id");
            return group != null && !group.equals(GROUP) || SEEN.contains(timer);
        });
        factory.setCommonErrorHandler(new DefaultErrorHandler((record, error) -> {
            Headers headers = ownHeaders(record);
            for (String name : List.of("retry-due-ms", "retry-delay-ms", "retry-replace")) headers.remove(name);
            Map.of("retry-origin-topic", record.topic(), "retry-group", GROUP, "retry-exception", error.getCause().getClass().getName())
                .forEach((name, value) -> headers.remove(name).add(name, value.getBytes()));
            // The offset is committed after this returns; what it throws makes the listener read the record again.
            try { template.send(new ProducerRecord<>(RETRY_TOPIC, null, (byte[]) record.key(), (byte[]) record.value(), headers)).get(); } catch (Exception refused) {
                System.err.println("not delivered: " + NestedExceptionUtils.getMostSpecificCause(refused));
                throw new IllegalStateException(refused);
            }
            done(record);
        }, new FixedBackOff(1_000, 0))); // the sidecar waits: no attempts in the listener
        return factory;
    }

    public static void main(String[] arguments) { new AnnotationConfigApplicationContext(RetryingListener.class).registerShutdownHook(); }
}
