// The scenarios of ../README.md with @platformatic/kafka.
'use strict'
const { Admin, Consumer, Producer } = require('@platformatic/kafka')

const [bootstrap, clientId, scenario, ...args] = process.argv.slice(2)
const { FOREIGN_MECHANISM, FOREIGN_USER, FOREIGN_PASSWORD, FOREIGN_TOKEN, FOREIGN_CA, FOREIGN_CERTIFICATE } = process.env
const read = file => (file ? require('fs').readFileSync(file, 'utf-8') : undefined)
const login = FOREIGN_TOKEN ? { token: read(FOREIGN_TOKEN) } : { username: FOREIGN_USER, password: FOREIGN_PASSWORD }
const secured = (FOREIGN_MECHANISM || FOREIGN_CA) && {
  sasl: FOREIGN_MECHANISM && { mechanism: FOREIGN_MECHANISM, ...login },
  tls: FOREIGN_CA ? { ca: [read(FOREIGN_CA)], cert: read(FOREIGN_CERTIFICATE), key: read(FOREIGN_CERTIFICATE) } : undefined,
  retries: 1
}
const base = { clientId, bootstrapBrokers: bootstrap.split(','), ...secured }
const text = bytes => (bytes === null || bytes === undefined ? '-' : '+' + bytes.toString('base64'))
const bytes = value => (value === null ? null : Buffer.from(value))

function value(i) {
  if (i % 11 === 5) return null
  return i === 1 ? 'x'.repeat(200000) : `value-${i}-ü`
}

async function produce(topic, codec, count) {
  const producer = new Producer({ ...base, idempotent: true })
  const messages = []
  for (let i = 0; i < Number(count); i++) {
    const headers = new Map([[bytes('n'), bytes(String(i))]])
    const key = i % 7 === 3 ? undefined : bytes(`key-${i}`)
    messages.push({ topic, partition: 0, key, value: bytes(value(i)) ?? undefined, headers, timestamp: BigInt(1700000000000 + i * 1000) })
  }
  const { offsets } = await producer.send({ messages, acks: -1, compression: codec })
  for (let i = 0; i < messages.length; i++) console.log(`offset ${Number(offsets[0].offset) + i}`)
  await producer.close()
}

async function consume(topic, from, count, isolation) {
  const consumer = new Consumer({ ...base, groupId: `${clientId}-${topic}`, isolationLevel: isolation === 'read_committed' ? 1 : 0, maxWaitTime: 200 })
  const stream = await consumer.consume({ topics: [topic], mode: 'manual', autocommit: false, offsets: [{ topic, partition: 0, offset: BigInt(from) }] })
  let seen = 0
  for await (const message of stream) {
    let line = `record ${message.offset} ${message.timestamp} ${text(message.key)} ${text(message.value)}`
    for (const [name, header] of message.headers) line += ` ${name}=${text(header)}`
    console.log(line)
    if (++seen === Number(count)) break
  }
  await consumer.close(true)
}

async function group(topic, groupId, count, protocol) {
  const owned = [[], []]
  const read = new Set()
  const members = []
  let ends = false // a fetch that is under way when its client is closed is an error of its stream
  for (let member = 0; member < 2; member++) {
    const timers = protocol === 'consumer' ? { groupProtocol: 'consumer' } : { sessionTimeout: 6000, rebalanceTimeout: 6000, heartbeatInterval: 300 }
    const consumer = new Consumer({ ...base, groupId, maxWaitTime: 200, ...timers })
    const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: 100 })
    stream.on('data', message => {
      read.add(`${message.partition}-${message.offset}`)
      console.log(`read ${member} ${message.partition} ${message.offset}`)
    })
    stream.on('error', error => { if (!ends) { console.error(error); process.exit(1) } })
    members.push(consumer)
  }
  const deadline = Date.now() + 60000
  for (;;) {
    members.forEach((consumer, member) => { owned[member] = (consumer.assignments ?? []).flatMap(entry => entry.partitions) })
    if (owned[0].length === 2 && owned[1].length === 2 && read.size >= Number(count)) break
    if (Date.now() > deadline) throw new Error(`not settled: ${JSON.stringify(owned)} ${read.size}`)
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  await new Promise(resolve => setTimeout(resolve, 400)) // one more automatic commit
  owned.forEach((partitions, member) => console.log(`owned ${member} ${JSON.stringify(partitions)}`))
  ends = true
  await Promise.all(members.map(consumer => consumer.close(true)))
}

async function seek(topic, timestamp) {
  const consumer = new Consumer({ ...base, groupId: `${clientId}-${topic}-seek` })
  const at = async time => (await consumer.listOffsets({ topics: [topic], timestamp: BigInt(time) })).get(topic)[0]
  console.log(`offset ${await at(timestamp)}`)
  console.log(`beginning ${await at(-2)}`)
  console.log(`end ${await at(-1)}`)
  await consumer.close(true)
}

async function transact(input, output, groupId, transactionalId, count) {
  const producer = new Producer({ ...base, idempotent: true, transactionalId })
  const aborted = await producer.beginTransaction()
  await aborted.send({ messages: [{ topic: output, partition: 0, key: bytes('aborted'), value: bytes('aborted') }] })
  await aborted.abort()
  const consumer = new Consumer({ ...base, groupId, isolationLevel: 1, maxWaitTime: 200 })
  const stream = await consumer.consume({ topics: [input], mode: 'committed', fallbackMode: 'earliest', autocommit: false })
  const pending = []
  for await (const message of stream) {
    pending.push(message)
    if (pending.length === Number(count)) break
  }
  const transaction = await producer.beginTransaction()
  await transaction.addConsumer(consumer)
  await transaction.send({ messages: pending.map(m => ({ topic: output, partition: 0, key: m.key ?? undefined, value: m.value ?? undefined })) })
  await transaction.addOffset(pending[pending.length - 1])
  await transaction.commit()
  await consumer.close(true)
  await producer.close()
  const admin = new Admin(base)
  const [offsets] = await admin.listConsumerGroupOffsets({ groups: [groupId] })
  console.log(`committed ${offsets.topics[0].partitions[0].committedOffset}`)
  await admin.close()
}

async function administrate(topic, groupId) {
  const admin = new Admin(base)
  const resource = { resourceType: 2, resourceName: topic }
  const partitions = async () => {
    const metadata = await admin.metadata({ topics: [topic], forceUpdate: true })
    console.log(`partitions ${metadata.topics.get(topic).partitionsCount}`)
  }
  const retention = async () => {
    const [found] = await admin.describeConfigs({ resources: [{ ...resource, configurationKeys: ['retention.ms'] }] })
    console.log(`retention ${found.configs[0].value}`)
  }
  await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1, configs: [{ name: 'retention.ms', value: '7200000' }] })
  await partitions()
  await retention()
  await admin.incrementalAlterConfigs({ resources: [{ ...resource, configs: [{ name: 'retention.ms', configOperation: 0, value: '3600000' }] }] })
  await retention()
  await admin.createPartitions({ topics: [{ name: topic, count: 3, assignments: null }] })
  await partitions()
  const producer = new Producer(base)
  for (let i = 0; i < 5; i++) await producer.send({ messages: [{ topic, partition: 0, value: bytes('x') }], acks: -1 })
  await producer.close()
  const [deleted] = await admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 0, offset: 3n }] }] })
  console.log(`low ${deleted.partitions[0].lowWatermark}`)
  await admin.alterConsumerGroupOffsets({ groupId, topics: [{ name: topic, partitionOffsets: [{ partition: 0, offset: 4n }] }] })
  const [offsets] = await admin.listConsumerGroupOffsets({ groups: [groupId] })
  console.log(`offset ${offsets.topics[0].partitions[0].committedOffset}`)
  console.log(`state ${(await admin.describeGroups({ groups: [groupId] })).get(groupId).state.toLowerCase()}`)
  console.log(`listed ${(await admin.listGroups({ types: [] })).has(groupId)}`)
  await admin.deleteGroups({ groups: [groupId] })
  await admin.deleteTopics({ topics: [topic] })
  console.log(`listed ${(await admin.listTopics()).includes(topic)}`)
  await admin.close()
}

const scenarios = { produce, consume, group, seek, transact, admin: administrate }
scenarios[scenario](...args).then(
  () => process.stdout.write('done\n', () => process.exit(0)), // not before a pipe took it all
  error => { console.error(error, error.errors); process.exit(1) }
)
