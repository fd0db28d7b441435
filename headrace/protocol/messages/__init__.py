"""One class per message for all its versions, one module per API. Import the module that you need."""
