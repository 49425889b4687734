import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafkaRetryTopic;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.retrytopic.RetryTopicConfiguration;
import org.springframework.kafka.retrytopic.RetryTopicConfigurationBuilder;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;
import org.springframework.util.backoff.FixedBackOff;

/** Listeners of Spring Kafka that fail: one with a retry topic, one with a dead-letter recoverer. Runs until killed. */
public class Forward {
    static final String BROKERS = System.getProperty("brokers");

    @Configuration
    @EnableKafkaRetryTopic
    static class Config {
        @Bean
        KafkaTemplate<byte[], byte[]> defaultRetryTopicKafkaTemplate() {
            return new KafkaTemplate<>(new DefaultKafkaProducerFactory<>(Map.of(
                "bootstrap.servers", BROKERS,
                "key.serializer", ByteArraySerializer.class,
                "value.serializer", ByteArraySerializer.class)));
        }

        @Bean
        ConcurrentKafkaListenerContainerFactory<byte[], byte[]> kafkaListenerContainerFactory() {
            return factory();
        }

        @Bean
        ConcurrentKafkaListenerContainerFactory<byte[], byte[]> recovering(KafkaTemplate<byte[], byte[]> template) {
            var factory = factory();
            var toRetry = new DeadLetterPublishingRecoverer(
                template, (record, error) -> new TopicPartition(System.getProperty("retry"), -1));
            factory.setCommonErrorHandler(new DefaultErrorHandler(toRetry, new FixedBackOff(0, 0)));
            return factory;
        }

        @Bean
        ConcurrentKafkaListenerContainerFactory<byte[], byte[]> filtering() {
            var factory = factory();
            factory.setRecordFilterStrategy(record -> {
                Header group = record.headers().lastHeader("retry-group");
                boolean skipped = group != null && !"spring-other".equals(new String(group.value(), UTF_8));
                if (skipped) System.out.println("other skipped");
                return skipped;
            });
            return factory;
        }

        @Bean
        ThreadPoolTaskScheduler scheduler() {
            return new ThreadPoolTaskScheduler();
        }

        @Bean
        RetryTopicConfiguration retryTopics(KafkaTemplate<byte[], byte[]> template) {
            return RetryTopicConfigurationBuilder.newInstance()
                .fixedBackOff(Long.getLong("backoff"))
                .maxAttempts(5)
                .useSingleTopicForSameIntervals()
                .doNotAutoCreateRetryTopics()
                .includeTopic(System.getProperty("forwarded"))
                .create(template);
        }

        @Bean
        Listeners listeners() {
            return new Listeners();
        }

        private static ConcurrentKafkaListenerContainerFactory<byte[], byte[]> factory() {
            var factory = new ConcurrentKafkaListenerContainerFactory<byte[], byte[]>();
            factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(Map.of(
                "bootstrap.servers", BROKERS,
                "key.deserializer", ByteArrayDeserializer.class,
                "value.deserializer", ByteArrayDeserializer.class,
                "isolation.level", "read_committed",
                "auto.offset.reset", "earliest")));
            return factory;
        }
    }

    static class Listeners {
        @KafkaListener(topics = "#{systemProperties['forwarded']}", groupId = "spring-forwarding")
        void forwarded(ConsumerRecord<byte[], byte[]> record) {
            throw new IllegalStateException("busy");
        }

        @KafkaListener(
            topics = "#{systemProperties['published']}", groupId = "spring-publishing", containerFactory = "recovering")
        void published(ConsumerRecord<byte[], byte[]> record) {
            throw new IllegalStateException("busy");
        }

        @KafkaListener(
            topics = "#{systemProperties['published']}", groupId = "spring-other", containerFactory = "filtering")
        void other(ConsumerRecord<byte[], byte[]> record) {
            System.out.println("other took");
        }
    }

    public static void main(String[] args) {
        new AnnotationConfigApplicationContext(Config.class).registerShutdownHook();
    }
}
