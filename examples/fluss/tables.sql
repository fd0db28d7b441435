-- Definitions and reads as in Fluss's pages about Flink's DDL, reads and lookups.
-- Run it with `headrace sql -f examples/fluss/tables.sql`.

CREATE DATABASE shop;
USE shop;

CREATE TABLE totals (
  shop_id BIGINT,
  user_id BIGINT,
  orders INT,
  amount INT,
  PRIMARY KEY (shop_id, user_id) NOT ENFORCED
) WITH ('bucket.num' = '4', 'bucket.key' = 'shop_id');
CREATE TABLE items (
  order_id BIGINT,
  item VARCHAR(40),
  amount INT,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '10' SECOND
) WITH ('bucket.num' = '2');
CREATE TABLE by_day (
  dt STRING,
  user_id BIGINT,
  orders INT,
  PRIMARY KEY (dt, user_id) NOT ENFORCED
) PARTITIONED BY (dt) WITH ('table.auto-partition.enabled' = 'true', 'table.auto-partition.time-unit' = 'day');
SHOW PARTITIONS by_day;

CREATE TEMPORARY TABLE behavior (user_id BIGINT, item_id BIGINT, action STRING, dt STRING)
  WITH ('connector' = 'datagen', 'rows-per-second' = '10');
CREATE TABLE actions LIKE behavior (EXCLUDING OPTIONS);
CREATE TABLE totals_copy LIKE totals;

ALTER TABLE actions ADD email STRING COMMENT 'of the user';
ALTER TABLE actions ADD (quantity INT, note STRING);
ALTER TABLE items ADD WATERMARK FOR at AS at - INTERVAL '20' SECOND;
ALTER TABLE items DROP WATERMARK;
ALTER TABLE items SET ('table.log.ttl' = '3 d');
ALTER TABLE items RESET ('table.log.ttl');
ALTER TABLE by_day ADD PARTITION (dt = '2030-01-31');
SHOW PARTITIONS by_day PARTITION (dt = '2030-01-31');
ALTER TABLE by_day DROP PARTITION (dt = '2030-01-31');

INSERT INTO items VALUES
  (1, 'pen', 2, TO_TIMESTAMP('2024-01-15 10:30:00', 'yyyy-MM-dd HH:mm:ss')),
  (2, 'ink', 1, TIMESTAMP '2024-01-15 10:31:00');
INSERT INTO totals VALUES (1, 7, 1, 10), (1, 8, 1, 5);
INSERT INTO totals (shop_id, user_id, amount) VALUES (1, 7, 20);

SET 'execution.runtime-mode' = 'batch';
SELECT item, amount FROM items /*+ OPTIONS('scan.startup.mode' = 'earliest') */ WHERE amount > 1;
SELECT * FROM totals WHERE shop_id = 1;
SELECT _change_type, orders, amount
FROM totals$changelog /*+ OPTIONS(
  'scan.startup.mode' = 'timestamp',
  'scan.startup.timestamp' = '2024-01-15 10:30:00'
) */
WHERE user_id = 7
ORDER BY _log_offset;

SET 'execution.runtime-mode' = 'streaming';
SELECT item, amount * 2 AS twice FROM items LIMIT 2;
RESET 'execution.runtime-mode';

USE `default`;
DROP DATABASE shop CASCADE;
