// The scenarios of ../../README.md with segmentio/kafka-go, which has neither idempotence nor transactions.
package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
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
		group(a[0], a[1], number(a[2]))
	case "seek":
		seek(a[0], int64(number(a[1])))
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

func timeout() context.Context {
	ctx, _ := context.WithTimeout(context.Background(), 60*time.Second)
	return ctx
}

func transport() *kafka.Transport { return &kafka.Transport{ClientID: clientID} }
func dialer() *kafka.Dialer       { return &kafka.Dialer{ClientID: clientID, Timeout: 10 * time.Second} }
func client() *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(strings.Split(bootstrap, ",")...), Transport: transport()}
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
	codecs := map[string]kafka.Compression{"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}
	var records []kafka.Record
	for i := 0; i < count; i++ {
		r := kafka.Record{Time: time.UnixMilli(1700000000000 + int64(i)*1000), Headers: []kafka.Header{{Key: "n", Value: []byte(strconv.Itoa(i))}}}
		if i%7 != 3 {
			r.Key = kafka.NewBytes([]byte(fmt.Sprintf("key-%d", i)))
		}
		if v := value(i); v != nil {
			r.Value = kafka.NewBytes(v)
		}
		if i%5 == 2 {
			r.Headers = append(r.Headers, kafka.Header{Key: "null"})
		}
		records = append(records, r)
	}
	answer, err := client().Produce(timeout(), &kafka.ProduceRequest{Topic: topic, Partition: 0, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(records...), Compression: codecs[codec]})
	must(err)
	must(answer.Error)
	for i := range records {
		fmt.Println("offset", answer.BaseOffset+int64(i))
	}
}

func text(b []byte) string {
	if b == nil {
		return "-"
	}
	return "+" + base64.StdEncoding.EncodeToString(b)
}

func consume(topic string, from int64, count int, isolation string) {
	conf := kafka.ReaderConfig{Brokers: strings.Split(bootstrap, ","), Topic: topic, Partition: 0, MaxWait: time.Second, Dialer: dialer()}
	if isolation == "read_committed" {
		conf.IsolationLevel = kafka.ReadCommitted
	}
	r := kafka.NewReader(conf)
	defer r.Close()
	must(r.SetOffset(from))
	for seen := 0; seen < count; seen++ {
		m, err := r.ReadMessage(timeout())
		must(err)
		line := fmt.Sprintf("record %d %d %s %s", m.Offset, m.Time.UnixMilli(), text(m.Key), text(m.Value))
		for _, h := range m.Headers {
			line += " " + h.Key + "=" + text(h.Value)
		}
		fmt.Println(line)
	}
}

func group(topic, name string, count int) {
	var lock sync.Mutex
	read := map[string]bool{}
	owned := [2]map[int]bool{{}, {}}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var wait sync.WaitGroup
	for member := 0; member < 2; member++ {
		g, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{ID: name, Brokers: strings.Split(bootstrap, ","), Topics: []string{topic},
			Dialer: dialer(), StartOffset: kafka.FirstOffset, GroupBalancers: []kafka.GroupBalancer{kafka.RangeGroupBalancer{}}})
		must(err)
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer g.Close()
			for {
				generation, err := g.Next(ctx)
				if errors.Is(err, context.Canceled) || errors.Is(err, kafka.ErrGroupClosed) {
					return
				}
				must(err)
				lock.Lock()
				owned[member] = map[int]bool{}
				for _, part := range generation.Assignments[topic] {
					owned[member][part.ID] = true
				}
				lock.Unlock()
				for _, part := range generation.Assignments[topic] {
					generation.Start(func(inner context.Context) {
						r := kafka.NewReader(kafka.ReaderConfig{Brokers: strings.Split(bootstrap, ","), Topic: topic, Partition: part.ID, MaxWait: 200 * time.Millisecond, Dialer: dialer()})
						defer r.Close()
						must(r.SetOffset(part.Offset))
						for {
							m, err := r.ReadMessage(inner)
							if err != nil {
								return
							}
							lock.Lock()
							read[fmt.Sprintf("%d-%d", m.Partition, m.Offset)] = true
							fmt.Println("read", member, m.Partition, m.Offset)
							lock.Unlock()
							must(generation.CommitOffsets(map[string]map[int]int64{topic: {part.ID: m.Offset + 1}}))
						}
					})
				}
			}
		}()
		time.Sleep(300 * time.Millisecond)
	}
	for {
		lock.Lock()
		settled := len(owned[0]) == 2 && len(owned[1]) == 2 && len(read) >= count
		lock.Unlock()
		if settled {
			break
		}
		must(ctx.Err())
		time.Sleep(50 * time.Millisecond)
	}
	for member := 0; member < 2; member++ {
		fmt.Println("owned", member, owned[member])
	}
	cancel()
	wait.Wait()
}

func seek(topic string, timestamp int64) {
	answer, err := client().ListOffsets(timeout(), &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: {kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0), kafka.TimeOffsetOf(0, time.UnixMilli(timestamp))}}})
	must(err)
	part := answer.Topics[topic][0]
	must(part.Error)
	for offset := range part.Offsets {
		fmt.Println("offset", offset)
	}
	fmt.Println("beginning", part.FirstOffset)
	fmt.Println("end", part.LastOffset)
}

func admin(topic, name string) {
	c := client()
	created, err := c.CreateTopics(timeout(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 2,
		ReplicationFactor: 1, ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "7200000"}}}}})
	must(err)
	must(created.Errors[topic])
	partitions := func() {
		metadata, err := client().Metadata(timeout(), &kafka.MetadataRequest{Topics: []string{topic}})
		must(err)
		fmt.Println("partitions", len(metadata.Topics[0].Partitions))
	}
	retention := func() {
		configs, err := c.DescribeConfigs(timeout(), &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"retention.ms"}}}})
		must(err)
		must(configs.Resources[0].Error)
		fmt.Println("retention", configs.Resources[0].ConfigEntries[0].ConfigValue)
	}
	partitions()
	retention()
	altered, err := c.IncrementalAlterConfigs(timeout(), &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, Configs: []kafka.IncrementalAlterConfigsRequestConfig{{
			Name: "retention.ms", Value: "3600000", ConfigOperation: kafka.ConfigOperationSet}}}}})
	must(err)
	must(altered.Resources[0].Error)
	retention()
	grown, err := c.CreatePartitions(timeout(), &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 3}}})
	must(err)
	must(grown.Errors[topic])
	partitions()
	for i := 0; i < 5; i++ {
		answer, err := c.Produce(timeout(), &kafka.ProduceRequest{Topic: topic, Partition: 0, RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("x"))})})
		must(err)
		must(answer.Error)
	}
	fmt.Println("low", "absent")
	committed, err := c.OffsetCommit(timeout(), &kafka.OffsetCommitRequest{GroupID: name, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{topic: {{Partition: 0, Offset: 4, Metadata: "note"}}}})
	must(err)
	must(committed.Topics[topic][0].Error)
	offsets, err := c.OffsetFetch(timeout(), &kafka.OffsetFetchRequest{GroupID: name, Topics: map[string][]int{topic: {0}}})
	must(err)
	fmt.Println("offset", offsets.Topics[topic][0].CommittedOffset)
	groups, err := c.DescribeGroups(timeout(), &kafka.DescribeGroupsRequest{GroupIDs: []string{name}})
	must(err)
	fmt.Println("state", strings.ToLower(groups.Groups[0].GroupState))
	listed, err := c.ListGroups(timeout(), &kafka.ListGroupsRequest{})
	must(err)
	there := false
	for _, g := range listed.Groups {
		there = there || g.GroupID == name
	}
	fmt.Println("listed", there)
	gone, err := c.DeleteGroups(timeout(), &kafka.DeleteGroupsRequest{GroupIDs: []string{name}})
	must(err)
	must(gone.Errors[name])
	dropped, err := c.DeleteTopics(timeout(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	must(err)
	must(dropped.Errors[topic])
	metadata, err := client().Metadata(timeout(), &kafka.MetadataRequest{})
	must(err)
	there = false
	for _, t := range metadata.Topics {
		there = there || t.Name == topic
	}
	fmt.Println("listed", there)
}
