// A consumer with KafkaJS: what fails goes to the retry topic and comes back when it is due.
import kafkajs from "kafkajs";
import lz4 from "lz4-napi";

const { BOOTSTRAP_SERVERS, TOPIC, RETRY_TOPIC, GROUP } = process.env;
// The sidecar compresses what it delivers with lz4, which KafkaJS cannot read alone.
kafkajs.CompressionCodecs[kafkajs.CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
});

// An error that is worth a retry.
class SupplierDown extends Error {}

// Handles an order such as order-7/2, whose supplier is down for the first 2 attempts.
async function handle(value, attempt) {
  if (attempt < Number(value.split("/")[1])) throw new SupplierDown(value);
  console.log(`handled ${value} attempt ${attempt}`);
}

// The headers, without those of retries when they were copied from a message of another topic.
function ownHeaders(message, topic) {
  const origin = message.headers["retry-origin-topic"]?.toString() ?? topic;
  const kept = Object.entries(message.headers).filter(([name]) => origin === topic || !name.startsWith("retry-"));
  return Object.fromEntries(kept.map(([name, value]) => [name, value ?? ""])); // KafkaJS cannot send null in a header
}

function retry(message, topic, error) {
  const headers = ownHeaders(message, topic);
  for (const name of ["retry-due-ms", "retry-delay-ms", "retry-replace"]) delete headers[name];
  const ours = { "retry-origin-topic": topic, "retry-group": GROUP, "retry-exception": error.constructor.name };
  return { key: message.key, value: message.value, headers: { ...headers, ...ours } };
}

const kafka = new kafkajs.Kafka({ brokers: BOOTSTRAP_SERVERS.split(","), logLevel: kafkajs.logLevel.ERROR });
const consumer = kafka.consumer({ groupId: GROUP, readUncommitted: false }); // which is the default
const producer = kafka.producer();
const seen = new Set(); // timer ids; only a repeat has one that was handled before

async function eachBatch({ batch, resolveOffset, heartbeat }) {
  const retries = [];
  for (const message of batch.messages) {
    const headers = ownHeaders(message, batch.topic);
    const group = headers["retry-group"]?.toString() ?? GROUP;
    const timer = headers["retry-timer-id"]?.toString();
    if (group !== GROUP || seen.has(timer)) continue;
    try {
      await handle(message.value.toString(), Number(headers["retry-attempt"] ?? 0));
    } catch (error) {
      if (!(error instanceof SupplierDown)) throw error;
      retries.push(retry(message, batch.topic, error));
    }
    if (seen.size === 10_000) seen.clear();
    if (timer) seen.add(timer);
    await heartbeat();
  }
  // Throws when the retry topic refuses: nothing is committed, and it is read again.
  if (retries.length) await producer.send({ topic: RETRY_TOPIC, acks: -1, messages: retries });
  resolveOffset(batch.lastOffset());
  const offset = String(BigInt(batch.lastOffset()) + 1n);
  await consumer.commitOffsets([{ topic: batch.topic, partition: batch.partition, offset }]);
}

async function end(status) {
  await Promise.allSettled([consumer.disconnect(), producer.disconnect()]);
  process.exit(status);
}

consumer.on(consumer.events.CRASH, ({ payload }) => console.error(payload.error) ?? end(1));
process.on("SIGTERM", () => end(0));
await Promise.all([consumer.connect(), producer.connect()]);
await consumer.subscribe({ topic: TOPIC, fromBeginning: true });
await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch });
