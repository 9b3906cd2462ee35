"""Volume attachments of servers: attach, swap, detach."""
