CREATE DATABASE shop;
CREATE TABLE shop.customers (
    id BIGINT, name STRING, mood STRING, since DATE, seen TIMESTAMP_LTZ(6), home STRING, tags ARRAY<STRING>, profile STRING,
    PRIMARY KEY (id) NOT ENFORCED
) WITH ('bucket.num' = '2', 'table.kafka.value-format' = 'debezium-json', 'table.datalake.enabled' = 'true',
    'table.datalake.freshness' = '1 s', 'table.kafka.debezium.out-of-range-times' = 'clamp');
CREATE TABLE shop.orders (
    id BIGINT, customer BIGINT NOT NULL, price DECIMAL(12, 2), weight DECIMAL(38, 18), made TIMESTAMP(6), changed TIMESTAMP(6),
    due BIGINT, wait BIGINT, paid DECIMAL(12, 2), is_open BOOLEAN, score DOUBLE,
    PRIMARY KEY (id) NOT ENFORCED
) WITH ('bucket.num' = '2', 'table.kafka.value-format' = 'debezium-json', 'table.datalake.enabled' = 'true',
    'table.datalake.freshness' = '1 s');
CREATE TABLE shop.documents (
    id STRING, part INT, body STRING, scan BYTES, pages ARRAY<STRING>, sizes ARRAY<INT>, big ARRAY<BIGINT>, meta STRING, note STRING,
    PRIMARY KEY (id, part) NOT ENFORCED
) WITH ('bucket.key' = 'part', 'bucket.num' = '2', 'table.kafka.value-format' = 'debezium-json',
    'table.datalake.enabled' = 'true', 'table.datalake.freshness' = '1 s');
