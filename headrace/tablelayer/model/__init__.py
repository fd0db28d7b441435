"""Types, schemas, DDL, options, codecs and messages shared by server and clients."""
