// The scenarios of ../README.md with kafkajs. It has gzip alone; the other codecs are plug-ins of third parties.
'use strict'
const { Kafka, CompressionTypes, logLevel, PartitionAssigners } = require('kafkajs')

const [bootstrap, clientId, scenario, ...args] = process.argv.slice(2)
const { FOREIGN_MECHANISM, FOREIGN_USER, FOREIGN_PASSWORD, FOREIGN_TOKEN, FOREIGN_CA, FOREIGN_CERTIFICATE } = process.env
const read = file => (file ? require('fs').readFileSync(file, 'utf-8') : undefined)
const secured = (FOREIGN_MECHANISM || FOREIGN_CA) && {
  sasl: FOREIGN_MECHANISM && {
    mechanism: FOREIGN_MECHANISM.toLowerCase(),
    username: FOREIGN_USER,
    password: FOREIGN_PASSWORD,
    oauthBearerProvider: async () => ({ value: read(FOREIGN_TOKEN) })
  },
  ssl: FOREIGN_CA ? { ca: [read(FOREIGN_CA)], cert: read(FOREIGN_CERTIFICATE), key: read(FOREIGN_CERTIFICATE) } : undefined,
  retry: { retries: 1 }
}
const kafka = new Kafka({ clientId, brokers: bootstrap.split(','), logLevel: logLevel.ERROR, ...secured })
const text = bytes => (bytes === null || bytes === undefined ? '-' : '+' + bytes.toString('base64'))

function value(i) {
  if (i % 11 === 5) return null
  return i === 1 ? 'x'.repeat(200000) : `value-${i}-ü`
}

async function produce(topic, codec, count) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const messages = []
  for (let i = 0; i < Number(count); i++) {
    const headers = { n: String(i) }
    messages.push({ partition: 0, key: i % 7 === 3 ? null : `key-${i}`, value: value(i), headers, timestamp: String(1700000000000 + i * 1000) })
  }
  const compression = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }[codec]
  const [answer] = await producer.send({ topic, acks: -1, compression, messages })
  for (let i = 0; i < messages.length; i++) console.log(`offset ${Number(answer.baseOffset) + i}`)
  await producer.disconnect()
}

async function consume(topic, from, count, isolation) {
  const consumer = kafka.consumer({ groupId: `${clientId}-${topic}`, readUncommitted: isolation !== 'read_committed' })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  let seen = 0
  await new Promise(resolve => {
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ message }) => {
        if (Number(message.offset) < Number(from) || seen >= Number(count)) return
        let line = `record ${message.offset} ${message.timestamp} ${text(message.key)} ${text(message.value)}`
        for (const [name, header] of Object.entries(message.headers ?? {})) line += ` ${name}=${text(header)}`
        console.log(line)
        if (++seen === Number(count)) resolve()
      }
    })
    consumer.seek({ topic, partition: 0, offset: from })
  })
  await consumer.disconnect()
}

async function group(topic, groupId, count) {
  const owned = [[], []]
  const read = new Set()
  const members = []
  for (let member = 0; member < 2; member++) {
    const consumer = kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 300, maxWaitTimeInMs: 200, partitionAssigners: [PartitionAssigners.roundRobin] })
    consumer.on(consumer.events.GROUP_JOIN, e => { owned[member] = e.payload.memberAssignment[topic] ?? [] })
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({
      eachMessage: async ({ partition, message }) => {
        read.add(`${partition}-${message.offset}`)
        console.log(`read ${member} ${partition} ${message.offset}`)
      }
    })
    members.push(consumer)
  }
  const deadline = Date.now() + 60000
  while (!(owned[0].length === 2 && owned[1].length === 2 && read.size >= Number(count))) {
    if (Date.now() > deadline) throw new Error(`not settled: ${JSON.stringify(owned)} ${read.size}`)
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  owned.forEach((partitions, member) => console.log(`owned ${member} ${JSON.stringify(partitions)}`))
  await Promise.all(members.map(consumer => consumer.disconnect()))
}

async function withAdmin(work) {
  const admin = kafka.admin()
  await admin.connect()
  await work(admin)
  await admin.disconnect()
}

async function seek(topic, timestamp) {
  await withAdmin(async admin => {
    const [at] = await admin.fetchTopicOffsetsByTimestamp(topic, Number(timestamp))
    console.log(`offset ${at.offset}`)
    const [range] = await admin.fetchTopicOffsets(topic)
    console.log(`beginning ${range.low}`)
    console.log(`end ${range.high}`)
  })
}

async function transact(input, output, groupId, transactionalId, count) {
  const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const aborted = await producer.transaction()
  await aborted.send({ topic: output, messages: [{ partition: 0, key: 'aborted', value: 'aborted' }] })
  await aborted.abort()
  const consumer = kafka.consumer({ groupId })
  await consumer.connect()
  await consumer.subscribe({ topic: input, fromBeginning: true })
  let seen = 0
  await new Promise((resolve, reject) => {
    consumer.run({
      autoCommit: false,
      eachBatch: async ({ batch, resolveOffset }) => {
        try {
          const transaction = await producer.transaction()
          await transaction.send({ topic: output, messages: batch.messages.map(m => ({ partition: 0, key: m.key, value: m.value })) })
          await transaction.sendOffsets({
            consumerGroupId: groupId,
            topics: [{ topic: input, partitions: [{ partition: 0, offset: String(Number(batch.lastOffset()) + 1) }] }]
          })
          await transaction.commit()
          resolveOffset(batch.lastOffset())
          seen += batch.messages.length
          if (seen >= Number(count)) resolve()
        } catch (error) {
          reject(error)
        }
      }
    })
  })
  await consumer.disconnect()
  await producer.disconnect()
  await withAdmin(async admin => {
    const [offsets] = await admin.fetchOffsets({ groupId, topics: [input] })
    console.log(`committed ${offsets.partitions[0].offset}`)
  })
}

async function administrate(topic, groupId) {
  const { ConfigResourceTypes } = require('kafkajs')
  await withAdmin(async admin => {
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    const partitions = async () => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
      console.log(`partitions ${topics[0].partitions.length}`)
    }
    const retention = async () => {
      const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] })
      console.log(`retention ${resources[0].configEntries[0].configValue}`)
    }
    await admin.createTopics({ topics: [{ topic, numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '7200000' }] }] })
    await partitions()
    await retention()
    await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '3600000' }] }] })
    await retention()
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    await partitions()
    const producer = kafka.producer()
    await producer.connect()
    for (let i = 0; i < 5; i++) await producer.send({ topic, messages: [{ partition: 0, value: 'x' }] })
    await producer.disconnect()
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '3' }] })
    const range = (await admin.fetchTopicOffsets(topic)).find(entry => entry.partition === 0)
    console.log(`low ${range.low}`)
    await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '4' }] })
    const [offsets] = await admin.fetchOffsets({ groupId, topics: [topic] })
    console.log(`offset ${offsets.partitions.find(entry => entry.partition === 0).offset}`)
    const { groups } = await admin.describeGroups([groupId])
    console.log(`state ${groups[0].state.toLowerCase()}`)
    console.log(`listed ${(await admin.listGroups()).groups.some(entry => entry.groupId === groupId)}`)
    await admin.deleteGroups([groupId])
    await admin.deleteTopics({ topics: [topic] })
    console.log(`listed ${(await admin.listTopics()).includes(topic)}`)
  })
}

const scenarios = { produce, consume, group, seek, transact, admin: administrate }
scenarios[scenario](...args).then(
  () => process.stdout.write('done\n', () => process.exit(0)), // not before a pipe took it all
  error => { console.error(error); process.exit(1) }
)
