CREATE DATABASE shop;

-- A log table: orders arrive and never change.
CREATE TABLE shop.orders (
  order_key BIGINT, cust_key INT NOT NULL, total_price DECIMAL(15, 2),
  order_date DATE, order_priority STRING, clerk STRING
) WITH ('bucket.num' = '4');

CREATE TABLE shop.customer (
  cust_key INT NOT NULL, name STRING, phone STRING, nation_key INT NOT NULL,
  acctbal DECIMAL(15, 2), mktsegment STRING,
  PRIMARY KEY (cust_key) NOT ENFORCED
) WITH ('bucket.num' = '2');

CREATE TABLE shop.nation (
  nation_key INT NOT NULL, name STRING,
  PRIMARY KEY (nation_key) NOT ENFORCED
) WITH ('bucket.num' = '1');

-- Filled by the pipeline, updated by key, tiered into Iceberg.
CREATE TABLE shop.enriched_orders (
  order_key BIGINT, cust_key INT NOT NULL, total_price DECIMAL(15, 2),
  order_date DATE, order_priority STRING, clerk STRING,
  cust_name STRING, cust_phone STRING, cust_acctbal DECIMAL(15, 2),
  cust_mktsegment STRING, nation_name STRING,
  PRIMARY KEY (order_key) NOT ENFORCED
) WITH ('bucket.num' = '4', 'table.datalake.enabled' = 'true', 'table.datalake.format' = 'iceberg');

-- All events of an order are in one bucket, beside each other: prefix lookup.
CREATE TABLE shop.order_events (
  order_key BIGINT, event_no INT, event STRING,
  PRIMARY KEY (order_key, event_no) NOT ENFORCED
) WITH ('bucket.num' = '2', 'bucket.key' = 'order_key');

USE shop;
SHOW TABLES;
