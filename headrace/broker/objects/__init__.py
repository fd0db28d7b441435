"""Files that are kept elsewhere: in a directory, or in an object store behind a URL."""
