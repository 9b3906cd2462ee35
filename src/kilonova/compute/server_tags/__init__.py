"""Words that users put on servers, to find them by."""
