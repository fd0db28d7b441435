USE shop;

-- Filled by Spark, exactly once: a row that were missing or came twice would show in the sums.
CREATE TABLE shop.clerks (
  clerk STRING, revenue DECIMAL(25, 2), orders BIGINT,
  PRIMARY KEY (clerk) NOT ENFORCED
) WITH ('bucket.num' = '3', 'table.merge-engine' = 'aggregation', 'fields.revenue.agg' = 'sum', 'fields.orders.agg' = 'sum');

-- Written by a Spark job while a leader is killed.
CREATE TABLE shop.customer_copy (
  cust_key INT NOT NULL, name STRING, phone STRING, nation_key INT NOT NULL,
  acctbal DECIMAL(15, 2), mktsegment STRING
) WITH ('bucket.num' = '3', 'bucket.key' = 'cust_key');

SHOW TABLES;
