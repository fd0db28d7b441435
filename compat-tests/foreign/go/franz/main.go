// The scenarios of ../../README.md with franz-go.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var bootstrap, clientID string

func main() {
	bootstrap, clientID = os.Args[1], os.Args[2]
	a := os.Args[4:]
	switch os.Args[3] {
	case "produce":
		produce(a[0], a[1], number(a[2]))
	case "consume":
		consume(a[0], int64(number(a[1])), number(a[2]), a[3])
	case "group":
		group(a[0], a[1], number(a[2]), a[3])
	case "seek":
		seek(a[0], int64(number(a[1])))
	case "transact":
		transact(a[0], a[1], a[2], a[3], number(a[4]))
	case "admin":
		admin(a[0], a[1])
	default:
		panic(os.Args[3])
	}
	fmt.Println("done")
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	must(err)
	return n
}

func secured() []kgo.Opt {
	name, password := os.Getenv("FOREIGN_USER"), os.Getenv("FOREIGN_PASSWORD")
	var how sasl.Mechanism
	switch os.Getenv("FOREIGN_MECHANISM") {
	case "PLAIN":
		how = plain.Auth{User: name, Pass: password}.AsMechanism()
	case "SCRAM-SHA-256":
		how = scram.Auth{User: name, Pass: password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		how = scram.Auth{User: name, Pass: password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		token, err := os.ReadFile(os.Getenv("FOREIGN_TOKEN"))
		must(err)
		how = oauth.Auth{Token: string(token)}.AsMechanism()
	}
	var opts []kgo.Opt
	if how != nil {
		opts = append(opts, kgo.SASL(how))
	}
	if file := os.Getenv("FOREIGN_CA"); file != "" {
		pem, err := os.ReadFile(file)
		must(err)
		config := &tls.Config{RootCAs: x509.NewCertPool()}
		config.RootCAs.AppendCertsFromPEM(pem)
		if own := os.Getenv("FOREIGN_CERTIFICATE"); own != "" {
			pair, err := tls.LoadX509KeyPair(own, own)
			must(err)
			config.Certificates = []tls.Certificate{pair}
		}
		opts = append(opts, kgo.DialTLSConfig(config))
	}
	return opts
}

func client(opts ...kgo.Opt) *kgo.Client {
	opts = append(secured(), opts...)
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ClientID(clientID)}, opts...)...)
	must(err)
	return c
}

func timeout() context.Context {
	ctx, _ := context.WithTimeout(context.Background(), 60*time.Second)
	return ctx
}

func value(i int) []byte {
	if i%11 == 5 {
		return nil
	}
	if i == 1 {
		return []byte(strings.Repeat("x", 200000))
	}
	return []byte(fmt.Sprintf("value-%d-ü", i))
}

func produce(topic, codec string, count int) {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	c := client(kgo.ProducerBatchCompression(codecs[codec]), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer c.Close()
	records := make([]*kgo.Record, count)
	for i := range records {
		r := &kgo.Record{Topic: topic, Partition: 0, Value: value(i), Timestamp: time.UnixMilli(1700000000000 + int64(i)*1000)}
		if i%7 != 3 {
			r.Key = []byte(fmt.Sprintf("key-%d", i))
		}
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "n", Value: []byte(strconv.Itoa(i))})
		if i%5 == 2 {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "null"})
		}
		records[i] = r
	}
	for _, result := range c.ProduceSync(timeout(), records...) {
		must(result.Err)
	}
	for _, r := range records {
		fmt.Println("offset", r.Offset)
	}
}

func text(b []byte) string {
	if b == nil {
		return "-"
	}
	return "+" + base64.StdEncoding.EncodeToString(b)
}

func consume(topic string, from int64, count int, isolation string) {
	opts := []kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(from)}})}
	if isolation == "read_committed" {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	c := client(opts...)
	defer c.Close()
	for seen := 0; seen < count; {
		fetches := c.PollFetches(timeout())
		must(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			seen++
			line := fmt.Sprintf("record %d %d %s %s", r.Offset, r.Timestamp.UnixMilli(), text(r.Key), text(r.Value))
			for _, h := range r.Headers {
				line += " " + h.Key + "=" + text(h.Value)
			}
			fmt.Println(line)
		})
	}
}

func group(topic, name string, count int, protocol string) {
	balancer := kgo.RangeBalancer()
	if protocol == "cooperative" {
		balancer = kgo.CooperativeStickyBalancer()
	}
	var lock sync.Mutex
	owned := [2]map[int32]bool{{}, {}}
	read := map[string]bool{}
	settled := func() bool {
		return len(owned[0]) == 2 && len(owned[1]) == 2 && len(read) >= count
	}
	finished := false
	var wait sync.WaitGroup
	for member := 0; member < 2; member++ {
		change := func(gained bool) func(context.Context, *kgo.Client, map[string][]int32) {
			return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
				lock.Lock()
				defer lock.Unlock()
				if finished {
					return
				}
				for _, p := range parts[topic] {
					if gained {
						owned[member][p] = true
					} else {
						delete(owned[member], p)
					}
				}
			}
		}
		wait.Add(1)
		go func() {
			defer wait.Done()
			ctx := context.Background()
			if protocol == "consumer" {
				ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
			}
			c := client(kgo.WithContext(ctx), kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
				kgo.Balancers(balancer), kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)),
				kgo.OnPartitionsLost(change(false)))
			defer c.Close()
			deadline := time.Now().Add(60 * time.Second)
			for {
				short, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
				fetches := c.PollFetches(short)
				cancel()
				lock.Lock()
				fetches.EachRecord(func(r *kgo.Record) {
					read[fmt.Sprintf("%d-%d", r.Partition, r.Offset)] = true
					fmt.Println("read", member, r.Partition, r.Offset)
				})
				if settled() {
					finished = true
				}
				stop := finished
				lock.Unlock()
				if stop {
					must(c.CommitUncommittedOffsets(timeout()))
					return
				}
				if time.Now().After(deadline) {
					panic(fmt.Sprint("not settled: ", owned, len(read)))
				}
			}
		}()
		time.Sleep(300 * time.Millisecond)
	}
	wait.Wait()
	for member := 0; member < 2; member++ {
		fmt.Println("owned", member, owned[member])
	}
}

func seek(topic string, timestamp int64) {
	c := client()
	defer c.Close()
	a := kadm.NewClient(c)
	at, err := a.ListOffsetsAfterMilli(timeout(), timestamp, topic)
	must(err)
	found, _ := at.Lookup(topic, 0)
	fmt.Println("offset", found.Offset)
	start, err := a.ListStartOffsets(timeout(), topic)
	must(err)
	found, _ = start.Lookup(topic, 0)
	fmt.Println("beginning", found.Offset)
	end, err := a.ListEndOffsets(timeout(), topic)
	must(err)
	found, _ = end.Lookup(topic, 0)
	fmt.Println("end", found.Offset)
}

func transact(in, out, name, id string, count int) {
	s, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ClientID(clientID), kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(in), kgo.TransactionalID(id), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(err)
	defer s.Close()
	must(s.Begin())
	must(s.ProduceSync(timeout(), &kgo.Record{Topic: out, Key: []byte("aborted"), Value: []byte("aborted")}).FirstErr())
	committed, err := s.End(timeout(), kgo.TryAbort)
	must(err)
	if committed {
		panic("an abort committed")
	}
	for seen := 0; seen < count; {
		fetches := s.PollFetches(timeout())
		must(fetches.Err())
		must(s.Begin())
		fetches.EachRecord(func(r *kgo.Record) {
			seen++
			s.Produce(context.Background(), &kgo.Record{Topic: out, Key: r.Key, Value: r.Value}, nil)
		})
		committed, err := s.End(timeout(), kgo.TryCommit)
		must(err)
		if !committed {
			panic("a commit aborted")
		}
	}
	offsets, err := kadm.NewClient(s.Client()).FetchOffsets(timeout(), name)
	must(err)
	at, _ := offsets.Lookup(in, 0)
	fmt.Println("committed", at.At)
}

func admin(topic, name string) {
	c := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer c.Close()
	a := kadm.NewClient(c)
	two := "7200000"
	_, err := a.CreateTopic(timeout(), 2, 1, map[string]*string{"retention.ms": &two}, topic)
	must(err)
	partitions := func() {
		topics, err := a.ListTopics(timeout(), topic)
		must(err)
		fmt.Println("partitions", len(topics[topic].Partitions))
	}
	retention := func() {
		configs, err := a.DescribeTopicConfigs(timeout(), topic)
		must(err)
		for _, config := range configs[0].Configs {
			if config.Key == "retention.ms" {
				fmt.Println("retention", config.MaybeValue())
			}
		}
	}
	partitions()
	retention()
	one := "3600000"
	altered, err := a.AlterTopicConfigs(timeout(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &one}}, topic)
	must(err)
	must(altered[0].Err)
	retention()
	grown, err := a.UpdatePartitions(timeout(), 3, topic)
	must(err)
	must(grown.Error())
	c.ForceMetadataRefresh()
	partitions()
	for i := 0; i < 5; i++ {
		must(c.ProduceSync(timeout(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
	}
	low, err := a.DeleteRecords(timeout(), kadm.Offsets{topic: {0: kadm.Offset{Topic: topic, Partition: 0, At: 3}}})
	must(err)
	found, _ := low.Lookup(topic, 0)
	must(found.Err)
	fmt.Println("low", found.LowWatermark)
	must(a.CommitAllOffsets(timeout(), name, kadm.Offsets{topic: {0: kadm.Offset{Topic: topic, Partition: 0, At: 4, LeaderEpoch: -1, Metadata: "note"}}}))
	offsets, err := a.FetchOffsets(timeout(), name)
	must(err)
	at, _ := offsets.Lookup(topic, 0)
	fmt.Println("offset", at.At)
	groups, err := a.DescribeGroups(timeout(), name)
	must(err)
	fmt.Println("state", strings.ToLower(groups[name].State))
	listed, err := a.ListGroups(timeout())
	must(err)
	_, there := listed[name]
	fmt.Println("listed", there)
	gone, err := a.DeleteGroups(timeout(), name)
	must(err)
	must(gone.Error())
	dropped, err := a.DeleteTopics(timeout(), topic)
	must(err)
	must(dropped.Error())
	topics, err := a.ListTopics(timeout())
	must(err)
	fmt.Println("listed", topics.Has(topic) && topics[topic].Err != kerr.UnknownTopicOrPartition)
}
