// The scenarios of ../../README.md with IBM/sarama.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
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

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.ClientID = clientID
	c.Version = sarama.MaxVersion
	c.Producer.Return.Successes = true
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	secure(c)
	return c
}

// FOREIGN_MECHANISM, FOREIGN_USER, FOREIGN_PASSWORD or FOREIGN_TOKEN set the login; FOREIGN_CA is the trusted authority of
// TLS, FOREIGN_CERTIFICATE the client's certificate.
func secure(c *sarama.Config) {
	if mechanism := os.Getenv("FOREIGN_MECHANISM"); mechanism != "" {
		c.Net.SASL.Enable = true
		c.Net.SASL.Mechanism = sarama.SASLMechanism(mechanism)
		c.Net.SASL.User, c.Net.SASL.Password = os.Getenv("FOREIGN_USER"), os.Getenv("FOREIGN_PASSWORD")
		var hash scram.HashGeneratorFcn = sha256.New
		if mechanism == sarama.SASLTypeSCRAMSHA512 {
			hash = sha512.New
		}
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
		c.Net.SASL.TokenProvider = tokenFile(os.Getenv("FOREIGN_TOKEN"))
	}
	if file := os.Getenv("FOREIGN_CA"); file != "" {
		pem, err := os.ReadFile(file)
		must(err)
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(pem)
		c.Net.TLS.Enable = true
		c.Net.TLS.Config = &tls.Config{RootCAs: trusted}
		if own := os.Getenv("FOREIGN_CERTIFICATE"); own != "" {
			pair, err := tls.LoadX509KeyPair(own, own)
			must(err)
			c.Net.TLS.Config.Certificates = []tls.Certificate{pair}
		}
	}
}

type tokenFile string

func (file tokenFile) Token() (*sarama.AccessToken, error) {
	token, err := os.ReadFile(string(file))
	return &sarama.AccessToken{Token: string(token)}, err
}

// scramClient is the SCRAM client that sarama does not have: xdg-go's, as in sarama's own examples.
type scramClient struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (x *scramClient) Begin(user, password, authorization string) error {
	client, err := x.hash.NewClient(user, password, authorization)
	if err == nil {
		x.conversation = client.NewConversation()
	}
	return err
}

func (x *scramClient) Step(challenge string) (string, error) { return x.conversation.Step(challenge) }

func (x *scramClient) Done() bool { return x.conversation.Done() }

func value(i int) sarama.Encoder {
	if i%11 == 5 {
		return nil
	}
	if i == 1 {
		return sarama.StringEncoder(strings.Repeat("x", 200000))
	}
	return sarama.StringEncoder(fmt.Sprintf("value-%d-ü", i))
}

func produce(topic, codec string, count int) {
	c := config()
	must(c.Producer.Compression.UnmarshalText([]byte(codec)))
	c.Producer.Idempotent = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Net.MaxOpenRequests = 1
	p, err := sarama.NewSyncProducer(strings.Split(bootstrap, ","), c)
	must(err)
	defer p.Close()
	var messages []*sarama.ProducerMessage
	for i := 0; i < count; i++ {
		m := &sarama.ProducerMessage{Topic: topic, Partition: 0, Value: value(i), Timestamp: time.UnixMilli(1700000000000 + int64(i)*1000)}
		if i%7 != 3 {
			m.Key = sarama.StringEncoder(fmt.Sprintf("key-%d", i))
		}
		m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte("n"), Value: []byte(strconv.Itoa(i))})
		if i%5 == 2 {
			m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte("null")})
		}
		messages = append(messages, m)
	}
	must(p.SendMessages(messages))
	for _, m := range messages {
		fmt.Println("offset", m.Offset)
	}
}

func text(b []byte) string {
	if b == nil {
		return "-"
	}
	return "+" + base64.StdEncoding.EncodeToString(b)
}

func consume(topic string, from int64, count int, isolation string) {
	conf := config()
	if isolation == "read_committed" {
		conf.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	c, err := sarama.NewConsumer(strings.Split(bootstrap, ","), conf)
	must(err)
	defer c.Close()
	p, err := c.ConsumePartition(topic, 0, from)
	must(err)
	defer p.Close()
	for seen := 0; seen < count; seen++ {
		m := <-p.Messages()
		line := fmt.Sprintf("record %d %d %s %s", m.Offset, m.Timestamp.UnixMilli(), text(m.Key), text(m.Value))
		for _, h := range m.Headers {
			line += " " + string(h.Key) + "=" + text(h.Value)
		}
		fmt.Println(line)
	}
}

type member struct {
	number int
	state  *state
}

type state struct {
	sync.Mutex
	owned [2][]int32
	read  map[string]bool
	done  chan struct{}
	once  sync.Once
	count int
}

func (s *state) look() {
	if len(s.owned[0]) == 2 && len(s.owned[1]) == 2 && len(s.read) >= s.count {
		s.once.Do(func() { close(s.done) })
	}
}

func (m member) Setup(session sarama.ConsumerGroupSession) error {
	m.state.Lock()
	defer m.state.Unlock()
	for _, parts := range session.Claims() {
		m.state.owned[m.number] = parts
	}
	m.state.look()
	return nil
}

func (m member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.state.Lock()
			m.state.read[fmt.Sprintf("%d-%d", message.Partition, message.Offset)] = true
			fmt.Println("read", m.number, message.Partition, message.Offset)
			m.state.look()
			m.state.Unlock()
			session.MarkMessage(message, "")
		case <-m.state.done:
			session.Commit()
			return nil
		case <-session.Context().Done():
			session.Commit()
			return nil
		}
	}
}

func group(topic, name string, count int) {
	s := &state{read: map[string]bool{}, done: make(chan struct{}), count: count}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var wait sync.WaitGroup
	for i := 0; i < 2; i++ {
		conf := config()
		conf.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
		g, err := sarama.NewConsumerGroup(strings.Split(bootstrap, ","), name, conf)
		must(err)
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer g.Close()
			for {
				must(g.Consume(ctx, []string{topic}, member{i, s}))
				select {
				case <-s.done:
					return
				default:
				}
				must(ctx.Err())
			}
		}()
		time.Sleep(300 * time.Millisecond)
	}
	wait.Wait()
	for i := 0; i < 2; i++ {
		fmt.Println("owned", i, s.owned[i])
	}
}

func seek(topic string, timestamp int64) {
	c, err := sarama.NewClient(strings.Split(bootstrap, ","), config())
	must(err)
	defer c.Close()
	for _, what := range []struct {
		name string
		time int64
	}{{"offset", timestamp}, {"beginning", sarama.OffsetOldest}, {"end", sarama.OffsetNewest}} {
		offset, err := c.GetOffset(topic, 0, what.time)
		must(err)
		fmt.Println(what.name, offset)
	}
}

func transact(in, out, name, id string, count int) {
	conf := config()
	conf.Producer.Idempotent = true
	conf.Producer.RequiredAcks = sarama.WaitForAll
	conf.Net.MaxOpenRequests = 1
	conf.Producer.Transaction.ID = id
	conf.Consumer.IsolationLevel = sarama.ReadCommitted
	p, err := sarama.NewSyncProducer(strings.Split(bootstrap, ","), conf)
	must(err)
	defer p.Close()
	must(p.BeginTxn())
	_, _, err = p.SendMessage(&sarama.ProducerMessage{Topic: out, Key: sarama.StringEncoder("aborted"), Value: sarama.StringEncoder("aborted")})
	must(err)
	must(p.AbortTxn())
	c, err := sarama.NewConsumer(strings.Split(bootstrap, ","), conf)
	must(err)
	defer c.Close()
	source, err := c.ConsumePartition(in, 0, sarama.OffsetOldest)
	must(err)
	defer source.Close()
	for seen := 0; seen < count; {
		must(p.BeginTxn())
		var last *sarama.ConsumerMessage
		for n := 0; n < 10 && seen < count; n++ {
			last = <-source.Messages()
			seen++
			_, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: out, Key: encoder(last.Key), Value: encoder(last.Value)})
			must(err)
		}
		must(p.AddMessageToTxn(last, name, nil))
		must(p.CommitTxn())
	}
	a, err := sarama.NewClusterAdmin(strings.Split(bootstrap, ","), conf)
	must(err)
	defer a.Close()
	offsets, err := a.ListConsumerGroupOffsets(name, map[string][]int32{in: {0}})
	must(err)
	fmt.Println("committed", offsets.GetBlock(in, 0).Offset)
}

func encoder(b []byte) sarama.Encoder {
	if b == nil {
		return nil
	}
	return sarama.ByteEncoder(b)
}

func admin(topic, name string) {
	conf := config()
	c, err := sarama.NewClient(strings.Split(bootstrap, ","), conf)
	must(err)
	defer c.Close()
	a, err := sarama.NewClusterAdminFromClient(c)
	must(err)
	two, one := "7200000", "3600000"
	must(a.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &two}}, false))
	partitions := func() {
		topics, err := a.DescribeTopics([]string{topic})
		must(err)
		fmt.Println("partitions", len(topics[0].Partitions))
	}
	retention := func() {
		entries, err := a.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}})
		must(err)
		for _, entry := range entries {
			if entry.Name == "retention.ms" {
				fmt.Println("retention", entry.Value)
			}
		}
	}
	partitions()
	retention()
	must(a.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &one}}, false))
	retention()
	must(a.CreatePartitions(topic, 3, nil, false))
	partitions()
	p, err := sarama.NewSyncProducer(strings.Split(bootstrap, ","), conf)
	must(err)
	defer p.Close()
	for i := 0; i < 5; i++ {
		_, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: topic, Partition: 0, Value: sarama.StringEncoder("x")})
		must(err)
	}
	must(a.DeleteRecords(topic, map[int32]int64{0: 3}))
	low, err := c.GetOffset(topic, 0, sarama.OffsetOldest)
	must(err)
	fmt.Println("low", low)
	m, err := sarama.NewOffsetManagerFromClient(name, c)
	must(err)
	part, err := m.ManagePartition(topic, 0)
	must(err)
	part.MarkOffset(4, "note")
	part.AsyncClose()
	m.Commit()
	must(m.Close())
	offsets, err := a.ListConsumerGroupOffsets(name, map[string][]int32{topic: {0}})
	must(err)
	fmt.Println("offset", offsets.GetBlock(topic, 0).Offset)
	groups, err := a.DescribeConsumerGroups([]string{name})
	must(err)
	fmt.Println("state", strings.ToLower(groups[0].State))
	listed, err := a.ListConsumerGroups()
	must(err)
	_, there := listed[name]
	fmt.Println("listed", there)
	must(a.DeleteConsumerGroup(name))
	must(a.DeleteTopic(topic))
	topics, err := a.ListTopics()
	must(err)
	_, there = topics[topic]
	fmt.Println("listed", there)
}
