// A consumer with Confluent.Kafka: what fails goes to the retry topic and comes back when it is due.
// Written from the library's documentation. The tests do not run it: there is no .NET where they run.
using System.Runtime.InteropServices;
using System.Text;
using Confluent.Kafka;

string Name(string variable) => Environment.GetEnvironmentVariable(variable)!;
var (servers, topic, retryTopic, group) = (Name("BOOTSTRAP_SERVERS"), Name("TOPIC"), Name("RETRY_TOPIC"), Name("GROUP"));
var stopping = new CancellationTokenSource();
using var signal = PosixSignalRegistration.Create(PosixSignal.SIGTERM, context => { context.Cancel = true; stopping.Cancel(); });
var reading = new ConsumerConfig
{
    BootstrapServers = servers,
    GroupId = group,
    IsolationLevel = IsolationLevel.ReadCommitted,
    AutoOffsetReset = AutoOffsetReset.Earliest,
    EnableAutoCommit = false,
};
using var producer = new ProducerBuilder<byte[]?, byte[]?>(new ProducerConfig { BootstrapServers = servers, EnableIdempotence = true }).Build();
using var consumer = new ConsumerBuilder<byte[]?, byte[]?>(reading).Build();
var seen = new HashSet<string>(); // timer ids; only a repeat has one that was handled before
consumer.Subscribe(topic);
try
{
    while (true)
    {
        var consumed = consumer.Consume(stopping.Token);
        var headers = OwnHeaders(consumed);
        var timer = Text(headers, "retry-timer-id");
        if ((Text(headers, "retry-group") ?? group) == group && (timer == null || !seen.Contains(timer)))
        {
            try
            {
                Handle(Encoding.UTF8.GetString(consumed.Message.Value ?? []), int.Parse(Text(headers, "retry-attempt") ?? "0"));
            }
            catch (SupplierDown error)
            {
                // Throws when the retry topic refuses: the offset is not committed, and the message is read again.
                await producer.ProduceAsync(retryTopic, Retry(consumed, headers, error));
            }
            if (seen.Count == 10_000) seen.Clear();
            if (timer != null) seen.Add(timer);
        }
        consumer.Commit(consumed);
    }
}
catch (OperationCanceledException) { }
finally { consumer.Close(); }

// Handles an order such as order-7/2, whose supplier is down for the first 2 attempts.
static void Handle(string value, int attempt)
{
    if (attempt < int.Parse(value.Split('/')[1])) throw new SupplierDown();
    Console.WriteLine($"handled {value} attempt {attempt}");
}

static string? Text(Headers headers, string name) =>
    headers.TryGetLastBytes(name, out var value) && value != null ? Encoding.UTF8.GetString(value) : null;

// The headers, without those of retries when they were copied from a message of another topic.
static Headers OwnHeaders(ConsumeResult<byte[]?, byte[]?> consumed)
{
    var came = consumed.Message.Headers ?? new Headers();
    var copied = Text(came, "retry-origin-topic") is { } origin && origin != consumed.Topic;
    var own = new Headers();
    foreach (var header in came) if (!copied || !header.Key.StartsWith("retry-")) own.Add(header.Key, header.GetValueBytes());
    return own;
}

Message<byte[]?, byte[]?> Retry(ConsumeResult<byte[]?, byte[]?> consumed, Headers headers, Exception error)
{
    foreach (var name in new[] { "retry-due-ms", "retry-delay-ms", "retry-replace" }) headers.Remove(name);
    foreach (var (name, value) in new[] { ("retry-origin-topic", consumed.Topic), ("retry-group", group), ("retry-exception", error.GetType().FullName!) })
    { headers.Remove(name); headers.Add(name, Encoding.UTF8.GetBytes(value)); }
    return new Message<byte[]?, byte[]?> { Key = consumed.Message.Key, Value = consumed.Message.Value, Headers = headers };
}

class SupplierDown : Exception;
