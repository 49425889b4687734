// A consumer with franz-go: what fails goes to the retry topic and comes back when it is due.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

// SupplierDown is an error that is worth a retry.
type SupplierDown struct{ error }

// handle handles an order such as order-7/2, whose supplier is down for the first 2 attempts.
func handle(value string, attempt int) error {
	_, failures, _ := strings.Cut(value, "/")
	if down, _ := strconv.Atoi(failures); attempt < down {
		return SupplierDown{fmt.Errorf("no supplier for %s", value)}
	}
	fmt.Printf("handled %s attempt %d\n", value, attempt)
	return nil
}

func main() {
	topic, retryTopic, group := os.Getenv("TOPIC"), os.Getenv("RETRY_TOPIC"), os.Getenv("GROUP")
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("BOOTSTRAP_SERVERS")), kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.BlockRebalanceOnPoll()) // the default is uncommitted
	if err != nil {
		log.Panic(err)
	}
	defer client.CloseAllowingRebalance()
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	seen := map[string]bool{} // timer ids; only a repeat has one that was handled before
	for fetches := client.PollRecords(ctx, 500); ctx.Err() == nil; fetches = client.PollRecords(ctx, 500) {
		var retries []*kgo.Record
		fetches.EachRecord(func(r *kgo.Record) {
			values := map[string]string{"retry-origin-topic": r.Topic, "retry-group": group}
			for _, h := range r.Headers {
				values[h.Key] = string(h.Value)
			}
			if values["retry-origin-topic"] != r.Topic { // copied from a message of another topic: attempts begin at 0
				r.Headers = slices.DeleteFunc(r.Headers, func(h kgo.RecordHeader) bool { return strings.HasPrefix(h.Key, "retry-") })
				values = map[string]string{"retry-group": group}
			}
			timer := values["retry-timer-id"]
			if values["retry-group"] != group || seen[timer] {
				return
			}
			attempt, _ := strconv.Atoi(values["retry-attempt"])
			if err := handle(string(r.Value), attempt); err != nil {
				ours := []string{"retry-origin-topic", "retry-group", "retry-exception", "retry-due-ms", "retry-delay-ms"}
				headers := slices.DeleteFunc(r.Headers, func(h kgo.RecordHeader) bool { return slices.Contains(ours, h.Key) })
				for at, value := range []string{r.Topic, group, fmt.Sprintf("%T", err)} {
					headers = append(headers, kgo.RecordHeader{Key: ours[at], Value: []byte(value)})
				}
				retries = append(retries, &kgo.Record{Topic: retryTopic, Key: r.Key, Value: r.Value, Headers: headers})
			}
			if len(seen) == 10_000 {
				clear(seen)
			}
			seen[timer] = timer != ""
		})
		if err := errors.Join(fetches.Err(), client.ProduceSync(context.Background(), retries...).FirstErr()); err != nil {
			log.Panic(err) // nothing is committed: it is read again
		}
		if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
			log.Panic(err)
		}
		client.AllowRebalance()
	}
}
